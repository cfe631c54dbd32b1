"""With `latest`, a group starts at the end of its topics.

A partition that is added later is read from its beginning.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ownership.first_start import look
from holdfast.processors.testing import InlineProcess


def application(reset: Literal["earliest", "latest"] = "latest", **options: Any) -> Application:
    app = Application("in-memory", consumer_group="p", auto_offset_reset=reset, loglevel=None, **options)
    app.dataframe(app.topic("in")).to_topic(app.topic("out"))
    return app


def world(partitions: int = 2) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions=partitions)
    for number in range(partitions):
        feed(cluster, f"old-{number}", number)
    return cluster


def feed(cluster: InMemoryCluster, value: str, partition: int) -> None:
    cluster.produce("in", json.dumps(value).encode(), b"k", partition=partition)


def sent(cluster: InMemoryCluster) -> list[str]:
    return sorted(json.loads(record.value or b"") for _, record in cluster.read("out"))


def grow(cluster: InMemoryCluster) -> None:
    cluster.add_partitions("in", 3)
    feed(cluster, "first", 2)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_messages_of_a_partition_that_was_added_while_nothing_ran_are_processed(guarantee: str) -> None:
    cluster = world()
    cluster.run(application(processing_guarantee=guarantee))
    assert sent(cluster) == [], "the first start began at the end"
    grow(cluster)
    feed(cluster, "new", 0)
    cluster.run(application(processing_guarantee=guarantee))
    assert sent(cluster) == ["first", "new"]


@pytest.mark.parametrize("first", [True, False])
def test_messages_of_a_partition_that_is_added_under_a_worker_are_processed(first: bool) -> None:
    cluster = world()
    if not first:
        cluster.run(application())
    cluster.clock.call_later(1.5, lambda: grow(cluster))
    cluster.run(application(), quiet_s=8.0)
    assert sent(cluster) == ["first"]


def test_a_topic_that_a_group_reads_for_the_first_time_begins_at_its_end() -> None:
    cluster = world()
    cluster.run(application())
    cluster.create_topic("other", partitions=1)
    cluster.produce("other", b'"old"', b"k")
    app = application()
    app.dataframe(app.topic("other")).to_topic(app.topic("out"))
    cluster.run(app)
    cluster.produce("other", b'"new"', b"k")
    cluster.run(app)
    assert sent(cluster) == ["new"]


def test_a_worker_of_the_first_start_begins_at_the_end_where_another_was_first() -> None:
    cluster = world(partitions=4)
    topics = cluster.connect(InlineProcess(cluster.clock)).topics()
    before = look(topics, "p", ["in"])
    cluster.reset_offsets("p", {Partition("in", 0): 1, Partition("in", 1): 1})
    assert [before.begins_at_end(Partition("in", number)) for number in range(5)] == [True] * 4 + [False]
    later = look(topics, "p", ["in"])
    assert not any(later.begins_at_end(Partition("in", number)) for number in range(5))


def test_earliest_reads_all() -> None:
    cluster = world()
    cluster.run(application("earliest"))
    grow(cluster)
    cluster.run(application("earliest"))
    assert sent(cluster) == ["first", "old-0", "old-1"]
