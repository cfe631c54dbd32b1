"""Sources on the in-memory cluster. Each message and each state change of a source takes effect once.

The tests use kills, aborted transactions, errors, stops and clears of the state.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import structlog

from holdfast import Application, Fate, InlineProcess, InMemoryCluster
from holdfast.processors.engine.runtime.idle import SourceFailed
from holdfast.processors.engine.runtime.owner_commands.commands import Clear
from holdfast.processors.engine.sources import handover
from holdfast.processors.engine.sources.handover import SourceHangs, SourceStopped
from holdfast.processors.engine.state.own_keys import SOURCES
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from holdfast.sources import Source, StatefulSource
from tests.mechanics.tiers import variants
from tests.simulation.disk import SimulatedDisk
from tests.unit.processors.engine.runtime.test_idle import STEPS, Doomed, Faulty, Killed
from tests.window_lives import carry_out, settings_of

ENDED = {"sent": 10, "ended": True, "format": 1}


class Numbers(StatefulSource):
    """Produces the numbers up to ``end``, and commits after every third number. Its state holds the next number."""

    def __init__(self, end: int = 10, name: str = "numbers", **given: Any) -> None:
        super().__init__(name, **given)
        self.end = end

    def run(self) -> None:
        for number in range(self.state.get("next", 0), self.end):
            self.produce(json.dumps(number), key=f"k{number % 3}")
            self.state.set("next", number + 1)
            if number % 3 == 2:
                self.flush()


def build(source: Source, state_dir: Path | None = None, **options: Any) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_dir=state_dir, **options
    )

    def count(value: Any, state: Any) -> Any:
        return [value, state.increment("n")]

    app.dataframe(source=source).apply(count, stateful=True, store="counts").to_topic(app.topic("out"))
    return app


def numbers(cluster: InMemoryCluster, topic: str = "source__numbers") -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read(topic)]


def results(cluster: InMemoryCluster) -> list[Any]:
    return [json.loads(record.value or b"null")[0] for _, record in cluster.read("out")]


def record_of(cluster: InMemoryCluster, source: Source) -> dict[str, Any]:
    kept = cluster.state(build(source), f"source-{source.name}")
    found: dict[str, Any] = kept[OWN_KEY, f"{SOURCES}{source.name}"]
    found.pop("last")
    return found


def test_a_stateful_source_resumes_and_another_begins_anew() -> None:
    class Anew(Source):
        def run(self) -> None:
            for number in range(3):
                self.produce(**{name: getattr(self.serialize("k", number), name) for name in ("key", "value")})

    cluster = InMemoryCluster()
    for end in (4, 10):
        cluster.run(build(Numbers(end)))
    assert numbers(cluster) == results(cluster) == list(range(10))
    assert cluster.state(build(Numbers()), "source-numbers")[b"numbers", "next"] == 10
    assert record_of(cluster, Numbers()) == ENDED
    other = InMemoryCluster()
    for _ in range(2):
        other.run(build(Anew("anew")))
    assert numbers(other, "source__anew") == [0, 1, 2, 0, 1, 2]
    assert [key for _, key in ((each, record.key) for each, record in other.read("source__anew"))] == [b"k"] * 6


@pytest.mark.parametrize("disk_lost", variants([True, False]))
@pytest.mark.parametrize("point", [*STEPS, "commit:before", "commit:sent", "commit:after"])
def test_a_kill_at_each_step_of_a_commit_loses_and_doubles_nothing(tmp_path: Path, point: str, disk_lost: bool) -> None:
    cluster, disk = InMemoryCluster(), SimulatedDisk()
    with pytest.raises(Killed):
        live(cluster, disk, tmp_path, Doomed(cluster, point))
    InlineProcess(cluster.clock).sleep(60)
    live(cluster, SimulatedDisk() if disk_lost else disk, tmp_path, InlineProcess(cluster.clock))
    assert numbers(cluster) == results(cluster) == list(range(10))


def live(cluster: InMemoryCluster, disk: SimulatedDisk, state: Path, process: InlineProcess) -> None:
    databases = disk.attach(process)
    try:
        app = build(Numbers(), state)
        app.run_on(cluster.connect(process), settings_of(state), timeout=3.0, databases=databases)
    finally:
        process.frozen = True
        disk.release(process)


@pytest.mark.parametrize("fate", variants([Fate.REPLY_LOST, Fate.LOST, Fate.DELAYED]))
@pytest.mark.parametrize("request_", ["send_offsets", "commit"])
def test_an_aborted_or_unknown_commit_loses_and_doubles_nothing(request_: str, fate: Fate) -> None:
    network = Faulty(request_, fate)
    cluster, source = InMemoryCluster(network=network), Numbers()
    cluster.clock.call_later(0.05, lambda: setattr(network, "armed", True))
    cluster.run(build(source), quiet_s=60)
    assert network.struck
    assert numbers(cluster) == results(cluster) == list(range(10))


def test_an_error_stops_the_worker_behind_what_was_flushed() -> None:
    class Breaks(Numbers):
        def produce(self, *given: Any, **named: Any) -> None:
            if self.state.get("next") == 7 and self.breaks:
                raise OSError("no route to host")
            super().produce(*given, **named)

        breaks = True

    cluster = InMemoryCluster()
    with pytest.raises(SourceFailed, match=r"Source 'numbers' raised OSError: no route to host\.") as failed:
        cluster.run(build(Breaks()))
    assert failed.value.action == (
        "Correct its `run`, or the system that it reads. Then restart: the source starts again."
    )
    assert failed.value.cause == ""
    assert numbers(cluster) == [0, 1, 2, 3, 4, 5]
    Breaks.breaks = False
    cluster.run(build(Breaks()))
    assert numbers(cluster) == results(cluster) == list(range(10))


def test_what_a_source_without_state_has_produced_before_an_error_is_sent() -> None:
    class Breaks(Source):
        def run(self) -> None:
            self.produce(b"1", key="k")
            raise SystemExit(3)

    cluster = InMemoryCluster()
    with pytest.raises(SourceFailed, match=r"Source 'breaks' raised SystemExit: 3\."):
        cluster.run(build(Breaks("breaks")))
    assert numbers(cluster, "source__breaks") == [1]


def test_a_source_that_never_ends_is_stopped_with_its_worker() -> None:
    class Endless(Source):
        def run(self) -> None:
            at = 0
            while self.running:
                self.produce(json.dumps(at := at + 1), key="k")
            ended.append(at)

        def stop(self) -> None:
            told.append(self.running)

    ended: list[int] = []
    told: list[bool] = []
    cluster = InMemoryCluster()
    cluster.run(build(Endless("endless")), count=7)
    assert results(cluster) == [1, 2, 3, 4, 5, 6, 7]
    # the numbers that the source produced after the stop request are sent, too
    assert numbers(cluster, "source__endless") == list(range(1, ended[0] + 1))
    assert told == [False]


def test_time_of_a_source_is_that_of_the_clock() -> None:
    class Slow(Source):
        def run(self) -> None:
            for number in range(4):
                self.produce(json.dumps(number), key="k")
                assert self.sleep(10.0)

    cluster = InMemoryCluster()
    start = cluster.clock.time()
    cluster.run(build(Slow("slow")), quiet_s=12)
    times = [record.timestamp_ms / 1000 - start for _, record in cluster.read("source__slow")]
    assert [round(after - before) for before, after in pairwise(times)] == [10, 10, 10]


def test_a_call_that_does_not_return_is_told() -> None:
    class Blocked(Source):
        def run(self) -> None:
            self.produce(b"1", key="k")
            while self.running:
                self.sleep(0.1)
            self.produce(b"2", key="k")
            try:
                returns.wait()
                self.produce(b"3", key="k")
            except SourceStopped as stopped:
                raised.append(stopped)
            finally:
                done.set()

    returns, done, cluster = Event(), Event(), InMemoryCluster()
    raised: list[SourceStopped] = []
    with structlog.testing.capture_logs() as logs:
        cluster.run(build(Blocked("blocked", shutdown_timeout=0.05)))
    told = [each for each in logs if each.get("source") == "blocked" and each["log_level"] == "warning"]
    assert "`run` is in a call that does not return" in told[0]["event"]
    returns.set()
    assert done.wait(30)
    assert "what it had not flushed is discarded" in raised[0].message
    assert numbers(cluster, "source__blocked") == [1, 2]


def test_a_source_that_hangs_in_a_test_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs(Source):
        def run(self) -> None:
            returns.wait()

    monkeypatch.setattr(handover, "SETTLED_WITHIN_S", 0.05)
    returns = Event()
    with pytest.raises(SourceHangs, match="Source 'hangs' did nothing for 0.05 s") as hung:
        InMemoryCluster().run(build(Hangs("hangs", shutdown_timeout=0.01)))
    assert "`self.sleep(seconds)`" in hung.value.action
    returns.set()


def test_a_cleared_store_begins_anew_and_a_source_that_runs_is_paused_with_its_worker() -> None:
    cluster = InMemoryCluster()
    cluster.run(build(Numbers()))
    carry_out(cluster, build(Numbers(0)), Clear(store="source-numbers", all=True))
    cluster.run(build(Numbers(4)))
    assert numbers(cluster) == [*range(10), *range(4)]

    class Paused(Numbers):
        def run(self) -> None:
            while self.running:
                self.produce(b"0", key="k")
                self.flush()
                self.sleep(1.0)

    paused, app = InMemoryCluster(), build(Paused(name="paused"))
    paused.clock.call_later(5.0, lambda: worker_of(app).pause())
    paused.clock.call_later(20.0, lambda: counted.append(len(numbers(paused, "source__paused"))))
    paused.clock.call_later(21.0, lambda: worker_of(app).resume())
    paused.clock.call_later(29.0, app.stop)
    counted: list[int] = []
    paused.run(app, quiet_s=100)
    assert 2 <= counted[0] <= 7
    assert counted[0] + 5 <= len(numbers(paused, "source__paused")) <= counted[0] + 12


def worker_of(app: Application) -> Any:
    return app._worker


def test_state_has_the_methods_of_states() -> None:
    found: list[Any] = []

    class Keeps(StatefulSource):
        def run(self) -> None:
            state, kept = self.state, {"files": ["a"]}
            found.append((state.get("kept"), state.exists("kept"), state.items(), state.keys(reverse=True)))
            state.set("kept", kept)
            kept["files"].append("b")  # the state keeps a copy of the value, so this change must not reach it
            state.set_bytes("raw", b"\xff")
            state.set("gone", 1)
            self.flush()
            state.delete("gone")
            found.append((state.get("kept"), state.get_bytes("raw"), state.increment("n", 2), state.items("k")))

    cluster = InMemoryCluster()
    for _ in range(2):
        cluster.run(build(Keeps("keeps")))
    assert found[0] == (None, False, [], [])
    assert found[1] == ({"files": ["a"]}, b"\xff", 2, [("kept", {"files": ["a"]})])
    assert found[2] == (
        {"files": ["a"]},
        True,
        [("kept", {"files": ["a"]}), ("n", 2), ("raw", b"\xff")],
        ["raw", "n", "kept"],
    )
    state = {name: value for (key, name), value in cluster.state(build(Keeps("keeps")), "source-keeps").items() if key}
    assert state["n"] == 4


def test_a_source_without_a_stream_fills_its_topic() -> None:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.add_source(Numbers(), app.topic("given"))
    cluster = InMemoryCluster()
    cluster.create_topic("given", partitions=3)
    cluster.run(app)
    assert sorted(numbers(cluster, "given")) == list(range(10))
    # the message key decides the partition, so several partitions have messages
    assert len({number for number, _ in cluster.read("given")}) > 1


def test_several_sources_fill_one_topic() -> None:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    topic = app.add_source(Numbers(12))
    app.add_source(Numbers(3, name="others"), topic)
    app.dataframe(topic).to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    cluster.run(app)
    assert sorted(numbers(cluster, "out")) == sorted([*range(12), *range(3)])


def test_the_version_and_the_topology_know_the_source() -> None:
    class Other(Numbers):
        def run(self) -> None:
            self.flush()

    described, other = build(Numbers()).topology(), build(Other()).topology()
    assert described.code_version != other.code_version
    assert not described.prove
    store = next(each for each in described.stores if each.kind == "source")
    assert (store.name, store.inputs) == ("source-numbers", ("source__numbers",))
    assert store.columns == ("source numbers: resumes from its state",)
    assert described.written()[0] == "source__numbers"
    assert [spec.name for spec in described.outputs] == ["out"]


def test_connections_are_made_before_run() -> None:
    calls: list[Any] = []

    class Connects(Source):
        def setup(self) -> None:
            calls.append("setup")
            if len(calls) > 3:
                raise ConnectionError("refused")

        def run(self) -> None:
            calls.append("run")

        def cleanup(self, failed: bool) -> None:
            calls.append(failed)

    def start(**given: Callable[..., None]) -> None:
        InMemoryCluster().run(build(Connects("connects", **given)))  # type: ignore[arg-type]

    start(on_client_connect_success=lambda: calls.append("connected"))
    assert calls == ["setup", "connected", "run", False]
    with pytest.raises(SourceFailed, match="raised ConnectionError: refused"):
        start()
    assert calls[4:] == ["setup", True]
    start(on_client_connect_failure=lambda error: calls.append(str(error)))
    assert calls[6:] == ["setup", "refused", "run", False]
