"""The order of reading with repartition topics: what is joined with a message is there before it, and nothing stops."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from holdfast import Application
from holdfast.dataframe.windows import Count
from holdfast.infra.kafka.records import Batch, Partition, TopicFacts
from holdfast.processors.engine.runtime import reading_order
from holdfast.processors.engine.runtime.grouped_order import GroupedOrder
from holdfast.processors.engine.runtime.heard import Heard
from holdfast.processors.engine.runtime.watermarks import (
    OLD_ENDS_COUNT_S,
    Grouping,
    Teller,
    Upstream,
    Watermark,
    groupings_of,
)
from holdfast.processors.engine.state.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime

#: A record: its event time, and what a watermark says; None for a message.
Record = tuple[int, Watermark | None]


def message(time_ms: int) -> Record:
    return time_ms, None


def told(task: str, time_ms: int, *, ended: bool = False, at: int = 0) -> Record:
    return at, Watermark(task, time_ms, ended)


@dataclass
class Reading:
    """An order of reading: ``logs`` are whole, and arrive in parts unless they are paused."""

    logs: dict[str, list[Record]]
    tasks: dict[str, frozenset[str]]
    feeders: frozenset[str]
    wait_s: float | None = None
    begun: int = 0
    stream: StreamTime | None = None
    now: float = 0.0
    arrived: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    done: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        heard = {
            topic: Heard(topic, tasks, self.begun, lambda: self.now, self.stream) for topic, tasks in self.tasks.items()
        }
        self.order = GroupedOrder(
            {topic: lambda batch: batch.timestamps for topic in self.logs}, heard, self.feeders, self.wait_s
        )
        self.arrived, self.positions = dict.fromkeys(self.logs, 0), dict.fromkeys(self.logs, 0)

    def arrive(self, topic: str, count: int) -> bool:
        first = self.arrived[topic]
        given = self.logs[topic][first : first + count]
        if not given or topic in self.order.paused:
            return False
        keys: list[bytes | None] = [b"k" if says is None else None for _, says in given]
        values: list[bytes | None] = [b"v" if says is None else msgspec.json.encode(says) for _, says in given]
        offsets = list(range(first, first + len(given)))
        times = [time_ms for time_ms, _ in given]
        batch = Batch(Partition(topic, 0), keys, values, times, offsets, [None] * len(given))
        self.order.add(batch, len(given))
        self.arrived[topic] += len(given)
        return True

    def step(self, most: int = 500) -> bool:
        self.order.look_at_ends(lambda name: len(self.logs[name]))
        runs = self.order.runs(self.positions, most, self.now, lambda name: self.arrived[name] == len(self.logs[name]))
        for run in runs:
            topic = run.batch.partition.topic
            for offset in run.batch.offsets[run.first : run.last]:
                assert offset == self.positions[topic]
                self.positions[topic] = offset + 1
                if self.logs[topic][offset][1] is None:
                    self.done.append((topic, self.logs[topic][offset][0]))
        self.order.change_of_pauses()
        return bool(runs)


def grouped_log(chance: random.Random, times: list[int], tasks: list[str]) -> list[Record]:
    """A repartition topic: each task has its messages in order, and tells its time from time to time."""
    of_task: dict[str, list[int]] = {task: [] for task in tasks}
    for time_ms in times:
        of_task[chance.choice(tasks)].append(time_ms)
    log, wall = list[Record](), 1_000
    while any(of_task.values()):
        task = chance.choice([name for name, left in of_task.items() if left])
        taken, of_task[task] = of_task[task][:5], of_task[task][5:]
        wall += 1
        log += map(message, taken)
        log.append(told(task, taken[-1], ended=not of_task[task], at=wall))
    spoke = {says.task for _, says in log if says is not None}
    return log + [told(task, NO_TIME, ended=True, at=wall) for task in tasks if task not in spoke]


@pytest.mark.parametrize("seed", range(300))
def test_what_a_message_is_joined_with_is_there_before_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(reading_order, "BUFFERED_MAX", chance.choice([4, 12, 10_000]))
    times = {name: sorted(chance.sample(range(400), chance.randrange(70))) for name in ("prices", "rates", "orders")}
    grouped = chance.choice([("prices",), ("orders",), ("prices", "orders"), ("prices", "rates", "orders")])
    tasks = {name: [f"{name}-{number}" for number in range(chance.randint(1, 4))] for name in grouped}
    logs = {
        name: grouped_log(chance, each, tasks[name]) if name in grouped else [message(time_ms) for time_ms in each]
        for name, each in times.items()
    }
    reading = Reading(logs, {name: frozenset(each) for name, each in tasks.items()}, frozenset({"prices", "rates"}))
    names = list(logs)
    while any(reading.positions[name] < len(logs[name]) for name in names):
        moved = reading.arrive(chance.choice(names), chance.randint(1, 20))
        for _ in range(chance.randrange(3)):
            moved |= reading.step(chance.randint(1, 30))
        if chance.random() < 0.05:  # an abort: what is in hand is read again
            reading.order.clear()
            reading.arrived = dict(reading.positions)
        elif not moved:  # whatever can arrive has to bring it on
            moved = reading.step()
            moved |= any([reading.arrive(name, 50) for name in names])  # noqa: C419  each of them
            assert moved or reading.step(), "nothing moves, and nothing can arrive"
    known = {"prices": set[int](), "rates": set[int]()}
    for name, time_ms in reading.done:
        if name in known:
            known[name].add(time_ms)
        else:
            for feeder, seen in known.items():
                assert {each for each in times[feeder] if each <= time_ms} <= seen
    assert sorted(reading.done) == sorted((name, time_ms) for name, each in times.items() for time_ms in each)
    if all(len(each) == 1 for each in tasks.values()) and reading_order.BUFFERED_MAX == 10_000:
        assert reading.done == sorted(reading.done, key=lambda one: (one[1], names.index(one[0])))


TWO, PRICES = {"prices": frozenset({"p-0", "p-1"})}, frozenset({"prices"})


def joined(wait_s: float | None = None) -> Reading:
    log = [message(51), told("p-0", 51), told("p-1", 20), message(30), told("p-1", 60)]
    made = Reading({"prices": log, "orders": [message(50)]}, TWO, PRICES, wait_s)
    made.arrive("orders", 1)
    return made


def test_a_message_waits_for_a_task_that_may_still_send_an_older_one() -> None:
    reading = joined()
    reading.arrive("prices", 3)
    assert not reading.step()
    assert reading.order.awaited_for(now=60.0, seconds=10.0) == ["prices"]
    assert reading.order.held_by(["prices"]) == {"prices": ["p-1"]}
    reading.arrive("prices", 2)
    while reading.step():
        pass
    assert reading.done == [("prices", 51), ("prices", 30), ("orders", 50)]


def test_the_wait_for_a_watermark_has_the_bound_of_max_wait() -> None:
    reading = joined(wait_s=2.0)
    reading.arrive("prices", 3)
    assert not reading.step()
    reading.now = 2.0
    assert reading.step()
    assert reading.done == [("orders", 50), ("prices", 51)]


def test_an_end_that_was_told_before_the_start_counts_later() -> None:
    log = [told("p-0", 40, ended=True), told("p-1", 40, ended=True)]
    reading = Reading({"prices": log, "orders": [message(50)]}, TWO, PRICES, begun=2)
    reading.arrive("orders", 1)
    reading.arrive("prices", 2)
    reading.step()
    assert reading.done == []
    reading.now = OLD_ENDS_COUNT_S
    reading.step()
    assert reading.done == [("orders", 50)]


def test_a_task_that_never_told_anything_holds_for_a_bounded_time() -> None:
    reading = Reading({"prices": [], "orders": [message(50)]}, {"prices": frozenset({"p-0"})}, frozenset({"prices"}))
    reading.arrive("orders", 1)
    assert not reading.step()
    reading.now = OLD_ENDS_COUNT_S
    assert reading.step()


@pytest.mark.parametrize("old", [told("p-0", 40, ended=True, at=9_000), message(51)])
def test_with_a_backlog_neither_an_old_end_nor_silence_counts_before_it_is_read(old: Record) -> None:
    log = [old, message(30), told("p-0", 60), message(70)]
    reading = Reading({"prices": log, "orders": [message(50)]}, {"prices": frozenset({"p-0"})}, PRICES, begun=1)
    reading.now = OLD_ENDS_COUNT_S
    reading.arrive("orders", 1)
    for _ in range(2):
        reading.arrive("prices", 1)
        while reading.step():
            pass
        reading.order.clear()  # an abort
        reading.arrived = dict(reading.positions)
        reading.arrive("orders", 1)
    assert ("orders", 50) not in reading.done
    reading.arrive("prices", 4)
    while reading.step():
        pass
    assert reading.done.index(("prices", 30)) < reading.done.index(("orders", 50))


@pytest.mark.parametrize("stream", [None, StreamTime()])
def test_after_an_abort_silence_counts_when_all_is_read_again(stream: StreamTime | None) -> None:
    log = [message(51), message(30), told("p-0", 60)]
    reading = Reading({"prices": log, "orders": [message(50)]}, {"prices": frozenset({"p-0"})}, PRICES, stream=stream)
    reading.now = OLD_ENDS_COUNT_S
    reading.arrive("prices", 3)
    reading.order.look_at_ends(lambda name: 3)
    reading.order.clear()
    reading.arrived["prices"] = 0
    reading.arrive("orders", 1)
    assert not reading.step()
    reading.arrive("prices", 3)
    while reading.step():
        pass
    assert reading.done == [("prices", 51), ("prices", 30), ("orders", 50)]


def test_what_comes_later_to_a_busy_topic_does_not_put_silence_off() -> None:
    log = [told("p-0", 60), told("p-0", 61), told("p-0", 62), told("p-0", 63)]
    reading = Reading({"prices": log, "orders": [message(50)]}, TWO, PRICES)
    reading.arrive("orders", 1)
    reading.arrive("prices", 1)
    reading.now = OLD_ENDS_COUNT_S
    reading.order.look_at_ends(lambda name: 1)  # nobody asks: that end may be older than the silence
    reading.step()
    assert reading.done == []
    reading.arrive("prices", 1)
    reading.order.look_at_ends(lambda name: 3)
    reading.step()
    assert reading.done == []
    reading.arrive("prices", 1)  # there is more by now
    reading.step()
    assert reading.done == [("orders", 50)]


def test_an_end_counts_as_far_as_the_topic_was_read() -> None:
    log = [told("p-0", 40, ended=True, at=45), message(48), told("p-0", 48, ended=True, at=60)]
    reading = Reading({"prices": log, "orders": [message(50)]}, {"prices": frozenset({"p-0"})}, frozenset({"prices"}))
    reading.arrive("orders", 1)
    reading.arrive("prices", 1)
    assert reading.step()
    assert not reading.done  # the end was told at 45: there may be more behind it
    reading.arrive("prices", 2)
    while reading.step():
        pass
    assert reading.done == [("prices", 48), ("orders", 50)]


def facts(app: Application, partitions: int) -> dict[str, TopicFacts]:
    return {name: TopicFacts(name, "id", partitions, 1, {}) for name in [spec.name for spec in app.topology().inputs]}


def test_a_task_does_not_wait_for_its_own_work() -> None:
    app = Application("in-memory", consumer_group="p", loglevel=None)
    flights = app.dataframe(app.topic("flights"))
    by_carrier = flights.group_by("carrier")
    flights.join_table(by_carrier.to_table("carriers"), on_merge="keep-left").to_topic(app.topic("out"))
    assert [each.ordered for each in groupings_of(app.topology(), facts(app, 3)).values()] == [False]


def test_a_join_of_two_groups_is_in_order_and_a_count_behind_one_is_not() -> None:
    app = Application("in-memory", consumer_group="p", loglevel=None)
    flights, weather = (app.dataframe(app.topic(name)).group_by("airport", name) for name in ("flights", "weather"))
    flights.join_asof(weather).to_topic(app.topic("out"))
    app.dataframe(app.topic("planes")).group_by("maker").aggregate(n=Count()).to_topic(app.topic("makers"))
    made = groupings_of(app.topology(), facts(app, 2))
    assert {name: each.ordered for name, each in made.items()} == {
        "p-flights-repartition": True,
        "p-weather-repartition": True,
        "p-maker-repartition": False,
    }
    assert made["p-maker-repartition"].tasks == {"planes-0", "planes-1"}


MAKERS = "p-maker-repartition"


def upstream_of(told_before: dict[str, tuple[int, bool]], end: int = 0, partitions: int = 2) -> Upstream:
    """What a task behind ``MAKERS`` knows of those before it."""
    app = Application("in-memory", consumer_group="p", loglevel=None)
    app.dataframe(app.topic("planes")).group_by("maker").tumbling_window(1_000).count().final().to_topic(app.topic("o"))
    stream = StreamTime()
    stream.look(10_000)
    made = Upstream(stream, groupings_of(app.topology(), facts(app, partitions)), {MAKERS: end}, 0.0)
    stream.set(0, (), {f"{MAKERS}/{task}": told for task, told in told_before.items()})
    made.begin()
    return made


def watermark(task: str, time_ms: int, *, ended: bool = False) -> bytes:
    return msgspec.json.encode(Watermark(task, time_ms, ended))


def test_a_task_that_is_gone_holds_no_time() -> None:
    upstream = upstream_of({"planes-0": (90, False), "planes-1": (10, False)}, partitions=1)
    upstream.take(MAKERS, 5, watermark("planes-1", 20), 0.0)  # before it went
    assert upstream.time_ms() == 90
    assert not upstream.is_ended()


@pytest.mark.parametrize(("tasks", "told_again"), [(1, True), (12, True), (100, False)])
def test_a_commit_tells_its_time_however_soon_it_comes_but_for_wide_topics(tasks: int, told_again: bool) -> None:
    names = frozenset(f"planes-{number}" for number in range(tasks))
    teller = Teller("planes-0", {MAKERS: Grouping(tasks, names)})
    assert teller.tell(40, 7.0) == watermark("planes-0", 40)
    teller.committed()
    assert (teller.tell(50, 7.0) == watermark("planes-0", 50)) is told_again
    assert teller.tell(60, 12.0) == watermark("planes-0", 60)


def test_an_old_end_counts_when_the_topic_is_read_as_far_as_it_went() -> None:
    upstream = upstream_of({"planes-0": (40, True), "planes-1": (40, True)}, end=8)
    upstream.take(MAKERS, 8, watermark("planes-1", 60), OLD_ENDS_COUNT_S - 1)
    assert upstream.waits(OLD_ENDS_COUNT_S - 1) == []
    upstream.take(MAKERS, 9, watermark("planes-1", 70), OLD_ENDS_COUNT_S)
    assert upstream.waits(OLD_ENDS_COUNT_S) == [MAKERS]
    upstream.look(MAKERS, 10, at_end=False, end=12)
    assert upstream.time_ms() == 40
    upstream.take(MAKERS, 11, watermark("planes-1", 90), OLD_ENDS_COUNT_S)
    assert upstream.time_ms() == 90
    upstream.begin()  # an abort: what is not committed is read again
    assert upstream.time_ms() == 40
    upstream.look(MAKERS, 12, at_end=False, end=20)
    assert upstream.time_ms() == 90


def test_an_old_end_counts_at_the_end_of_the_topic() -> None:
    upstream = upstream_of({"planes-0": (40, True), "planes-1": (60, True)}, end=8)
    assert upstream.waits(OLD_ENDS_COUNT_S) == [MAKERS]
    upstream.look(MAKERS, 8, at_end=False, end=None)
    assert not upstream.is_ended()
    upstream.look(MAKERS, 8, at_end=True, end=None)
    assert upstream.is_ended()
    assert upstream.time_ms() == 60
    assert upstream.waits(OLD_ENDS_COUNT_S) == []


def test_a_message_of_another_input_counts_when_silence_does() -> None:
    upstream = upstream_of({"planes-0": (40, True)})
    upstream.take(MAKERS, 9, watermark("planes-0", 70, ended=True), OLD_ENDS_COUNT_S)
    assert upstream.limit_ms() == NO_TIME
    upstream.look(MAKERS, 10, at_end=True, end=10)
    assert upstream.limit_ms() == EVENT_TIME_END_MS
    assert upstream.time_ms() == NO_TIME  # the task of partition 1 has not told its time
