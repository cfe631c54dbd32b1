"""kill -9 of processors with windows on a real broker: while windows fill, and while many of them close at once.

Results and changelog are compared with windows that plain Python computes from the records in the source topic.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.processors.engine.state.time.window_keys import window_of
from tests.kafka.killed import BEGIN_MS, Kill, Scenario
from tests.mechanics.tiers import variants
from tests.oracles.window_rules import Event, Shape, Windows, expect

SHAPE = Shape(10_000, 5_000, 2_000, "partition", final=True)
KEYS = 150


def messages(drawn: random.Random, begin: int, seconds: int) -> list[tuple[bytes, int, int]]:
    """Messages of all keys, out of order; some are late."""
    made = []
    for at in range(begin, begin + seconds * 1_000, 250):
        for _ in range(12):
            late = drawn.choice([0, 0, 0, 900, 4_000, 25_000])
            made.append((b"k%d" % drawn.randrange(KEYS), BEGIN_MS + max(0, at - late), drawn.randint(1, 9)))
    return made


def feed(stream: Any, given: list[tuple[bytes, int, int]]) -> int:
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    for key, time_ms, amount in given:
        producer.produce(stream.source, json.dumps({"v": amount}).encode(), key, timestamp=time_ms)
    assert producer.flush(60) == 0
    return len(given)


class Hops(Scenario):
    head = """
        from holdfast import Count, Sum
        from holdfast.processors.engine.runtime.task import task_time

        task_time.CLOSED_AT_ONCE = 15  # so that what ends at once takes many commits, and kills hit between them
        """
    topology = """
        window = made.dataframe(made.topic(group + "-in")).hopping_window(10_000, 5_000, 2_000, name="hops")
        window.agg(n=Count(), total=Sum("v")).final(closing_strategy="partition").to_topic(made.topic(group + "-out"))
        """

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        fed = 0
        for round_ in range(2):
            filling = self.has_more_committed()
            fed += feed(self.stream, messages(self.drawn, round_ * 60_000, 40))
            yield Kill(filling, "some of the round to be committed", loses_disk=round_ == 1)
            self.wait(self.has_committed(fed), "the round to be committed")
            # All open windows of each partition close at once, which takes about ten commits.
            closing = self.has_more_results(30)
            fed += feed(
                self.stream, [(b"end-%d" % number, BEGIN_MS + round_ * 60_000 + 55_000, 0) for number in range(20)]
            )
            yield Kill(closing, "some windows to be closed")
        self.wait(self.has_committed(fed), "everything to be committed")

    @cached_property
    def models(self) -> list[Windows]:
        """For each partition, a model of the windows, computed from its records."""
        found = []
        for records in self.partitions():
            events = [Event(each.key or b"", each.timestamp_ms, json.loads(each.value or b"")["v"]) for each in records]
            found.append(expect(SHAPE, events, 2 * BEGIN_MS))
        return found

    def truth(self) -> dict[str, Counter[Any]]:
        return {"out": Counter(result for model in self.models for result in model.results)}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(
            output, lambda record, each: (record.key, each["start"], each["end"], each["n"], each["total"])
        )

    def check_ended(self) -> None:
        kept = {place: amounts for model in self.models for place, amounts in {**model.open, **model.closed}.items()}
        assert {
            (key, *window): (made["count"]["n"], made["sum"]["total"])
            for (key, name), made in self.stored("hops").items()
            if (window := window_of(name)) is not None
        } == {place: (len(amounts), sum(amounts)) for place, amounts in kept.items()}
        assert sum(model.late for model in self.models) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("workers", variants([1, 3]))
def test_kill_9_neither_loses_nor_doubles_a_window(stream: Any, worker: Callable[..., Any], workers: int) -> None:
    Hops(stream, worker, workers).live()
