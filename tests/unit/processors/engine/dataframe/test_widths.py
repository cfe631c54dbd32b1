"""Repartition topics that share a store have equal partition counts.

The count is the argument `partitions=`, otherwise the partition count of the largest source topic.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster


def application() -> Application:
    return Application("localhost:9092", consumer_group="p", auto_offset_reset="earliest")


def both(left: Any, right: Any) -> Any:
    return [left, right]


@pytest.mark.parametrize(("left", "right"), [({}, {}), ({"partitions": 4}, {}), ({}, {"partitions": 1})])
def test_two_groupings_that_are_joined_have_one_width(left: dict[str, int], right: dict[str, int]) -> None:
    cluster, app = InMemoryCluster(), application()
    cluster.create_topic("a", partitions=2)
    cluster.create_topic("b", partitions=3)
    mine = app.dataframe(app.topic("a")).group_by("k", "mine", **left)
    its = app.dataframe(app.topic("b")).group_by("k", "its", **right)
    mine.join_asof(its, on_merge=both).to_topic(app.topic("out"))
    now = int(cluster.clock.time() * 1000) - 100_000
    for number in range(12):
        value = json.dumps({"k": f"k{number}"}).encode()
        cluster.produce("b", value, b"b%d" % number, timestamp_ms=now + number)
        cluster.produce("a", value, b"a%d" % number, timestamp_ms=now + 100 + number)
    cluster.run(app)
    assert len(cluster.read("out")) == 12


def test_a_table_behind_a_grouping_is_the_right_side_of_a_join_by_a_key_inside_the_row() -> None:
    cluster, app = InMemoryCluster(), application()
    cluster.create_topic("orders", partitions=2)
    cluster.create_topic("products", partitions=3)
    orders = app.table(app.topic("orders"))
    products = app.dataframe(app.topic("products")).group_by("k", "by-k").to_table("products-by-k")
    joined = orders.join(products, on="q", how="left", on_merge=both, name="f")
    joined.to_stream().to_topic(app.topic("out"))
    now = int(cluster.clock.time() * 1000) - 100_000
    for number in range(12):
        cluster.produce("products", b'{"k": "p%d"}' % number, b"x%d" % number, timestamp_ms=now)
        cluster.produce("orders", b'{"q": "p%d"}' % number, b"o%d" % number, timestamp_ms=now + 1)
    cluster.run(app)
    newest = {record.key: json.loads(record.value or b"") for _, record in cluster.read("out")}
    assert newest == {b"o%d" % number: [{"q": f"p{number}"}, {"k": f"p{number}"}] for number in range(12)}
