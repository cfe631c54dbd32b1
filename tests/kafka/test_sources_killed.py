"""kill -9 of a worker with a source on a real broker, under load. Each message of the source is sent once.

The state of the source takes effect together with its messages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kafka.killed import Kill, Scenario
from tests.mechanics.tiers import variants

COUNT = 40_000


class Sourced(Scenario):
    head = f"""
from holdfast.sources import StatefulSource


class Numbers(StatefulSource):
    def run(self):
        number = self.state.get("next", 0)
        while self.running and number < {COUNT}:
            self.produce(str(number), key=f"k{{number % 40}}")
            number += 1
            self.state.set("next", number)
            if number % 400 == 0 or number == {COUNT}:
                self.flush()


def keep(value, state):
    return [value, state.increment("n")]
"""
    topology = """
        sdf = made.dataframe(made.topic(group + "-in"), source=Numbers("numbers"))
        sdf.apply(keep, stateful=True, store="kept").to_topic(made.topic(group + "-out"))
        """

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for loses_disk in (False, True, False, True):
            yield Kill(self.has_more_results(2_000), "results of the source", loses_disk=loses_disk)

    def truth(self) -> dict[str, Counter[Any]]:
        return {"in": Counter(range(COUNT)), "out": Counter(range(COUNT))}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda record, value: value if output == "in" else value[0])

    def check_ended(self) -> None:
        kept = self.stored("source-numbers")
        assert kept[b"numbers", "next"] == COUNT
        [record] = [value for (_, name), value in kept.items() if name.endswith("/numbers")]
        assert record["sent"] == COUNT
        assert record["ended"]
        counts = {key: value for (key, name), value in self.stored("kept").items() if name == "n"}
        assert sum(counts.values()) == COUNT
        places = [json.loads(record.value or b"") for records in self.partitions() for record in records]
        assert len(places) == len(set(places)) == COUNT


@pytest.mark.thorough
@pytest.mark.parametrize("workers", variants([2, 1]))
def test_kill_9_neither_loses_nor_doubles_a_message_of_a_source(
    stream: Any, worker: Callable[..., Any], workers: int
) -> None:
    Sourced(stream, worker, workers).live()
