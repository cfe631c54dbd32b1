"""kill -9 of a processor with timers on a real broker: while timers are set, and while many of them fire at once.

Outputs and changelog are compared with results that plain Python computes from the records in the source topic.
"""

from __future__ import annotations

import inspect
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.processors.engine.state.own_keys import RESERVED
from tests.kafka.killed import BEGIN_MS, Kill, Scenario
from tests.mechanics.tiers import variants
from tests.oracles.timers import Event, Model, Step

pytestmark = pytest.mark.thorough

TTL, KEYS = 20_000, 60


def messages(drawn: random.Random, begin: int) -> list[tuple[str, int, list[Any]]]:
    """Messages of all keys, slightly out of order; each sets a timer within the next two minutes."""
    made = []
    for at in range(begin, begin + 30_000, 100):
        time = BEGIN_MS + max(0, at - drawn.choice([0, 0, 800, 5_000]))
        timer = ["set_timer", drawn.choice("xyz"), time + drawn.choice([50, 3_000, 100_000, 100_001])]
        steps = [timer, ["count", "n"], drawn.choice([["read", "n"], ["cancel", "x"]])]
        made.append((f"k{drawn.randrange(KEYS)}", time, steps))
    return made


def feed(stream: Any, given: list[tuple[str, int, list[Any]]]) -> None:
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    for key, time, steps in given:
        producer.produce(stream.source, json.dumps(steps).encode(), key.encode(), timestamp=time)
    assert producer.flush(60) == 0


class Timed(Scenario):
    head = """
from typing import Any
from holdfast.processors.engine.runtime.task import task_timers

task_timers.FIRED_AT_ONCE = 15  # so that what is due at once takes many commits, and kills hit between them


""" + inspect.getsource(Step)
    topology = """
        kept = made.store("timed", ttl=20_000)
        made.dataframe(made.topic(group + "-in")).process(Step, store=kept).to_topic(made.topic(group + "-out"))
        """

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        part = messages(self.drawn, 0)
        feed(self.stream, part)
        # This kill comes while timers are set and while some of them fire between messages.
        yield Kill(self.committed, "some of the messages to be committed", loses_disk=True)
        self.wait(self.has_committed(len(part)), "the messages to be committed")
        # The long timers of all keys in a partition become due at once, and firing them takes several commits.
        firing = self.has_more_results()
        ends = [(f"end-{number}", BEGIN_MS + 400_000, [["count", "n"]]) for number in range(20)]
        feed(self.stream, ends)
        yield Kill(firing, "some timers to have fired")
        self.wait(self.has_committed(len(part) + len(ends)), "everything to be committed")

    @cached_property
    def models(self) -> list[Model]:
        """For each partition, a model of the timers, computed from its records."""
        found = []
        for records in self.partitions():
            model = Model(TTL)
            for each in records:
                model.take(Event((each.key or b"").decode(), each.timestamp_ms, json.loads(each.value or b"")))
            found.append(model)
        return found

    def truth(self) -> dict[str, Counter[Any]]:
        return {"out": Counter(json.dumps(each) for model in self.models for each in model.sent)}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda record, each: json.dumps(each))

    def check_ended(self) -> None:
        results = [json.loads(record.value or b"") for record in self.stream.read(self.stream.sink)]
        for model in self.models:
            for key in {each[1] for each in model.sent}:
                assert [each for each in results if each[1] == key] == [each for each in model.sent if each[1] == key]
        values = {
            (key.decode(), name): value
            for (key, name), value in self.stored("timed").items()
            if not name.startswith(RESERVED)
        }
        assert values == {
            place: value for model in self.models for place, (value, end, _) in model.values.items() if end > model.time
        }
        assert sum(each[0] == "timer" for each in results) > 100


@pytest.mark.parametrize("workers", variants([1, 3], tested=0))
def test_kill_9_neither_loses_nor_doubles_a_timer(stream: Any, worker: Callable[..., Any], workers: int) -> None:
    Timed(stream, worker, workers).live()
