"""The order in which a task reads repartition topics.

A joined row is read before the message that needs it, and no input waits forever.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.runtime.reading.grouped_order import GroupedOrder
from holdfast.processors.engine.runtime.reading.upstream_times import NEVER, WatermarksAhead
from holdfast.processors.engine.runtime.reading.watermarks import IDLE_S, REPEAT_S, Watermark
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime

#: A record: its event time and its watermark. The watermark is None for a message.
Record = tuple[int, Watermark | None]


def message(time_ms: int) -> Record:
    return time_ms, None


def told(task: str, time_ms: int, *, idle_ms: int | None = None, stretch: int = 1) -> Record:
    """Return a record with a watermark of a task.

    ``idle_ms`` is the time for which the task has been at the end of its input.
    """
    return 0, word(task, time_ms, idle_ms, stretch)


def word(task: str, time_ms: int, idle_ms: int | None = None, stretch: int = 1) -> Watermark:
    if idle_ms is None:
        return Watermark(task, time_ms, False)
    return Watermark(task, time_ms, True, idle_ms, stretch)


#: The idle times in the consecutive watermarks that a task writes while its input has no messages.
IDLE = [int(number * REPEAT_S * 1000) for number in range(1, 8)]


@dataclass
class Reading:
    """An order of reading over complete ``logs``. The records of a log arrive in pieces, unless the log is paused."""

    logs: dict[str, list[Record]]
    tasks: dict[str, frozenset[str]]
    rights: dict[str, frozenset[str]]
    wait_s: float | None = None
    stream: StreamTime | None = None
    now: float = 0.0
    arrived: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    done: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        heard = {topic: WatermarksAhead(topic, tasks, self.stream) for topic, tasks in self.tasks.items()}
        self.order = GroupedOrder(
            {topic: lambda batch: batch.timestamps for topic in self.logs}, heard, self.rights, self.wait_s
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
        for name, heard in self.order.heard.items():
            if heard.wants_end(self.order.newest_ms):
                heard.mark(len(self.logs[name]), self.order.newest_ms)
        runs = self.order.runs(self.positions, most, self.now, lambda name: self.arrived[name] == len(self.logs[name]))
        if self.wait_s is None:
            came = max((time_ms for name, time_ms in self.done if name not in self.tasks), default=NO_TIME)
            in_hand, oldest = self.order.in_hand, min(self.left(), default=NEVER)
            assert min(came, in_hand.order_ms, in_hand.grouped_ms) <= oldest
            assert in_hand.all_ms <= oldest
        for run in runs:
            topic = run.batch.partition.topic
            for offset in run.batch.offsets[run.first : run.last]:
                assert offset == self.positions[topic]
                self.positions[topic] = offset + 1
                if self.logs[topic][offset][1] is None:
                    self.done.append((topic, self.logs[topic][offset][0]))
        self.order.change_of_pauses()
        return bool(runs)

    def left(self) -> list[int]:
        """The times of messages that are not processed yet, for a check of the order.

        A source has one time, that of its next message, or none at its end. A grouped stream has the times of all
        arrived messages.
        """
        found = list[Record]()
        for name, log in self.logs.items():
            at = self.positions[name]
            found += log[at : self.arrived[name]] if name in self.tasks else log[at : at + 1]
        return [time_ms for time_ms, says in found if says is None]


def grouped_log(chance: random.Random, times: list[int], tasks: list[str]) -> list[Record]:
    """Build a repartition topic. Each task writes its messages in order, and a watermark after every few messages."""
    of_task: dict[str, list[int]] = {task: [] for task in tasks}
    for time_ms in times:
        of_task[chance.choice(tasks)].append(time_ms)
    log = list[Record]()
    while any(of_task.values()):
        task = chance.choice([name for name, left in of_task.items() if left])
        taken, of_task[task] = of_task[task][:5], of_task[task][5:]
        log += map(message, taken)
        log.append(told(task, taken[-1]))
    return log


#: For each stream of a topology, the streams with which it is joined. The four topologies are: two joins, a chain, a
#: chain with a direct join, and a circle.
RIGHTS: list[dict[str, frozenset[str]]] = [
    {"orders": frozenset({"prices", "rates"})},
    {"orders": frozenset({"prices"}), "prices": frozenset({"rates"})},
    {"orders": frozenset({"prices", "rates"}), "prices": frozenset({"rates"})},
    {"orders": frozenset({"prices"}), "prices": frozenset({"rates"}), "rates": frozenset({"prices"})},
]
CIRCLE = RIGHTS[-1]


@pytest.mark.parametrize("seed", range(300))
def test_what_a_message_is_joined_with_is_there_before_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    rights = chance.choice(RIGHTS)
    monkeypatch.setattr(reading_order, "BUFFERED_MAX", chance.choice([4, 12, 10_000]))
    times = {name: sorted(chance.sample(range(400), chance.randrange(70))) for name in ("rates", "prices", "orders")}
    grouped = chance.choice([("prices",), ("orders",), ("prices", "orders"), ("prices", "rates", "orders")])
    tasks = {name: [f"{name}-{number}" for number in range(chance.randint(1, 4))] for name in grouped}
    logs = {
        name: grouped_log(chance, each, tasks[name]) if name in grouped else [message(time_ms) for time_ms in each]
        for name, each in times.items()
    }
    reading = Reading(logs, {name: frozenset(each) for name, each in tasks.items()}, rights)
    names, silences = list(logs), 0
    while any(reading.positions[name] < len(logs[name]) for name in names):
        moved = reading.arrive(chance.choice(names), chance.randint(1, 20))
        for _ in range(chance.randrange(3)):
            moved |= reading.step(chance.randint(1, 30))
        if chance.random() < 0.05:  # simulate an abort: messages that have already arrived are read again
            reading.order.clear()
            reading.arrived = dict(reading.positions)
        # If no message arrived and none was processed, let all records arrive. If still no message can be processed,
        # idle tasks write watermarks, after which one must be processed.
        elif not moved:
            moved = reading.step()
            moved |= any([reading.arrive(name, 50) for name in names])  # noqa: C419  each of them
            if not moved and not reading.step():
                assert silences < SILENCES_MAX, "nothing moves, and words of silence don't help"
                silences += 1
                for name in grouped:
                    logs[name] += [told(task, NO_TIME, idle_ms=silences * IDLE[0]) for task in tasks[name]]
    known = {name: set[int]() for name in names}
    for name, time_ms in reading.done:
        known[name].add(time_ms)
        for right in rights.get(name, frozenset()):
            in_circle = name in rights.get(right, frozenset())
            assert in_circle or {each for each in times[right] if each <= time_ms} <= known[right]
    assert sorted(reading.done) == sorted((name, time_ms) for name, each in times.items() for time_ms in each)
    if all(len(each) == 1 for each in tasks.values()) and reading_order.BUFFERED_MAX == 10_000:
        assert reading.done == sorted(reading.done, key=lambda one: (one[1], names.index(one[0])))


#: Maximum number of idle watermarks for each task in a test. If all records were read and a message still waits, the
#: test sends idle watermarks until they cover more than ``IDLE_S``.
SILENCES_MAX = 200
TWO, PRICES = {"prices": frozenset({"p-0", "p-1"})}, {"orders": frozenset({"prices"})}


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


CHAIN = {"alerts": frozenset({"flights"}), "flights": frozenset({"weather"})}


def all_read(times: dict[str, list[int]], rights: dict[str, frozenset[str]]) -> Reading:
    """Repartition topics that have arrived completely.

    Each topic has one task, whose last watermark releases all messages.
    """
    logs = {name: [*map(message, each), told("p-0", 99)] for name, each in times.items()}
    reading = Reading(logs, dict.fromkeys(times, frozenset({"p-0"})), rights)
    for name in logs:
        reading.arrive(name, 9)
    while reading.step():
        pass
    return reading


def test_a_left_side_that_others_are_joined_with_waits_for_its_own_right_side() -> None:
    reading = all_read({"flights": [50, 40], "weather": [45, 41], "alerts": [52, 42]}, CHAIN)
    names = ["weather", "weather", "flights", "flights", "alerts", "alerts"]
    assert reading.done == list(zip(names, [45, 41, 50, 40, 52, 42], strict=True))


def test_a_right_side_goes_no_further_than_the_left_message_needs() -> None:
    reading = all_read({"weather": [45, 41, 60, 70], "flights": [50, 42, 65]}, {"flights": frozenset({"weather"})})
    assert [time_ms for _, time_ms in reading.done] == [45, 41, 50, 42, 60, 65, 70]


def test_streams_that_are_not_joined_go_no_further_than_they_have_to() -> None:
    reading = all_read({"flights": [50, 30, 60, 70], "weather": [40, 65]}, {})
    assert [time_ms for _, time_ms in reading.done] == [50, 30, 40, 60, 65, 70]


def test_in_a_circle_the_smallest_head_goes() -> None:
    circle = {"flights": frozenset({"weather"}), "weather": frozenset({"flights"}), "alerts": frozenset({"flights"})}
    reading = all_read({"alerts": [53, 20], "flights": [51, 30], "weather": [60, 40]}, circle)
    names = ["flights", "flights", "alerts", "alerts", "weather", "weather"]
    assert reading.done == list(zip(names, [51, 30, 53, 20, 60, 40], strict=True))


def test_the_wait_for_a_watermark_has_the_bound_of_max_wait() -> None:
    reading = joined(wait_s=2.0)
    reading.arrive("prices", 3)
    assert not reading.step()
    reading.now = 2.0
    assert reading.step()
    assert reading.done == [("orders", 50), ("prices", 51)]


def test_it_says_who_holds_a_message_while_a_source_is_waited_for_as_well() -> None:
    reading = Reading({"prices": [], "rates": [message(60)], "orders": [message(50)]}, ONE, {})
    reading.arrive("orders", 1)
    reading.step()
    assert reading.order.held_by(["prices", "rates"]) == {"prices": ["p-0"]}
    reading.logs["prices"].append(told("p-0", 40))
    reading.arrive("prices", 1)
    reading.step()
    assert reading.order.held_by(["prices", "rates"]) == {"prices": ["p-0"]}


ONE = {"prices": frozenset({"p-0"})}


def test_what_a_source_brings_next_bounds_the_time_that_words_tell() -> None:
    reading = Reading({"prices": [told("p-0", 60)], "orders": [message(50), message(70)]}, ONE, PRICES)
    # the time is unknown until the reading order has looked at the inputs for the first time
    assert reading.order.in_hand.all_ms < 0
    reading.arrive("prices", 1)
    reading.arrive("orders", 1)
    while reading.step():
        pass
    assert reading.done == [("orders", 50)]
    assert reading.order.in_hand.all_ms < 0  # the next message may be older than all buffered messages
    reading.arrive("orders", 1)
    reading.step()
    assert reading.order.in_hand.all_ms == 70
    reading.order.clear()
    assert reading.order.in_hand.all_ms < 0
    reading.arrived["orders"] = 1
    reading.step()
    assert reading.order.in_hand.all_ms < 0
    reading.arrived["orders"] = reading.positions["orders"] = 2
    reading.step()
    assert reading.order.in_hand.all_ms > 70  # a source at its end delays no other input


def test_a_source_that_is_not_waited_for_any_longer_bounds_nothing() -> None:
    reading = Reading({"prices": [told("p-0", 60)], "orders": [message(50)]}, ONE, PRICES, wait_s=2.0)
    reading.arrive("prices", 1)
    reading.step()
    assert reading.order.in_hand.all_ms < 0
    reading.now = 2.0
    reading.step()
    assert reading.order.in_hand.all_ms > 60


def silent(*words: Record) -> Reading:
    """An order of reading in which a message of the topic ``orders`` waits for the only task that writes to ``prices``.

    ``words`` are the watermarks that this task writes.
    """
    made = Reading({"prices": list(words), "orders": [message(50)]}, ONE, PRICES)
    made.arrive("orders", 1)
    made.step()
    return made


def test_a_task_at_its_end_holds_until_it_has_been_there_for_a_while() -> None:
    reading = silent()
    for idle_ms in IDLE:
        reading.logs["prices"].append(told("p-0", 40, idle_ms=idle_ms))
        reading.arrive("prices", 1)
        reading.step()
        # The wait starts at the second watermark. The first one may have been computed before the message was written.
        assert (("orders", 50) in reading.done) is (idle_ms >= IDLE[1] + IDLE_S * 1000)
    assert reading.done == [("orders", 50)]


def test_a_task_that_says_nothing_any_more_holds_for_good() -> None:
    reading = silent(told("p-0", 40, idle_ms=5_000), told("p-0", 40, idle_ms=9_000))
    reading.arrive("prices", 2)
    for reading.now in (1.0, 100.0, 10_000.0):
        reading.step()
    assert reading.done == []


def test_an_heir_that_tells_its_time_ends_the_silence_before_it() -> None:
    words = [told("p-0", 40, idle_ms=idle_ms) for idle_ms in IDLE[:2]]
    words += [told("p-0", 40), message(45), told("p-0", 45), told("p-0", 60)]
    reading = silent(*words)
    for _ in words:
        reading.arrive("prices", 1)
        while reading.step():
            pass
    assert reading.done == [("prices", 45), ("orders", 50)]


def test_a_message_between_two_silences_ends_the_first_one() -> None:
    words = [told("p-0", 40, idle_ms=IDLE[0]), told("p-0", 40, idle_ms=IDLE[1])]
    words += [told("p-0", 40, idle_ms=9_000, stretch=2), told("p-0", 40, idle_ms=9_300, stretch=2)]
    reading = silent(*words)
    for _ in words:
        reading.arrive("prices", 1)
        reading.step()
    assert reading.done == []


def test_a_task_that_never_told_anything_holds() -> None:
    reading = Reading({"prices": [], "orders": [message(50)]}, ONE, PRICES)
    reading.arrive("orders", 1)
    for reading.now in (1.0, 100.0, 10_000.0):
        assert not reading.step()


def test_with_a_backlog_the_words_from_before_a_message_do_not_count_for_it() -> None:
    """Watermarks of an idle task that are older than a message in the same backlog must not count as silence after it.

    The first watermarks in ``prices`` were written before its message at 45. The message of ``orders`` at 50 must be
    joined with that message, so the watermarks must not end its wait.
    """
    log = [told("p-0", 20, idle_ms=idle_ms) for idle_ms in IDLE] + [told("p-0", 20), message(45), told("p-0", 60)]
    reading = silent(*log)
    for _ in log:
        reading.arrive("prices", 1)
        while reading.step():
            pass
        assert ("orders", 50) not in reading.done or ("prices", 45) in reading.done
    assert reading.done == [("prices", 45), ("orders", 50)]


@pytest.mark.parametrize("stream", [None, StreamTime()])
def test_after_an_abort_what_was_heard_is_heard_again(stream: StreamTime | None) -> None:
    log = [message(51), message(30), told("p-0", 60)]
    reading = Reading({"prices": log, "orders": [message(50)]}, ONE, PRICES, stream=stream)
    reading.arrive("prices", 3)
    reading.order.clear()
    reading.arrived["prices"] = 0
    reading.arrive("orders", 1)
    assert not reading.step()
    reading.arrive("prices", 3)
    while reading.step():
        pass
    assert reading.done == [("prices", 51), ("prices", 30), ("orders", 50)]
