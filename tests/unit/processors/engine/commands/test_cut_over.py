"""A backfill replaces a store at a moment when many windows and timers are due.

One commit cannot send all their results. Each result must still be sent once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, load_settings
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.names import shadow_group
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import Adopt
from holdfast.processors.engine.runtime.owner_commands.tickets import TicketPhase
from holdfast.processors.engine.runtime.task import task_time, task_timers
from tests.unit.processors.engine.commands.test_window_store_life import Dying, Killed
from tests.unit.processors.engine.runtime.test_shadow import Asking
from tests.window_apps import T, build, send
from tests.window_lives import carry_out

KEYS = [b"%d" % number for number in range(20)]
#: The consumer group of the program that rebuilds store ``w``.
BESIDE = shadow_group("g", "w")


class Ends:
    """Sets a timer for each key."""

    def on_message(self, value: Any, context: Any) -> None:
        context.set_timer("end", at=T + 10_000)

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit(name)


def counting(frame: Any) -> Any:
    return frame.tumbling_window(10_000, name="w").count().final("partition")


def visits(frame: Any) -> Any:
    return frame.session_window(9_000, name="w").count().final("partition")


def ends(frame: Any) -> Any:
    return frame.process(Ends, store="w")


class Rebuilding(Asking):
    """The program that rebuilds the store. It stops when it reports that it has reached its end offsets."""

    def point(self, name: str) -> None:
        super().point(name)
        if self.tickets and self.tickets[-1].phase is TicketPhase.DONE and self.app._worker is not None:
            self.app._worker.stop()


def built_beside(cluster: InMemoryCluster, app: Application, upto: int, home: Path) -> None:
    app = app.shadow("w")
    app.with_run_overrides(slot="0", auto_create_topics=True, start=Start(shadow=True))
    process = Rebuilding(cluster, app, [{0: upto}])
    app.run_on(cluster.connect(process), load_settings(home=home), timeout=10.0)
    process.frozen = True
    process.sleep(10.0)
    assert process.tickets[-1].phase is TicketPhase.DONE


@pytest.mark.parametrize("place", [counting, visits, ends])
@pytest.mark.parametrize("behind", ["owner", "shadow"])
def test_what_is_due_at_the_cut_over_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, behind: str
) -> None:
    cluster = InMemoryCluster()
    for topic in ("in", "out"):
        cluster.create_topic(topic)
    for key in KEYS:
        send(cluster, 1, key=key)
    send(cluster, 10_001, key=b"end")
    if behind == "owner":
        built_beside(cluster, build(place), len(KEYS) + 1, tmp_path / "shadow")
    for module, name in ((task_time, "CLOSED_AT_ONCE"), (task_timers, "FIRED_AT_ONCE"), (task_timers, "READ_AT_ONCE")):
        monkeypatch.setattr(module, name, 2)
    if behind == "owner":
        with pytest.raises(Killed):
            build(place).run_on(cluster.connect(Dying(cluster.clock, 4)), load_settings(home=tmp_path), timeout=3)
        assert 0 < len(cluster.read("out")) < len(KEYS)
        cluster.advance(60)
    else:
        cluster.run(build(place))
        built_beside(cluster, build(place), len(KEYS) + 1, tmp_path / "shadow")
    changelog = f"{BESIDE}-w-changelog"
    upto = {0: cluster.log_end(Partition(changelog, 0))}
    carry_out(cluster, build(place), Adopt(store="w", changelog=changelog, upto=upto))
    cluster.run(build(place))
    sent = [record.key for _, record in cluster.read("out") if record.key != b"end"]
    assert sorted(filter(None, sent)) == sorted(KEYS)


@pytest.mark.parametrize("reached_by", ["owner", "both"])
def test_a_time_that_the_clock_reaches_during_the_cut_over_sends_each_result_once(
    tmp_path: Path, reached_by: str
) -> None:
    """A result is sent once, although the rebuilt store may already have sent it before it replaces the owner's store.

    The worker that owns the store stays paused while the store is rebuilt. Either only this worker's clock reaches the
    time of the second message, or also the clock of the program that rebuilds the store.
    """
    cluster = InMemoryCluster()
    for topic in ("in", "out"):
        cluster.create_topic(topic)
    now = int(cluster.clock.time() * 1000) // 10_000 * 10_000
    # the second message is processed when the worker's clock has reached its event time
    for key, at in ((b"a", now - 1), (b"b", now + 30_000)):
        cluster.produce("in", b"1", key, timestamp_ms=at)
    cluster.run(build(counting))
    assert cluster.read("out") == []
    if reached_by == "both":
        cluster.advance(60)
    built_beside(cluster, build(counting), 2, tmp_path)
    cluster.advance(60)
    changelog = f"{BESIDE}-w-changelog"
    upto = {0: cluster.log_end(Partition(changelog, 0))}
    paused = build(counting)
    paused.with_run_overrides(slot="0", auto_create_topics=True, start=Start(paused=True))
    carry_out(cluster, paused, Adopt(store="w", changelog=changelog, upto=upto))
    assert len(cluster.read("out")) == (reached_by == "both")
    cluster.run(build(counting))
    assert [record.key for _, record in cluster.read("out")] == [b"a"]
