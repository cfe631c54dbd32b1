"""kill -9 of a processor with joins after ``group_by`` on a real broker, while it processes a backlog.

The first partition is fed and read long before the last one. The joined rows are compared with rows that plain Python
computes from all messages in the order of their event times.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.records import TopicSpec
from tests.kafka.killed import BEGIN_MS
from tests.kafka.test_joins_killed import OfBacklog, messages
from tests.mechanics.tiers import variants
from tests.oracles.join_rules import AsOfJoin, HistoryJoin, IntervalJoin, Message, in_order

WEEK_MS = 7 * 86_400_000


def feed(stream: Any, given: list[Message], drawn: random.Random) -> None:
    """Send each message to a random partition.

    The messages of each partition are in the order of event time. Partitions are fed in turn.
    """
    placed = sorted([(drawn.randrange(stream.partitions), each) for each in given], key=lambda one: one[0])
    producer = Producer({"bootstrap.servers": stream.bootstrap})
    for partition, each in placed:
        topic = stream.source if each.left else f"{stream.group}-right"
        value = json.dumps({"k": each.key.decode(), "v": each.value}).encode()
        producer.produce(topic, value, b"any", partition=partition, timestamp=each.time_ms)
    assert producer.flush(60) == 0


class GroupedJoins(OfBacklog):
    head = """

        def both(left, right):
            return [left, right]


        def content(value):
            return value["v"]
        """
    topology = """
        right = made.dataframe(made.topic(group + "-right")).group_by("k", "right").apply(content)
        left = made.dataframe(made.topic(group + "-in")).group_by("k", "left").apply(content)
        left.join_asof(right, "left", both, name="asof").to_topic(made.topic(group + "-asof"))
        near = left.join_interval(right, "inner", both, 1_000_000, "near", backward_ms=60, forward_ms=40)
        near.to_topic(made.topic(group + "-near"))
        history = right.to_table("history", history_retention=604_800_000)
        left.join_table(history, "left", both).to_topic(made.topic(group + "-history"))
        """

    def prepare(self) -> None:
        self.stream.topics.create(TopicSpec(self.topic("right"), self.stream.partitions, 1))

    def begin(self) -> None:
        super().begin()
        left, right = messages(self.drawn, 3_000, left=True), messages(self.drawn, 3_000, left=False)
        # Make event times unique. If two right messages in different partitions had equal times, the result would not
        # be defined, because either of them could be the newest.
        right = [each._replace(time_ms=BEGIN_MS + 10 * number) for number, each in enumerate(right)]
        feed(self.stream, left, self.drawn)
        feed(self.stream, right, self.drawn)
        self.order = in_order(left, right, left_first=False)

    def truth(self) -> dict[str, Counter[str]]:
        return {
            "asof": Counter(map(repr, AsOfJoin("left", WEEK_MS, None).rows(self.order))),
            "near": Counter(map(repr, IntervalJoin("inner", 60, 40, 1_000_000).rows(self.order))),
            "history": Counter(map(repr, HistoryJoin("left", WEEK_MS).rows(self.order))),
        }


@pytest.mark.parametrize("workers", variants([1, 3], tested=0))
def test_kill_9_changes_no_row_of_a_join_behind_group_by(stream: Any, worker: Callable[..., Any], workers: int) -> None:
    GroupedJoins(stream, worker, workers).live()
