"""Sinks on the in-memory cluster: the results that they get, commits that wait for them, and the effect of failures."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, ProcessingFailed
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.dataframe import sinks
from holdfast.processors.engine.runtime.idle import SinkPauses
from holdfast.processors.engine.sinks.errors import SinkFailed, SinkInvalid
from holdfast.processors.engine.steps.async_calls import AsyncInvalid
from holdfast.sinks import BaseSink, BatchingSink, SinkBackpressureError, SinkBatch, SinkItem, SinkRowsRefused
from holdfast.sinks.core.list import ListSink


class Table(BatchingSink):
    """A target system in memory. It has the rows by partition and offset, and the number of writes of each row."""

    def __init__(self, busy: int = 0, retry_after: float = 0.01, fails: int = 0) -> None:
        super().__init__()
        self.rows: list[tuple[int, int, Any, Any, int]] = []
        self.sizes: list[tuple[int, int | None]] = []
        self.busy, self.retry_after, self.fails, self.paused, self.set_up = busy, retry_after, fails, 0, 0

    def setup(self) -> None:
        self.set_up += 1

    def write(self, batch: SinkBatch) -> None:
        if self.busy:
            self.busy -= 1
            raise SinkBackpressureError(self.retry_after)
        if self.fails:
            self.fails -= 1
            raise OSError("no route")
        self.sizes.append((batch.size, batch.start_offset))
        for chunk in batch.iter_chunks(2):
            for item in chunk:
                self.rows.append((batch.partition, item.offset, item.key, item.value, item.timestamp))

    def on_paused(self) -> None:
        super().on_paused()
        self.paused += 1


def application(sink: BaseSink, change: Any = None, **given: Any) -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)
    sdf = app.dataframe(app.topic("in", key_deserializer="str"))
    if change is not None:
        sdf = sdf.apply(change)
    assert sdf.sink(sink) is None  # type: ignore[func-returns-value]
    sdf.update(touched)
    sdf.to_topic(app.topic("out"))
    return app


def touched(value: Any) -> None:
    value["later"] = True


def cluster_with(count: int, partitions: int = 2) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions)
    cluster.create_topic("out", partitions)
    for number in range(count):
        key = b"k%d" % (number % 5)
        cluster.produce("in", json.dumps({"n": number}).encode(), key, timestamp_ms=1_700_000_000_000 + number)
    return cluster


def numbers(rows: list[Any]) -> list[int]:
    return sorted(row[3]["n"] for row in rows)


def test_a_sink_gets_each_result_with_its_place_and_as_it_was_at_its_step() -> None:
    cluster, sink = cluster_with(20), Table()
    cluster.run(application(sink))
    assert numbers(sink.rows) == [*range(20)]
    # a later step changes the value in place; the sink must not see that
    assert all(row[3] == {"n": row[3]["n"]} for row in sink.rows)
    assert all(row[4] == 1_700_000_000_000 + row[3]["n"] and row[2] == f"k{row[3]['n'] % 5}" for row in sink.rows)
    places = {(number, record.offset): json.loads(record.value or b"")["n"] for number, record in cluster.read("in")}
    assert {row[:2]: row[3]["n"] for row in sink.rows} == places
    assert sink.set_up == 1


def test_a_failed_message_leaves_nothing_in_a_sink() -> None:
    def fails(value: Any) -> Any:
        return {**value, "half": 1 / (value["n"] % 4)}

    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    sink, cluster = Table(), cluster_with(20)
    sdf = app.dataframe(app.topic("in"))
    sdf.sink(sink)
    sdf.apply(fails).to_topic(app.topic("out"))
    cluster.run(app)
    assert numbers(sink.rows) == [number for number in range(20) if number % 4]
    assert len(cluster.read("dead")) == 5


def test_a_sink_that_is_busy_for_a_moment_holds_the_commit_and_gets_all_once() -> None:
    cluster, sink = cluster_with(20), Table(busy=3)
    cluster.run(application(sink))
    assert numbers(sink.rows) == [*range(20)]
    assert sink.paused == 0


def test_a_sink_that_is_busy_for_long_gets_the_results_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "WAIT_S", 0.02)
    cluster, sink = cluster_with(20), Table(busy=1, retry_after=0.05)
    cluster.run(application(sink))
    assert sink.paused >= 1
    assert numbers(sink.rows) == [*range(20)]  # the attempt during which the sink was busy wrote no row
    assert sorted(json.loads(record.value or b"")["n"] for _, record in cluster.read("out")) == [*range(20)]


def test_a_sink_that_is_busy_for_minutes_pauses_only_its_own_inputs() -> None:
    cluster, sink = cluster_with(20), Table(busy=3, retry_after=60)
    cluster.create_topic("others", 2)
    app = application(sink)
    app.dataframe(app.topic("others")).to_topic(app.topic("passed"))
    passed_at, generations = list[float](), set[int]()
    real = sink.write

    def write(batch: SinkBatch) -> None:
        passed_at.append(cluster.clock.monotonic())
        generations.add(cluster._broker.groups["g"].generation)
        if len(passed_at) == 2:
            assert len(cluster.read("passed")) == 5  # sent while the inputs of the sink were paused
        real(batch)

    sink.write = write  # type: ignore[method-assign]
    for number in range(5):
        cluster.produce("others", b"%d" % number, b"k")
    cluster.run(app)
    assert numbers(sink.rows) == [*range(20)]
    assert sorted(json.loads(record.value or b"")["n"] for _, record in cluster.read("out")) == [*range(20)]
    # The sink is asked once in each minute, and by no further attempt of the commits between.
    assert [round(later - former) for former, later in pairwise(passed_at[:4])] == [60, 60, 60]
    assert generations == {1}  # the worker stayed in its group


def test_windows_and_timers_wait_while_their_sink_is_busy() -> None:
    cluster, sink = cluster_with(4, partitions=1), Table(busy=2, retry_after=60)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in")).tumbling_window(1).count().final("partition").sink(sink)
    cluster.run(app)
    assert len(sink.rows) == 3
    assert sink.busy == 0


class Refusing(Table):
    """A table that refuses odd numbers for ever, and names all of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def write(self, batch: SinkBatch) -> None:
        self.attempts += 1
        if rows := [(item, f"Row {item.value['n']} is odd.") for item in batch if item.value["n"] % 2]:
            raise SinkRowsRefused(batch, rows, action="Make it even.")
        super().write(batch)


def test_a_refused_row_fails_its_message_and_no_other_one() -> None:
    cluster, sink = cluster_with(20), Refusing()
    cluster.run(application(sink, dead_letter_topic="dead"))
    assert set(numbers(sink.rows)) == {*range(0, 20, 2)}  # a batch of the other partition may come twice
    assert sorted(json.loads(record.value or b"")["n"] for _, record in cluster.read("dead")) == [*range(1, 20, 2)]
    # the whole message failed, so it has no output either
    assert sorted(json.loads(record.value or b"")["n"] for _, record in cluster.read("out")) == [*range(0, 20, 2)]
    assert sink.attempts <= 8  # not one attempt for each refused row


def test_a_refused_row_stops_the_worker_at_its_message() -> None:
    cluster, sink = cluster_with(20, partitions=1), Refusing()
    with pytest.raises(ProcessingFailed, match=r"in\[0\] offset 1 raised SinkRowRefused: Row 1 is odd") as failed:
        cluster.run(application(sink))
    assert "Make it even" in failed.value.action
    assert numbers(sink.rows) == [0]


def test_rows_that_are_refused_without_end_stop_the_worker() -> None:
    class Moody(Table):
        def write(self, batch: SinkBatch) -> None:
            item = next(iter(batch))
            other = SinkItem({"n": -1}, item.key, item.timestamp, item.headers, item.offset)
            raise SinkRowsRefused(batch, [(other, "Row -1 is not welcome.")])

    with pytest.raises(SinkFailed, match="refused rows 21 times in a row, and stored nothing between"):
        cluster_with(3).run(application(Moody(), dead_letter_topic="dead"))


def test_a_sink_is_closed_at_the_end_and_can_be_used_again() -> None:
    class Open(Table):
        closed = 0

        def close(self) -> None:
            self.closed += 1
            raise OSError("already gone")

    cluster, sink = cluster_with(4), Open()
    app = application(sink)
    cluster.run(app)
    cluster.run(app)
    assert (sink.set_up, sink.closed) == (2, 2)
    assert numbers(sink.rows) == [*range(4)]


def test_a_sink_is_told_the_partitions_before_their_results() -> None:
    told: list[Any] = []

    class Told(Table):
        def assigned(self, processor: str, partitions: Any) -> None:
            told.append((processor, *partitions))

    cluster_run(sink := Told())
    assert sorted(told) == [("g", Partition("in", 0)), ("g", Partition("in", 1))]
    assert numbers(sink.rows) == [*range(4)]


def cluster_run(sink: BaseSink) -> None:
    cluster_with(4).run(application(sink))


def test_a_sink_that_fails_stops_the_worker_and_nothing_is_committed() -> None:
    cluster, sink = cluster_with(20), Table(fails=1)
    with pytest.raises(SinkFailed, match="`flush` of sink Table raised OSError: no route") as told:
        cluster.run(application(sink))
    assert "SinkBackpressureError" in told.value.action
    assert cluster.read("out") == []
    cluster.run(application(sink))
    assert numbers(sink.rows) == [*range(20)]
    assert len(cluster.read("out")) == 20


def test_two_steps_with_one_sink_and_results_of_windows() -> None:
    cluster, sink = cluster_with(6, partitions=1), ListSink(metadata=True)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    sdf = app.dataframe(app.topic("in"))
    sdf.sink(sink)
    sdf.tumbling_window(2).count().final("partition").sink(sink)
    cluster.run(app)
    windows = [each for each in sink if "start" in each]
    assert [each["n"] for each in sink if "n" in each] == [*range(6)]
    assert windows
    assert {(each["_topic"], each["_partition"]) for each in windows} == {("in", 0)}
    assert all(isinstance(each["_offset"], int) and each["_offset"] >= 0 for each in sink)


def test_what_is_no_sink_is_refused_and_a_sink_stands_behind_async_calls() -> None:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    sdf = app.dataframe(app.topic("in"))
    with pytest.raises(SinkInvalid, match="expected a sink"):
        sdf.sink(print)  # type: ignore[arg-type]

    async def asked(value: Any) -> Any:
        return value

    sdf.sink(Table())
    sdf.apply_async(asked)
    with pytest.raises(AsyncInvalid):
        app.topology()


def test_a_version_with_a_sink_is_not_proven_on_messages_whose_results_would_reach_the_system() -> None:
    assert application(Table()).topology().prove is False
    app = Application("in-memory", consumer_group="g", loglevel=None)
    app.dataframe(app.topic("in"))
    assert app.topology().prove is True


def test_what_setup_raises_goes_to_its_function() -> None:
    class Away(Table):
        def setup(self) -> None:
            raise OSError("away")

    told: list[Any] = []
    sink = Away()
    with pytest.raises(SinkFailed, match="`start` of sink .*Away raised OSError: away"):
        cluster_with(1).run(application(sink))
    sink._on_client_connect_failure = told.append
    cluster_with(1).run(application(sink))
    assert [type(each) for each in told] == [OSError]


def test_a_resumed_worker_lets_tasks_rest_whose_sink_is_still_busy() -> None:
    """A resume of the operator resumes the inputs of all tasks, also of those that rest."""
    cluster, sink = cluster_with(20), Table(busy=1, retry_after=60)
    app = application(sink)
    flowing: list[bool] = []
    real = SinkPauses.step

    def step(self: SinkPauses, tasks: Any, member: Any, *, flows: bool) -> bool:
        rests = real(self, tasks, member, flows=flows)
        if rests and not flowing:
            inputs = [Partition("in", number) for number in range(2)]
            real(self, tasks, member, flows=False)  # the operator pauses the worker,
            member.resume(inputs)  # and resumes it
            real(self, tasks, member, flows=True)
            flowing.extend(each not in member._paused for each in inputs)
        return rests

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SinkPauses, "step", step)
        cluster.run(app)
    assert flowing == [False, False]
    assert numbers(sink.rows) == [*range(20)]
