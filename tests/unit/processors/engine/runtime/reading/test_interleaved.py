"""A task reads several inputs in one loop. The results equal those of a task that reads one input after the other."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, State
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run
from holdfast.processors.engine.runtime.reading.reading_order import ReadingOrder
from holdfast.processors.engine.runtime.task.task import Task
from tests.mechanics.tiers import variants

NEVER = 10**9
INPUTS = ("prices", "weather", "orders")


def seen(value: Any, state: State) -> Any:
    """Counts the values of a key, and then fails for some of them. The count of a failed message is undone."""
    count = state.increment("seen")
    if value.get("fails"):
        raise ValueError(f"as asked, at {count}")
    return {**value, "seen": count}


def build() -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", dead_letter_topic="dead")
    prices, weather, orders = (app.dataframe(app.topic(name)) for name in INPUTS)
    joined = orders.apply(seen, stateful=True).join_table(prices.to_table("prices"), how="left", on_merge="keep-left")
    joined.join_asof(weather, how="left", on_merge=lambda left, right: {**left, "weather": right}).to_topic(
        app.topic("out")
    )
    weather.filter(lambda value: value["n"] % 3 == 0).to_topic(app.topic("out"))
    weather.apply(seen, stateful=True).to_topic(app.topic("out"))
    return app


def filled(seed: int) -> InMemoryCluster:
    chance = random.Random(seed)
    cluster = InMemoryCluster()
    for topic in (*INPUTS, "out", "dead"):
        cluster.create_topic(topic)
    at = int(cluster.clock.time() * 1000) - 7_200_000
    for number in range(chance.randint(30, 400)):
        at += chance.randint(-3, 6)
        value = {"n": number, **({"fails": True} if chance.random() < 0.04 else {})}
        raw = b"{" if chance.random() < 0.005 else json.dumps(value).encode()
        key = None if chance.random() < 0.01 else b"k%d" % chance.randrange(5)
        headers = [("h", b"%d" % number)] if chance.random() < 0.1 else None
        cluster.produce(chance.choice(INPUTS), raw, key, timestamp_ms=at, headers=headers)
    return cluster


def results(cluster: InMemoryCluster) -> list[list[Any]]:
    found = []
    for topic in ("out", "dead"):
        records = [record for _, record in cluster.read(topic)]
        found.append([(each.key, each.value, each.timestamp_ms, each.headers) for each in records])
    return found


@pytest.mark.parametrize("seed", variants(range(40), tested=15))
def test_woven_records_give_what_runs_give(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[type] = []
    take = Task.take

    def counted(self: Task, records: Run | InterleavedRun, on_failure: Any) -> int:
        taken.append(type(records))
        return take(self, records, on_failure)

    monkeypatch.setattr(Task, "take", counted)
    woven, in_runs = filled(seed), filled(seed)
    woven.run(build())
    assert InterleavedRun in taken
    monkeypatch.setattr(reading_order, "WOVEN_MIN", NEVER)
    taken.clear()
    in_runs.run(build())
    assert set(taken) == {Run}
    assert results(woven) == results(in_runs)
    assert results(woven)[0]


def batch(topic: str, times: list[int]) -> Batch:
    count = len(times)
    return Batch(Partition(topic, 0), [b"k"] * count, [b"v"] * count, times, list(range(5, 5 + count)), [None] * count)


def woven_of(left: list[int], right: list[int], most: int = 100) -> InterleavedRun:
    order = ReadingOrder({topic: lambda batch: batch.timestamps for topic in ("left", "right")}, weaves=True)
    order.add(batch("left", left), len(left))
    order.add(batch("right", right), len(right))
    (made,) = order.runs({"left": 0, "right": 0}, most, 0.0, lambda topic: False)
    assert isinstance(made, InterleavedRun)
    return made


def test_the_offsets_behind_a_part_of_woven_records_are_those_of_each_input() -> None:
    woven = woven_of([1, 4, 5], [2, 3, 6])
    runs = [(run.batch.partition.topic, run.first, run.last) for run in woven.runs()]
    # the right record at 6 must wait, because the next left record may be older
    assert runs == [("left", 0, 1), ("right", 0, 2), ("left", 1, 3)]
    assert woven.behind(0) == woven.behind(-1) == {}
    assert woven.behind(1) == {"left": 6}
    assert woven.behind(3) == {"left": 6, "right": 7}
    assert woven.behind(5) == {"left": 8, "right": 7}
    assert [woven.place(at)[1] for at in range(5)] == [0, 0, 1, 1, 2]
    assert [woven.place(at)[0].partition.topic for at in (0, 1)] == ["left", "right"]
    assert woven.newest(1) == 3


def test_a_record_with_an_earlier_time_stays_behind_the_one_before_it() -> None:
    woven = woven_of([5, 1, 9], [4, 5, 6])
    places = [(woven.place(at)[0].partition.topic, woven.place(at)[1]) for at in range(woven.size)]
    assert places == [("right", 0), ("left", 0), ("left", 1), ("right", 1), ("right", 2)]


def test_an_input_with_many_records_before_the_next_one_of_others_is_given_as_a_run() -> None:
    order = ReadingOrder({topic: lambda batch: batch.timestamps for topic in ("left", "right")}, weaves=True)
    order.add(batch("left", list(range(50))), 50)
    order.add(batch("right", [90]), 1)
    assert [(run.first, run.last) for run in order.runs({"left": 0, "right": 0}, 20, 0.0, lambda topic: True)] == [  # type: ignore[union-attr]
        (0, 10)
    ]


def test_more_inputs_than_records_that_may_be_taken_are_taken_in_runs() -> None:
    names = [f"t{number}" for number in range(reading_order.WOVEN_MIN + 1)]
    order = ReadingOrder(dict.fromkeys(names, lambda batch: batch.timestamps), weaves=True)
    for at, name in enumerate(names):
        order.add(Batch(Partition(name, 0), [b"k"], [b"1"], [at], [0], [None]), 1)
    runs = order.runs(dict.fromkeys(names, 0), reading_order.WOVEN_MIN, 0.0, lambda topic: True)
    assert [each.batch.partition.topic for each in runs if isinstance(each, Run)] == names[:1]
