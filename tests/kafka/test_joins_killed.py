"""kill -9 of processors with joins on a real broker, while a backlog is joined.

The joined rows are compared with rows that plain Python computes from the records in the source topics.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from tests.kafka.killed import BEGIN_MS, Kill, Scenario
from tests.mechanics.tiers import variants
from tests.oracles.join_rules import AsOfJoin, HistoryJoin, IntervalJoin, Message, TablesJoin, in_order, table_rows

KEYS = 40


def messages(drawn: random.Random, count: int, *, left: bool) -> list[Message]:
    """Messages of one side of the join, in the order of event time; many right values are falsy."""
    values = range(1, 9) if left else [0, "", False, {}, 1, "x"]
    times = sorted(drawn.randrange(count * 10) for _ in range(count))
    return [Message(left, b"k%d" % drawn.randrange(KEYS), BEGIN_MS + at, drawn.choice(values)) for at in times]


def products(drawn: random.Random, count: int) -> list[Message]:
    """Messages of the products table, to which a foreign key refers. The value None deletes a row."""
    keys = [b"k%d" % drawn.randrange(12) for _ in range(count)]
    return [Message(False, key, BEGIN_MS + at * 10, drawn.choice([0, "", 1, "x", None])) for at, key in enumerate(keys)]


def feed(stream: Any, given: list[Message], *, transactional: bool, right: str = "right") -> None:
    settings = {"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"}
    producer = Producer({**settings, **({"transactional.id": f"{stream.group}-{right}-feed"} if transactional else {})})
    if transactional:
        producer.init_transactions(60)
        producer.begin_transaction()
    for number, message in enumerate(given):
        topic = stream.source if message.left else f"{stream.group}-{right}"
        value = None if message.value is None else json.dumps(message.value).encode()
        producer.produce(topic, value, message.key, timestamp=message.time_ms)
        if transactional and number % 200 == 199:
            producer.commit_transaction(60)
            producer.begin_transaction()
    if transactional:
        producer.commit_transaction(60)
    assert producer.flush(60) == 0


def sides(stream: Any) -> list[tuple[list[Message], list[Message]]]:
    """For each partition, the messages of the left and the right topic in the order of their offsets."""
    found = []
    for number in range(stream.partitions):
        both = []
        for topic in (stream.source, f"{stream.group}-right"):
            end = stream.topics.settled_end_offsets(topic, 60)[number]
            records = read_range(stream.bootstrap, topic, number, 0, end)
            left = topic == stream.source
            both.append(
                [Message(left, each.key or b"", each.timestamp_ms, json.loads(each.value or b"")) for each in records]
            )
        found.append((both[0], both[1]))
    return found


def sent(stream: Any, kind: str) -> Counter[str]:
    rows = stream.read(f"{stream.group}-{kind}")
    found = [(row.timestamp_ms, row.key or b"", json.loads(row.value or b"null")) for row in rows]
    return Counter(repr((*place, *(value if value is not None else ["deleted"]))) for *place, value in found)


def pairs(order: list[Message]) -> list[tuple[Any, ...]]:
    """The expected changes of the joined table: event time, key, and the new row or "deleted"."""
    rows = [each._replace(value=None) if each.left and each.value == 5 else each for each in order]
    changes = TablesJoin("inner", lambda left, right: True).changes(rows)
    return [(at.time_ms, at.key, *(row or ["deleted"])) for at, row, is_change in changes if is_change]


def newest(stream: Any, topic: str) -> dict[bytes, Any]:
    """The current rows of a topic: the newest value of each key, without deleted keys."""
    rows = {row.key or b"": json.loads(row.value or b"null") for row in stream.read(topic)}
    return {key: value for key, value in rows.items() if value is not None}


def referred(stream: Any) -> dict[bytes, Any]:
    """The expected final rows of the join by a foreign key."""
    left = {key: value for key, value in newest(stream, stream.source).items() if value != 5}
    right = newest(stream, f"{stream.group}-products")
    return {key: [value, right.get(b"k%d" % value)] for key, value in left.items()}


class OfBacklog(Scenario):
    """Joins over a backlog. The worker is killed three times while it joins. Once it also loses its disk."""

    def course(self) -> Iterator[Kill]:
        for times in range(3):
            yield Kill(self.has_more_committed(), "some of the backlog to be committed", loses_disk=times == 1)

    def sent(self, output: str) -> Counter[str]:
        return sent(self.stream, output)


class Joins(OfBacklog):
    head = """

        def both(left, right):
            return [left, right]


        def foreign_key(value):
            return "k%d" % value
        """
    topology = """
        right = made.dataframe(made.topic(group + "-right"))
        left = made.dataframe(made.topic(group + "-in"))
        left.join_asof(right, "left", both, 500, "asof").to_topic(made.topic(group + "-asof"))
        near = left.join_interval(right, "outer", both, 0, "near", backward_ms=60, forward_ms=40)
        near.to_topic(made.topic(group + "-near"))
        rows = right.to_table("rows")
        left.join_table(rows, "inner", both).to_topic(made.topic(group + "-table"))
        history = right.to_table("history", history_retention=500)
        left.join_table(history, "left", both).to_topic(made.topic(group + "-history"))
        own = left.apply(lambda value: None if value == 5 else value).to_table("own")
        own.join(rows, "inner", both, "pairs").to_stream().to_topic(made.topic(group + "-pairs"))
        referred = own.join(made.table(made.topic(group + "-products")), "left", both, "referred", on=foreign_key)
        referred.to_stream().to_topic(made.topic(group + "-referred"))
        """

    def prepare(self) -> None:
        self.stream.topics.create(TopicSpec(self.topic("right"), self.stream.partitions, 1))
        self.stream.topics.create(TopicSpec(self.topic("products"), self.stream.partitions + 1, 1))

    def begin(self) -> None:
        """Feed a backlog: first the left side, then the right side in transactions.

        The transaction markers also take offsets.
        """
        super().begin()
        feed(self.stream, messages(self.drawn, 3_000, left=True), transactional=False)
        feed(self.stream, messages(self.drawn, 3_000, left=False), transactional=True)
        feed(self.stream, products(self.drawn, 1_000), transactional=True, right="products")

    def truth(self) -> dict[str, Counter[str]]:
        wanted: dict[str, Counter[str]] = {kind: Counter() for kind in ("asof", "near", "table", "history", "pairs")}
        for left, right in sides(self.stream):
            order = in_order(left, right, left_first=False)
            wanted["asof"] += Counter(map(repr, AsOfJoin("left", 500, None).rows(order)))
            wanted["near"] += Counter(map(repr, IntervalJoin("outer", 60, 40, 0).rows(order)))
            wanted["table"] += Counter(map(repr, table_rows(order, "inner")))
            wanted["history"] += Counter(map(repr, HistoryJoin("left", 500).rows(order)))
            wanted["pairs"] += Counter(map(repr, pairs(order)))
        return wanted

    def check_running(self) -> None:
        rows = referred(self.stream)
        self.wait(lambda: newest(self.stream, self.topic("referred")) == rows, "the rows of the foreign key")

    def check_ended(self) -> None:
        found = newest(self.stream, self.topic("referred"))
        assert repr(sorted(found.items())) == repr(sorted(referred(self.stream).items()))


@pytest.mark.thorough
@pytest.mark.parametrize("workers", variants([1, 3]))
def test_kill_9_neither_loses_nor_doubles_a_row(stream: Any, worker: Callable[..., Any], workers: int) -> None:
    Joins(stream, worker, workers).live()
