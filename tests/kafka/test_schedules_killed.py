"""kill -9 of a processor with schedules on a real broker, under load: each scheduled time fires exactly once."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.processors.engine.state.own_keys import SCHEDULES
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from tests.kafka.killed import Kill, Scenario
from tests.mechanics.tiers import variants

EVERY_MS = 200


class Scheduled(Scenario):
    head = """
def keep(value, state):
    state.increment("total", value)
    return value


def report(slot):
    entries = [entry.value for entry in slot.items("kept")]
    made = {"of": slot.name, "p": slot.partition, "at": slot.time, "calls": slot.state.increment("calls")}
    slot.send({**made, "sum": sum(entries)}, key=str(slot.partition).encode())
"""
    topology = """
        made.dataframe(made.topic(group + "-in")).apply(keep, stateful=True, store="kept")
        to = made.topic(group + "-out")
        made.every(200, name="tasks", per="task", missed="all", to=to)(report)
        made.every(600, name="whole", missed="all", to=to)(report)
        """

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for loses_disk in (False, True, False):
            self.feed(2_000)
            yield Kill(self.has_more_results(12), "slots to have fired", loses_disk=loses_disk)
        self.feed(500)
        self.wait(self.has_committed(6_500), "the messages to be committed")
        self.wait(self.has_more_results(40), "slots behind the last message")

    def feed(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
        for number in range(count):
            producer.produce(self.stream.source, b"1", f"k{number % 40}".encode())
        assert producer.flush(60) == 0

    def truth(self) -> dict[str, Counter[Any]]:
        return {}

    @cached_property
    def sizes(self) -> list[int]:
        """The number of messages in each partition."""
        return [sum(1 for _ in records) for records in self.partitions()]

    def check_ended(self) -> None:
        fired: dict[tuple[str, int], list[dict[str, int]]] = defaultdict(list)
        for record in self.stream.read(self.stream.sink):
            one = json.loads(record.value or b"")
            fired[one["of"], one["p"]].append(one)
        assert set(fired) == {("whole", 0), *(("tasks", number) for number in range(len(self.sizes)))}
        for (name, number), found in fired.items():
            step = EVERY_MS * (3 if name == "whole" else 1)
            slots = [one["at"] for one in found]
            assert slots == list(range(slots[0], slots[-1] + step, step))  # each scheduled time fired once, in order
            assert [one["calls"] for one in found] == list(range(1, len(found) + 1))
            sums = [one["sum"] for one in found]
            assert sums == sorted(sums)
            assert sums[-1] == self.sizes[number]
        for (key, name), value in self.stored(f"{self.stream.source}-schedules").items():
            if key == OWN_KEY and name == f"{SCHEDULES}whole" and value["last"] is not None:
                assert value["last"] == fired["whole", 0][-1]["at"]


@pytest.mark.parametrize("workers", variants([3, 1]))
def test_kill_9_neither_loses_nor_doubles_a_slot(stream: Any, worker: Callable[..., Any], workers: int) -> None:
    Scheduled(stream, worker, workers).live()
