"""A worker processes records in turns. Messages that wait for asynchronous calls end a turn.

No later message is processed before these messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, Count, InlineProcess, InMemoryCluster, load_settings
from holdfast.infra.kafka.clients.producer import TRANSACTION_S
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run
from holdfast.processors.engine.runtime.reading.turns import in_turn, without_watermarks
from holdfast.processors.engine.runtime.task import awaited
from holdfast.processors.engine.runtime.task.call_schedule import CallSchedule
from holdfast.processors.engine.steps.async_calls import CALLS_WITHIN_MS
from tests.mechanics.tiers import variants

PIECES = 60


async def asked(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "asked": True}


async def row_of(key: Any) -> dict[str, Any]:
    return {"of": key}


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)


def fed(sides: tuple[str, ...], keys: int = 3, partitions: int = 1) -> InMemoryCluster:
    """Feed up to three consecutive messages of a topic at a time, with times that alternate between the topics."""
    cluster, random, at = InMemoryCluster(), Random(7), 0
    for side in sides:
        cluster.create_topic(side, partitions=partitions)
    for number in range(PIECES):
        for side in sides:
            for _ in range(random.randint(1, 3)):
                at += 1
                value = json.dumps({"n": at, "g": f"g{at % keys}"}).encode()
                cluster.produce(side, value, b"k%d" % (number % keys), timestamp_ms=at)
    return cluster


def sent(cluster: InMemoryCluster, topic: str = "out") -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read(topic)]


def numbers(cluster: InMemoryCluster, *topics: str) -> list[int]:
    return sorted(value["n"] for topic in topics for value in sent(cluster, topic))


def by_call(stream: Any, order: str) -> Any:
    return stream.apply_async(asked, concurrency=2, timeout=4, order=order)


def by_durable_call(stream: Any, order: str) -> Any:
    return stream.apply_async(asked, concurrency=2, timeout=4, order=order, durable=True)


def by_lookup(stream: Any, order: str) -> Any:
    return stream.join_lookup(row_of, on="n", concurrency=2, timeout=4, order=order, cache_size=1)


CALLS = variants([by_call, by_lookup, by_durable_call], tested=3)


@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("calls", CALLS)
def test_no_message_of_a_task_with_a_second_input_is_passed_over(calls: Callable[..., Any], order: str) -> None:
    cluster, app = fed(("a", "b")), application()

    def total(value: dict[str, Any], state: Any) -> dict[str, Any]:
        state.set("total", state.get("total", 0) + 1)
        return {**value, "total": state.get("total")}

    out = app.topic("out")
    for side in ("a", "b"):
        stream = app.dataframe(app.topic(side))
        stream = calls(stream, order) if side == "a" else stream
        stream.apply(total, stateful=True, store="totals").to_topic(out)
    cluster.run(app)
    assert numbers(cluster, "out") == numbers(cluster, "a", "b")
    assert [value["n"] for value in sent(cluster)] == sorted(value["n"] for value in sent(cluster))


@pytest.mark.parametrize("calls", CALLS)
def test_messages_with_calls_are_joined_with_the_row_of_their_time(calls: Callable[..., Any]) -> None:
    cluster, app = fed(("l", "r"), keys=1), application()
    table = app.dataframe(app.topic("r")).to_table("rows")
    left = calls(app.dataframe(app.topic("l")), "key")
    left.join_table(table, "left", on_merge=lambda value, row: {"n": value["n"], "row": row and row["n"]}).to_topic(
        app.topic("out")
    )
    cluster.run(app)
    rows = numbers(cluster, "r")
    assert [(value["n"], value["row"]) for value in sent(cluster)] == [
        (number, max((row for row in rows if row < number), default=None)) for number in numbers(cluster, "l")
    ]


@pytest.mark.parametrize("calls", CALLS)
def test_windows_behind_group_by_and_calls_count_every_message(calls: Callable[..., Any]) -> None:
    """Windows behind ``group_by`` and asynchronous calls count every message.

    Watermarks are between the messages. If a watermark were read too early, it would close windows.
    """
    cluster, app = fed(("a",), partitions=2), application(commit_every=7)
    grouped = calls(app.dataframe(app.topic("a")).group_by("g"), "key")
    grouped.tumbling_window(10).agg(n=Count()).final().to_topic(app.topic("out"))
    cluster.run(app)
    last = max(numbers(cluster, "a")) // 10 * 10
    assert sum(each["n"] for each in sent(cluster)) == sum(number < last for number in numbers(cluster, "a"))


class Cut:
    """A task that processes at most this number of records in one call."""

    def __init__(self, most: int) -> None:
        self.positions = {"a": 0, "b": 0}
        self._most = most

    def take(self, run: Run) -> None:
        self.positions[run.batch.partition.topic] = run.batch.offsets[min(run.last, run.first + self._most) - 1] + 1


def batch(topic: str, *keys: bytes | None) -> Batch:
    offsets = [2 * number for number in range(len(keys))]  # markers have the offsets between the records
    return Batch(Partition(topic, 0), list(keys), [b"v"] * len(keys), offsets, offsets)


def test_what_is_left_of_a_run_ends_the_turn() -> None:
    first, second = batch("a", *[b"k"] * 6), batch("b", *[b"k"] * 6)
    runs = [Run(first, 0, 2), Run(second, 0, 3), Run(first, 2, 6)]
    whole, cut = Cut(6), Cut(2)
    given = []
    for run in in_turn(runs, whole):
        whole.take(run)
        given.append(run)
    assert given == runs
    given = []
    for run in in_turn(runs, cut):
        cut.take(run)
        given.append(run)
    assert given == runs[:2]
    assert cut.positions == {"a": 3, "b": 3}
    woven = InterleavedRun((Run(first, 0, 2), Run(second, 0, 3)), [0, 2, 1, 3, 4])
    assert not woven.is_taken(cut.positions)
    assert woven.is_taken(whole.positions)


def test_a_watermark_is_a_run_of_its_own() -> None:
    of = batch("a", b"k", None, None, b"k", b"k")
    assert [run[1:] for run in without_watermarks(of, 0, 5)] == [(0, 1), (1, 2), (2, 3), (3, 5)]
    assert [run[1:] for run in without_watermarks(of, 2, 4)] == [(2, 3), (3, 4)]


@pytest.mark.parametrize("seed", variants(range(200), tested=20))
def test_calls_that_are_placed_are_over_in_as_many_timeouts_as_there_are_rounds(seed: int) -> None:
    random = Random(seed)
    width, rounds, keys = random.randint(1, 8), random.randint(1, 10), random.randint(1, 12)
    schedule = CallSchedule(width, rounds, by_key=True)
    lanes, of_key, over, placed = dict[int, list[int]](), dict[bytes, list[int]](), dict[int, float](), list[Any]()
    while True:
        key = b"%d" % random.randrange(keys)
        place = schedule.place(key)
        if place is None:
            break
        assert place.after == (of_key[key][-1] if key in of_key else None)
        of_key.setdefault(key, []).append(len(placed))
        placed.append(place)
    assert len(placed) >= 1
    for number in sorted(range(len(placed)), key=lambda each: placed[each].round):
        place = placed[number]
        before = [over[each] for each in lanes.get(place.lane, [])] + (
            [] if place.after is None else [over[place.after]]
        )
        over[number] = max(before, default=0.0) + random.uniform(0.5, 1.0)
        lanes.setdefault(place.lane, []).append(number)
    assert len(lanes) <= width
    assert max(over.values()) <= rounds


class Timed(InlineProcess):
    """A worker that measures how long its transactions are open. The test sends messages at given times."""

    def __init__(self, cluster: InMemoryCluster, messages: list[tuple[float, str]]) -> None:
        super().__init__(cluster.clock)
        self._cluster, self._messages, self._start = cluster, messages, cluster.clock.monotonic()
        self._began: float | None = None
        self.longest_s = 0.0

    def point(self, name: str) -> None:
        now = self._clock.monotonic()
        if name == "produce:before" and self._began is None:
            self._began = now
        elif name == "commit:sent" and self._began is not None:
            self.longest_s, self._began = max(self.longest_s, now - self._began), None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        while self._messages and self._clock.monotonic() - self._start >= self._messages[0][0]:
            at, topic = self._messages.pop(0)
            self._cluster.produce(topic, json.dumps({"n": at}).encode(), b"k")


@pytest.mark.parametrize("late_s", [1.0, 4.0, 9.0])
def test_calls_begin_in_no_transaction_that_would_be_too_old_behind_them(tmp_path: Path, late_s: float) -> None:
    """Calls are delayed until the next transaction if the open one would become too old.

    The longest commit interval and the longest call together would keep a transaction open for 19 s. Kafka aborts a
    transaction after 15 s.
    """
    cluster = InMemoryCluster()
    for topic in ("plain", "called"):
        cluster.create_topic(topic)

    async def slow(value: Any) -> Any:
        cluster.advance(9.9)
        return value

    app = application(commit_interval=10)
    app.dataframe(app.topic("plain")).to_topic(app.topic("out"))
    app.dataframe(app.topic("called")).apply_async(slow, timeout=10).to_topic(app.topic("out"))
    process = Timed(cluster, [(1.0, "plain"), (1.0 + late_s, "called")])
    app.run_on(cluster.connect(process), load_settings(home=tmp_path), timeout=15.0)
    assert numbers(cluster, "out") == [1.0, 1.0 + late_s]
    assert late_s / 2 < process.longest_s <= TRANSACTION_S


class Jumping(asyncio.SelectorEventLoop):
    """An event loop that does not wait. Its time jumps forward instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> Any:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]
        #: The duration of each run of the loop, in seconds.
        self.took: list[float] = []

    def time(self) -> float:
        return self.now

    def run_until_complete(self, future: Any) -> Any:
        began = self.now
        try:
            return super().run_until_complete(future)
        finally:
            self.took.append(self.now - began)


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("order", ["key", "none"])
def test_calls_that_are_begun_together_are_over_in_time_though_each_takes_its_own(
    order: str, calls: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many calls that start together end within the time limit, for many keys and for many messages of one key.

    The engine limits the rounds of calls (calls of one key run in turn) and the messages. With one limit alone,
    the calls would take twice as long.
    """
    loop = Jumping()
    monkeypatch.setattr(awaited, "_loop", lambda: loop)

    async def slow(value: Any) -> dict[str, Any]:
        await asyncio.sleep(0.98)
        return {"n": value["n"] if isinstance(value, dict) else value}

    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in range(300):
        key = b"k%d" % number if number % 100 < 90 else b"one"
        cluster.produce("in", json.dumps({"n": number}).encode(), key, timestamp_ms=number + 1)
    app = application()
    stream = app.dataframe(app.topic("in"))
    if calls is by_call:
        stream = stream.apply_async(slow, concurrency=16, timeout=1, order=order)
    else:
        stream = stream.join_lookup(slow, {"m": "n"}, on="n", concurrency=16, timeout=1, order=order)
    stream.to_topic(app.topic("out"))
    cluster.run(app)
    loop.close()
    assert numbers(cluster, "out") == list(range(300))
    assert max(loop.took) <= CALLS_WITHIN_MS / 1000
    assert len(loop.took) < 60  # many calls are still waiting at the same time
