"""kill -9 of processors that group the rows of tables, on a real broker, while rows change: each row counts once.

The final groups are compared with groups that plain Python computes from the newest rows in the source topic. A row
that is lost or subtracted twice would leave wrong counts and totals for good.
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

from holdfast.infra.kafka.records import TopicSpec
from tests.kafka.killed import BEGIN_MS, Kill, Scenario
from tests.mechanics.tiers import variants
from tests.oracles.grouped_tables import aggregated, grouped

CHANGES, KEYS, GROUPS, LIMIT = 6_000, 200, 20, 3


def rows_of(drawn: random.Random, first: int, count: int) -> list[tuple[bytes, Any, int]]:
    """Random changes of a small set of rows, so that each row often moves between groups; None deletes a row."""
    made = list[tuple[bytes, Any, int]]()
    for at in range(first, first + count):
        row = {"to": f"g{drawn.randrange(GROUPS)}", "v": drawn.choice([0, 1, 0.1, 0.2, 0.7, 1e15, -3])}
        made.append((b"k%d" % drawn.randrange(KEYS), None if drawn.random() < 0.15 else row, BEGIN_MS + at))
    return made


class GroupedTables(Scenario):
    """The topology filters and groups rows, and groups the resulting groups again by their number of rows."""

    head = """
        from holdfast import Collect, Count, Mean, Sum


        def is_large(row):
            return row["v"] != 0
        """
    topology = """
        table = made.table(made.topic(group + "-rows"), "rows")
        by = table.filter(is_large, "large").group_by("to").aggregate(
            n=Count(), total=Sum("v"), average=Mean("v"), all=Collect("v", limit=3), name="by-group"
        )
        by.to_stream().to_topic(made.topic(group + "-out"))
        sizes = by.group_by(lambda row: row["n"] // 3, name="size").aggregate(groups=Count(), name="sizes")
        sizes.to_stream().to_topic(made.topic(group + "-sizes"))
        """

    @cached_property
    def producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})

    def prepare(self) -> None:
        config = {"cleanup.policy": "compact"}
        self.stream.topics.create(TopicSpec(self.topic("rows"), self.stream.partitions, 1, config))

    def begin(self) -> None:
        super().begin()
        self.feed(0, CHANGES // 2)

    def feed(self, first: int, count: int) -> None:
        for key, row, time_ms in rows_of(self.drawn, first, count):
            self.producer.produce(self.topic("rows"), None if row is None else json.dumps(row), key, timestamp=time_ms)
        assert self.producer.flush(60) == 0

    def course(self) -> Iterator[Kill]:
        more = CHANGES // 6
        for times, topic in enumerate(("rows", "by-group-repartition", "sizes-repartition")):
            yield Kill(
                self.or_done(self.has_more_committed(self.topic(topic))),
                f"more of {topic} to be committed",
                loses_disk=times == 1,
                meanwhile=lambda times=times: self.feed(CHANGES // 2 + times * more, more),
            )

    def or_done(self, more: Callable[[], bool]) -> Callable[[], bool]:
        """A condition that also holds once all input is processed: a fast machine may finish before the check."""
        return lambda: more() or self.newest("out") == self.expected

    @property
    def kept(self) -> dict[bytes, Any]:
        """The newest rows of the source topic that pass the filter."""
        return {key: row for key, row in self.newest("rows").items() if row["v"] != 0}

    @property
    def expected(self) -> dict[bytes, Any]:
        return {
            group: aggregated(of, "v", LIMIT)
            for group, of in grouped(self.kept, lambda row: row["to"].encode()).items()
        }

    @property
    def expected_sizes(self) -> dict[bytes, Any]:
        sizes = Counter(str(row["n"] // 3).encode() for row in self.expected.values())
        return {size: {"groups": count} for size, count in sizes.items()}

    def newest(self, output: str) -> dict[bytes, Any]:
        """The current rows of a table: the newest value of each key in its topic, without deleted keys."""
        rows = {row.key or b"": json.loads(row.value or b"null") for row in self.stream.read(self.topic(output))}
        return {key: row for key, row in rows.items() if row is not None}

    def truth(self) -> dict[str, Counter[Any]]:
        return {}  # the number of changes of a group depends on the order in which partitions are read

    def check_running(self) -> None:
        expected, sizes = self.expected, self.expected_sizes
        self.wait(lambda: self.newest("out") == expected, "the groups of all rows")
        self.wait(lambda: self.newest("sizes") == sizes, "the groups of all groups")

    def check_ended(self) -> None:
        shown = [sorted(map(repr, rows.items())) for rows in (self.newest("out"), self.expected)]
        assert shown[0] == shown[1]
        stored = {key: row for (key, name), row in self.stored("by-group").items() if name == "row"}
        assert stored == self.expected
        assert {key for key, _ in self.stored("by-group-rows")} == set(self.kept)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", variants([1, 3]))
def test_kill_9_neither_loses_nor_doubles_a_row_of_a_group(
    stream: Any, worker: Callable[..., Any], workers: int
) -> None:
    GroupedTables(stream, worker, workers).live()
