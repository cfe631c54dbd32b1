"""kill -9 of a processor with joins behind ``group_by`` on a real broker, while a backlog is joined.

The first partition is fed, and read, long before the last one. Rows are compared with what plain Python makes of all
messages in the order of their times.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.records import TopicSpec
from tests.kafka.test_joins_killed import BEGIN_MS, messages, sent
from tests.mechanics.tiers import variants
from tests.oracles.join_rules import AsOfJoin, HistoryJoin, IntervalJoin, Message, in_order

WEEK_MS = 7 * 86_400_000

DEFINITION = """
import os
from holdfast import Application


def both(left, right):
    return [left, right]


def content(value):
    return value["v"]


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}, **settings,
    )
    right = made.dataframe(made.topic(group + "-right")).group_by("k", "right").apply(content)
    left = made.dataframe(made.topic(group + "-in")).group_by("k", "left").apply(content)
    left.join_asof(right, "left", both, name="asof").to_topic(made.topic(group + "-asof"))
    near = left.join_interval(right, "inner", both, 1_000_000, "near", backward_ms=60, forward_ms=40)
    near.to_topic(made.topic(group + "-near"))
    history = right.to_table("history", history_retention=604_800_000)
    left.join_table(history, "left", both).to_topic(made.topic(group + "-history"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


def feed(stream: Any, given: list[Message], drawn: random.Random) -> None:
    """Messages in any partition, each of which is in the order of time; one partition after the other."""
    placed = sorted([(drawn.randrange(stream.partitions), each) for each in given], key=lambda one: one[0])
    producer = Producer({"bootstrap.servers": stream.bootstrap})
    for partition, each in placed:
        topic = stream.source if each.left else f"{stream.group}-right"
        value = json.dumps({"k": each.key.decode(), "v": each.value}).encode()
        producer.produce(topic, value, b"any", partition=partition, timestamp=each.time_ms)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("workers", variants([1, 3], tested=0))
def test_kill_9_changes_no_row_of_a_join_behind_group_by(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any], workers: int
) -> None:
    drawn = random.Random(workers)
    stream.topics.create(TopicSpec(f"{stream.group}-right", stream.partitions, 1))
    namespace: dict[str, Any] = {}
    exec(DEFINITION, namespace)  # the definition that the processes import
    application: Application = namespace["build"](stream.bootstrap, stream.group)
    stream.application = lambda: application
    stream.provision()
    left, right = messages(drawn, 3_000, left=True), messages(drawn, 3_000, left=False)
    # Each time once: of two right messages of one time, in different partitions, either may be the last.
    right = [each._replace(time_ms=BEGIN_MS + 10 * number) for number, each in enumerate(right)]
    feed(stream, left, drawn)
    feed(stream, right, drawn)
    made = [worker(str(slot), home=f"home-{slot}") for slot in range(workers)]
    for one in made:
        (one.paths.home / "counting_definition.py").write_text(DEFINITION)
        one.start()

    def committed() -> int:
        return sum(stream.topics.committed_offsets(stream.group).values())

    for times in range(3):
        before = committed()
        waiting(lambda seen=before: committed() > seen, "some of the backlog to be committed")
        made[0].kill()
        if times == 1:
            shutil.rmtree(made[0].paths.state)
        made[0].start()
    order = in_order(left, right, left_first=False)
    wanted = {
        "asof": Counter(map(repr, AsOfJoin("left", WEEK_MS, None).rows(order))),
        "near": Counter(map(repr, IntervalJoin("inner", 60, 40, 1_000_000).rows(order))),
        "history": Counter(map(repr, HistoryJoin("left", WEEK_MS).rows(order))),
    }
    for kind, rows in wanted.items():
        waiting(lambda kind=kind, rows=rows: sent(stream, kind).total() >= rows.total(), f"all rows of {kind}")
    for one in made:
        assert one.wait_running().terminate() == 0
    for kind, rows in wanted.items():
        assert sent(stream, kind) == rows
