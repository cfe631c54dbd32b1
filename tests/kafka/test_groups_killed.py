"""Processors that group a stream by another key are killed on a real broker, while they repartition and purge records.

The results are compared with results that plain Python computes from the fed messages: each message counts once, and
each window is sent once with its full content.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from tests.kafka.killed import BEGIN_MS, Kill, Scenario
from tests.mechanics.tiers import variants

MESSAGES, WINDOW_MS, GRACE_MS = 6_000, 2_000, 200


class Fed(NamedTuple):
    """One message: its id, partition, event time, group and amount."""

    id: int
    partition: int
    time_ms: int
    to: str
    v: int


def messages(drawn: random.Random, partitions: int) -> list[Fed]:
    """A backlog of messages.

    The last partition is fed first, and its event times are one hour earlier than the others.
    """
    made = []
    for number in range(MESSAGES):
        partition = number * partitions // MESSAGES
        begin = BEGIN_MS - (3_600_000 if partition == partitions - 1 else 0)
        time_ms = begin + (number % (MESSAGES // partitions)) * 10 - drawn.choice([0, 0, GRACE_MS - 1])
        made.append(Fed(number, partition, time_ms, f"g{drawn.randrange(30)}", drawn.randint(1, 9)))
    return made


def feed(stream: Any, given: list[Fed]) -> None:
    producer = Producer({"bootstrap.servers": stream.bootstrap})
    for each in given:
        value = json.dumps({"id": each.id, "to": each.to, "v": each.v}).encode()
        producer.produce(stream.source, value, b"key", partition=each.partition, timestamp=each.time_ms)
    assert producer.flush(60) == 0


def highest(stream: Any) -> dict[str, int]:
    """The largest count that was sent for each group."""
    found: dict[str, int] = {}
    for row in stream.read(f"{stream.group}-counted"):
        group = (row.key or b"").decode()
        found[group] = max(found.get(group, 0), json.loads(row.value or b"")["n"])
    return found


def expected_windows(given: list[Fed]) -> Counter[tuple[str, int, int, int]]:
    """The windows that must be closed after all input, because the newest event time is past their end plus grace."""
    found: dict[tuple[str, int], list[int]] = {}
    for each in given:
        found.setdefault((each.to, each.time_ms // WINDOW_MS * WINDOW_MS), []).append(each.v)
    newest = max(each.time_ms for each in given)
    return Counter(
        (to, start, len(amounts), sum(amounts))
        for (to, start), amounts in found.items()
        if start + WINDOW_MS + GRACE_MS <= newest
    )


class Groups(Scenario):
    head = """
        from holdfast.dataframe.windows import Count, Sum
        from holdfast.processors.engine.runtime import purge

        purge.PURGE_EVERY_S = 0.3


        def count(value, state):
            return {"id": value["id"], "n": state.increment("n")}
        """
    topology = """
        source = made.dataframe(made.topic(group + "-in"))
        grouped = source.group_by(lambda value: value["to"], name="to", partitions=3)
        grouped.apply(count, stateful=True, store="by-group").to_topic(made.topic(group + "-counted"))
        window = grouped.tumbling_window(2_000, 200, "windows").agg(n=Count(), total=Sum("v")).final()
        window.to_topic(made.topic(group + "-windows"))
        """

    def begin(self) -> None:
        super().begin()
        self.given = messages(self.drawn, self.stream.partitions)
        feed(self.stream, self.given)

    def course(self) -> Iterator[Kill]:
        between = self.topic("to-repartition")
        yield Kill(self.or_done(self.has_more_committed(self.stream.source)), "more of the backlog")
        yield Kill(self.or_done(self.has_more_committed(between)), "more behind the groups", loses_disk=True)
        yield Kill(self.or_done(self.has_more_purged()), "more to be deleted")

    def or_done(self, more: Callable[[], bool]) -> Callable[[], bool]:
        """Return a condition that also holds once all records are purged.

        A fast machine may purge all records before the condition is checked.
        """
        return lambda: more() or self.purged() >= MESSAGES

    def purged(self) -> int:
        """The number of records that the worker has deleted from the repartition topic."""
        return sum(self.stream.topics.start_offsets(self.topic("to-repartition")).values())

    def has_more_purged(self) -> Callable[[], bool]:
        before = self.purged()
        return lambda: self.purged() > before

    def truth(self) -> dict[str, Counter[Any]]:
        return {"counted": Counter(range(MESSAGES)), "windows": expected_windows(self.given)}

    def sent(self, output: str) -> Counter[Any]:
        if output == "counted":
            return self.documents(output, lambda row, value: value["id"])
        return self.documents(
            output, lambda row, value: ((row.key or b"").decode(), value["start"], value["n"], value["total"])
        )

    def check_running(self) -> None:
        self.wait(lambda: self.purged() >= MESSAGES, "what is processed to be deleted")

    def check_ended(self) -> None:
        groups = Counter(each.to for each in self.given)
        assert highest(self.stream) == groups
        if len(self.workers) > 1:
            return
        # Clear the state and read the source topics again. Records that are left in the repartition topic must not
        # count twice.
        self.application().clear_state(rewind="earliest")
        self.killed.start()
        self.wait(lambda: self.sent("counted").total() >= 2 * MESSAGES, "all messages to be counted again")
        assert self.killed.wait_running().terminate() == 0
        assert self.sent("counted") == dict.fromkeys(range(MESSAGES), 2)
        assert highest(self.stream) == groups


@pytest.mark.thorough
@pytest.mark.parametrize("workers", variants([1, 3]))
def test_kill_9_neither_loses_nor_doubles_a_message_behind_group_by(
    stream: Any, worker: Callable[..., Any], workers: int
) -> None:
    Groups(stream, worker, workers).live()
