"""Columns and the plain loop give the same bytes in every task that can use columns, whatever other input it reads.

``conftest.py`` switches columns on for small batches in all tests of this folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Count, Last, Mean, Min, Sum
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.task import columns, task
from holdfast.processors.engine.runtime.task.columns import ColumnarStream
from holdfast.processors.engine.runtime.task.timed_steps import time_of
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import StreamTime
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants

#: Adds steps to an application whose topics are ``l`` and ``r``.
Topology = Callable[[Application, Any, Any], None]


def merged(left: Any, right: Any) -> Any:
    return [left, right]


def by_group(frame: Any) -> Any:
    return frame.group_by("k", "by-k")


def windowed(frame: Any, **options: Any) -> Any:
    return frame.tumbling_window(100, 30, "w", **options).agg(n=Count(), total=Sum("v"), mean=Mean("v"))


def latest(value: Any, state: Any) -> Any:
    """Stores a value that expires, and reports whether there was one."""
    there = state.exists("seen")
    state.set("seen", 1)
    return {**value, "there": there}


def alone_aggregation(app: Application, left: Any, right: Any) -> None:
    left.aggregate({"n": Count(), "last": Last("u"), "least": Min("v")}, store="s").to_topic(app.topic("out"))


def alone_current(app: Application, left: Any, right: Any) -> None:
    windowed(left).current("partition").to_topic(app.topic("out"))


def hopping(app: Application, left: Any, right: Any) -> None:
    made = left.hopping_window(100, 30, 40, "w").agg(n=Count(), last=Last("u")).final("partition")
    made.to_topic(app.topic("out"))


def beside_a_grouped_table(app: Application, left: Any, right: Any) -> None:
    table = by_group(right).to_table("rows")
    windowed(left).final("partition").join_table(table, "left", merged).to_topic(app.topic("out"))


def beside_a_grouped_right_side(app: Application, left: Any, right: Any) -> None:
    final = windowed(left).final("partition")
    final.join_asof(by_group(right), "left", merged, name="asof").to_topic(app.topic("out"))


def beside_a_grouped_interval(app: Application, left: Any, right: Any) -> None:
    final = windowed(left).final("partition")
    joined = final.join_interval(by_group(right), "inner", merged, 1_000, "near", 60, 130)
    joined.to_topic(app.topic("out"))


def beside_two_groups(app: Application, left: Any, right: Any) -> None:
    table = by_group(right).to_table("rows")
    count = right.group_by("u", "by-u").tumbling_window(100, 30, "others").count().final()
    count.join_table(table, "left", merged).to_topic(app.topic("others"))
    windowed(left).final("partition").join_table(table, "left", merged).to_topic(app.topic("out"))


def beside_values_that_end(app: Application, left: Any, right: Any) -> None:
    app.store("seen", ttl=timedelta(milliseconds=120))
    ending = by_group(right).apply(latest, stateful=True, store="seen")
    ending.to_topic(app.topic("others"))
    final = windowed(left).final("partition").apply(latest, stateful=True, store="seen")
    final.to_topic(app.topic("out"))


def beside_another_input(app: Application, left: Any, right: Any) -> None:
    windowed(left).final("partition").join_table(right.to_table("rows"), "left", merged).to_topic(app.topic("out"))


def columns_before_a_window(app: Application, left: Any, right: Any) -> None:
    kept = left[(left["v"] > 0) & left["u"].isin(["x", "y"])]
    kept["v"] = kept["v"] * 3 + 0.5
    windowed(kept).final("partition").to_topic(app.topic("out"))


def columns_before_an_aggregation(app: Application, left: Any, right: Any) -> None:
    left["w"] = left["v"] - 1
    kept = left[["w", "k"]][~(left["w"] == 0)]
    kept.aggregate({"n": Count(), "total": Sum("w")}, store="s").to_topic(app.topic("out"))


def an_aggregation_of_two_streams(app: Application, left: Any, right: Any) -> None:
    left.concat(right).aggregate({"n": Count(), "total": Sum("v")}, store="s").to_topic(app.topic("out"))


def an_aggregation_of_a_stream_and_a_part_of_another(app: Application, left: Any, right: Any) -> None:
    part = right.filter(lambda value: value["u"] != "x")
    left.concat(part).aggregate({"n": Count(), "total": Sum("v")}, store="s").to_topic(app.topic("out"))


def a_window_of_two_streams(app: Application, left: Any, right: Any) -> None:
    windowed(left.concat(right)).final("partition").to_topic(app.topic("out"))


def a_current_window_of_two_streams(app: Application, left: Any, right: Any) -> None:
    windowed(left.concat(right)).current("partition").to_topic(app.topic("out"))


def a_window_of_a_stream_and_of_groups(app: Application, left: Any, right: Any) -> None:
    windowed(left.concat(by_group(right))).final("partition").to_topic(app.topic("out"))


TOPOLOGIES: list[Topology] = [
    alone_aggregation,
    alone_current,
    hopping,
    columns_before_a_window,
    columns_before_an_aggregation,
    beside_a_grouped_table,
    beside_a_grouped_right_side,
    beside_a_grouped_interval,
    beside_two_groups,
    beside_values_that_end,
    beside_another_input,
    an_aggregation_of_two_streams,
    an_aggregation_of_a_stream_and_a_part_of_another,
    a_window_of_two_streams,
    a_current_window_of_two_streams,
    a_window_of_a_stream_and_of_groups,
]
#: Topologies in which two streams lead to one step. They run without columns, because each stream would keep its own
#: copy of the step's rows.
CONCATENATED = TOPOLOGIES[-5:]
#: Topologies that run without columns. In the last one, this is because each of two windows closes between messages of
#: the other window.
WITHOUT_COLUMNS = [*CONCATENATED, beside_two_groups]


def messages(random: Random, now_ms: int) -> list[tuple[str, bytes, bytes, int]]:
    """Messages of both topics, slightly out of order. Some have times near the worker's clock or ahead of it."""
    made = []
    for number in range(400):
        at = now_ms - 100_000 + 3 * number - random.choice([0, 0, 0, 20, 60])
        if random.random() < 0.03:
            at = now_ms + random.randint(-500, 3_000)
        key, topic = f"k{random.randrange(6)}", random.choice("llr")
        value = {"k": f"k{random.randrange(6)}", "u": random.choice("xyz"), "v": random.choice([1, 2.5, -0.0, 7])}
        made.append((topic, json.dumps(value).encode(), key.encode(), at))
    return made


def run(topology: Topology, seed: int, folder: Path) -> dict[str, Any]:
    """The results of a run on the messages of a seed: outputs, dead letters and state."""
    random = Random(seed)
    commit_every = random.choice([0, 7, 60])

    def application() -> Application:
        app = Application(
            "in-memory",
            consumer_group="g",
            auto_offset_reset="earliest",
            loglevel=None,
            state_dir=folder,
            commit_every=commit_every,
        )
        topology(app, app.dataframe(app.topic("l")), app.dataframe(app.topic("r")))
        return app

    cluster = InMemoryCluster()
    for topic in ("l", "r", "out", "others"):
        cluster.create_topic(topic, 2)
    sent = messages(random, int(cluster.clock.time() * 1000))
    for first, last in ((0, 250), (250, 400)):
        for topic, value, key, at in sent[first:last]:
            cluster.produce(topic, value, key, timestamp_ms=at)
        cluster.run(application())
    stores = [store.name for store in application().topology().stores]
    read = {topic: cluster.read(topic) for topic in ("out", "others")}
    found: dict[str, Any] = {
        topic: [(partition, r.key, r.value, r.timestamp_ms, r.headers) for partition, r in records]
        for topic, records in read.items()
    }
    for name in stores:
        found[name] = dict(cluster.state(application(), name))
    return found


def both(topology: Topology, seed: int, folder: Path) -> int:
    """Compare the bytes of a run on columns with those of a run on the plain loop.

    Returns the number of messages that were processed on columns.
    """
    counted = [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "RUN_MIN", (1, 2, 5)[seed % 3])
        patch.setattr(columns, "REST_MAX", 0)  # try columns for each slice, even after columns failed
        take = ColumnarStream.take

        def taken(self: ColumnarStream, batch: Any, first: int, last: int) -> bool:
            done = take(self, batch, first, last)
            counted[0] += (last - first) * done
            return done

        patch.setattr(ColumnarStream, "take", taken)
        by_columns = run(topology, seed, folder / "columns")
        patch.setattr(task, "columnar_stream", lambda *_: None)
        one_by_one = run(topology, seed, folder / "plain")
    for what, seen in one_by_one.items():
        assert by_columns[what] == seen, what
    assert one_by_one["out"]
    return counted[0]


@pytest.mark.parametrize("seed", variants(range(12), tested=1))
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda each: each.__name__)
def test_columns_and_the_plain_loop_leave_the_same(topology: Topology, seed: int, tmp_path: Path) -> None:
    taken = both(topology, seed, tmp_path)
    assert (taken > 0) is (topology not in WITHOUT_COLUMNS)


def test_a_result_is_held_back_until_the_tasks_before_are_there() -> None:
    """`suppress` holds results back until all tasks before a repartition topic have reached their time.

    A message that is newer than stream time must not release the held result of its key.
    """
    app = Application("in-memory", consumer_group="g", loglevel=None)
    frame = app.dataframe(app.topic("l"))
    windowed(frame).current("partition").suppress(every=100)
    states = {"w": StoreState("w", TaskStore(MemoryDatabases(lambda path, items: None), Path("unused")))}
    time = time_of([frame], states, {}, RecordTimes())
    assert time is not None
    time.stream.look(10_000)
    time.stream.let_go_to(50)
    held = time.held["w"]

    def sent(at: int) -> int:
        states["w"].point_at(b"k", at)
        found = held.take({"v": 1}, "k", b"k", at)
        time.stream.advance(at)
        return len(found)

    assert [sent(at) for at in (10, 20, 150)] == [1, 0, 0]
    assert held.closing(9) == []
    time.stream.let_go_to(200)
    assert [closing.result["n"] for closing in held.closing(9) if closing.result] == [1]


def counts_what_the_tasks_before_have_not_reached(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: columns use the worker's clock before the tasks that write to the topic have reached it."""
    original = ColumnarStream.take

    def by_the_clock(self: ColumnarStream, batch: Any, first: int, last: int) -> bool:
        stream: StreamTime | None = getattr(getattr(self, "_columns", None), "_stream", None)
        if stream is None:
            return original(self, batch, first, last)
        reach_ms, stream.reach_ms = stream.reach_ms, stream.cap_ms
        try:
            return original(self, batch, first, last)
        finally:
            stream.reach_ms = reach_ms

    patch.setattr(ColumnarStream, "take", by_the_clock)


def gives_each_stream_rows_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: two streams share one aggregation, but each stream keeps its own rows.

    A stream then does not see the rows of the other stream.
    """
    original = task.columnar_stream
    patch.setattr(task, "columnar_stream", lambda frame, frames, *limits: original(frame, [frame], *limits))


@pytest.mark.parametrize(
    ("plant", "topology"),
    [
        (counts_what_the_tasks_before_have_not_reached, beside_a_grouped_table),
        (gives_each_stream_rows_of_its_own, an_aggregation_of_two_streams),
    ],
)
def test_a_planted_bug_shows(plant: Callable[[pytest.MonkeyPatch], None], topology: Topology, tmp_path: Path) -> None:
    assert is_found(plant, partial(both, topology), tmp_path)
