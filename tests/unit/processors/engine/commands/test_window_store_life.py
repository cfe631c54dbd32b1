"""Commands, checkpoints and restores of a window store include both its windows and its stream time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InlineProcess, InMemoryCluster, VirtualClock, load_settings
from holdfast.infra.settings import CheckpointSettings
from holdfast.processors.engine.checkpoints import decision
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import Clear, Position
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.state.time.window_keys import CLOCK, OWN_KEY, window_of
from tests.window_apps import build as of_window
from tests.window_lives import carry_out, stored

#: A time in the past, in milliseconds, at which a window starts.
T = 1_690_000_000_000


def build(state_dir: Path | None = None, grace_ms: int = 0) -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_dir=state_dir)
    window = app.dataframe(app.topic("in")).tumbling_window(10_000, grace_ms, "w").count()
    window.final("partition").to_topic(app.topic("out"))
    return app


class Killed(BaseException):
    """Raised in place of a kill: the process ends."""


class Dying(InlineProcess):
    """A process that is killed when it begins its n-th commit."""

    def __init__(self, clock: VirtualClock, commits: int) -> None:
        super().__init__(clock)
        self._left = commits

    def point(self, name: str) -> None:
        self._left -= name == "commit:before"
        if self._left == 0 or self.frozen:
            self.frozen = True
            raise Killed


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def send(cluster: InMemoryCluster, *messages: tuple[bytes, int]) -> None:
    for key, at in messages:
        cluster.produce("in", b"1", key, timestamp_ms=T + at)


def results(cluster: InMemoryCluster) -> list[tuple[bytes | None, int, int]]:
    found = [(record.key, json.loads(record.value or b"")) for _, record in cluster.read("out")]
    return [(key, made["start"] - T, made["value"]) for key, made in found]


def windows(cluster: InMemoryCluster) -> set[tuple[bytes, int]]:
    state = cluster.state(build(), "w")
    return {(key, found[0] - T) for (key, name) in state if (found := window_of(name))}


def test_a_clear_of_a_key_deletes_its_windows_and_no_others(cluster: InMemoryCluster) -> None:
    send(cluster, (b"a", 0), (b"b", 1), (b"a", 2))
    cluster.run(build())
    carry_out(cluster, build(), Clear(store="w", keys=("a",)))
    assert windows(cluster) == {(b"b", 0)}
    send(cluster, (b"a", 3), (b"b", 10_000))
    cluster.run(build())
    assert results(cluster) == [(b"a", 0, 1), (b"b", 0, 1)]


def test_a_clear_of_a_key_leaves_nothing_to_close(cluster: InMemoryCluster) -> None:
    send(cluster, (b"a", 0), (b"b", 1))
    cluster.run(build())
    carry_out(cluster, build(), Clear(store="w", keys=("a",)))
    send(cluster, (b"b", 10_000))
    cluster.run(build())
    assert results(cluster) == [(b"b", 0, 1)]


def test_a_clear_of_the_store_takes_its_time_along(cluster: InMemoryCluster) -> None:
    send(cluster, (b"a", 0), (b"a", 15_000))
    cluster.run(build())
    carry_out(cluster, build(), Clear(store="w", all=True))
    assert cluster.state(build(), "w") == {}
    send(cluster, (b"a", 5_000), (b"a", 10_000))  # with the former stream time, the first message would be late
    cluster.run(build())
    assert results(cluster) == [(b"a", 0, 1), (b"a", 0, 1)]


def test_positions_that_go_back_take_the_time_along(cluster: InMemoryCluster) -> None:
    send(cluster, (b"a", 0), (b"a", 1), (b"a", 15_000))
    cluster.run(build())
    carry_out(cluster, build(), Position(positions={"in": {0: 0}}))
    assert (OWN_KEY, CLOCK) not in cluster.state(build(), "w")
    cluster.run(build())
    # The messages are read again into the same windows, and none of them is late.
    assert results(cluster) == [(b"a", 0, 2), (b"a", 0, 4)]


def test_a_checkpoint_has_windows_and_time(
    cluster: InMemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decision, "SPARES_AT_LEAST", 1)
    settings = load_settings(home=tmp_path, checkpoints=CheckpointSettings(enabled=True))
    send(cluster, (b"a", 0), (b"b", 1), (b"a", 15_000))
    for name in ("first", "second"):
        process = InlineProcess(cluster.clock)
        build(tmp_path / name).run_on(cluster.connect(process), settings, timeout=3)
        process.frozen = True
        process.sleep(60)
        if name == "first":
            send(cluster, (b"b", 5_000), (b"a", 20_000))  # the message of key b is late
    assert results(cluster) == [(b"a", 0, 1), (b"b", 0, 1), (b"a", 10_000, 1)]
    # the log line is on stderr once logging is configured, otherwise on stdout
    assert "state begins with a checkpoint" in "".join(capsys.readouterr())


def test_what_was_due_when_a_worker_ended_closes_without_a_message(
    cluster: InMemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_time, "CLOSED_AT_ONCE", 2)
    send(cluster, *((b"%d" % number, 0) for number in range(20)), (b"end", 10_000))
    with pytest.raises(Killed):
        build(tmp_path).run_on(cluster.connect(Dying(cluster.clock, 4)), load_settings(home=tmp_path), timeout=3)
    InlineProcess(cluster.clock).sleep(60)
    before, seen = len(results(cluster)), []
    assert 0 < before < 20
    cluster.clock.call_later(20, lambda: seen.append(len(results(cluster))))
    cluster.run(build(), quiet_s=60)
    assert seen == [20]
    assert len(results(cluster)) == 20


class Later:
    """Sets a timer for each message."""

    def on_message(self, value: Any, context: Any) -> None:
        context.set_timer("later", at=context.timestamp + 5_000)

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit({"start": time, "value": name})


@pytest.mark.parametrize(
    "place",
    [
        lambda frame: frame.tumbling_window(10_000, name="w").count().final("partition"),
        lambda frame: frame.process(Later, store="w"),
    ],
    ids=["window", "timer"],
)
def test_a_worker_that_is_paused_leaves_its_store_as_it_was_restored_and_sends_nothing(
    cluster: InMemoryCluster, tmp_path: Path, place: Any
) -> None:
    """A paused worker must not change its store.

    During such a pause, a restore from the warehouse compares the store with the snapshot from which it was restored.
    """
    now = int(cluster.clock.time() * 1000) // 10_000 * 10_000
    # the second message is processed when the worker's clock has reached its event time
    for key, at in ((b"a", now - 1), (b"b", now + 30_000)):
        cluster.produce("in", b"1", key, timestamp_ms=at)
    cluster.run(of_window(place))
    before, sent = stored(cluster, of_window(place), "w"), len(cluster.read("out"))
    cluster.advance(60)
    seen: list[Any] = []
    paused, process = of_window(place), InlineProcess(cluster.clock)
    paused.with_run_overrides(slot="0", auto_create_topics=True, start=Start(paused=True))

    def look() -> None:
        seen.append((stored(cluster, of_window(place), "w"), len(cluster.read("out"))))
        assert paused._worker is not None
        paused._worker.resume()

    cluster.clock.call_later(60, look)
    paused.run_on(cluster.connect(process), load_settings(home=tmp_path), timeout=90)
    assert seen == [(before, sent)]
    assert len(cluster.read("out")) == sent + 1
