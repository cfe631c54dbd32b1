"""An order that comes again within a day is processed once, and after a day it is a new one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import InMemoryCluster
from tests.docs.examples.loaded import example

DAY = 86_400_000
#: Customer, id, and milliseconds since the first order.
ORDERS = [(b"ann", 1, 0), (b"ann", 1, 5), (b"bob", 1, 10), (b"ann", 2, 20), (b"ann", 1, DAY - 1), (b"ann", 1, DAY)]


def passed(name: str) -> list[tuple[Any, ...]]:
    """The orders that one of the applications lets through, after a restart in the middle on an empty disk."""
    build, cluster = getattr(example("deduplication"), name), InMemoryCluster()
    cluster.create_topic("orders")
    start = int(cluster.clock.time() * 1000) - 10 * DAY
    for half in (ORDERS[:3], ORDERS[3:]):
        for key, number, at in half:
            value = json.dumps({"id": number, "customer": key.decode()}).encode()
            cluster.produce("orders", value, key, timestamp_ms=start + at)
        cluster.run(build())
    records = [record for _, record in cluster.read(build().consumer_group)]
    values = [(json.loads(record.value or b""), record.timestamp_ms - start) for record in records]
    return [(value["customer"], value["id"], at) for value, at in values]


@pytest.mark.parametrize("name", ["once_for_each_customer", "in_one_line"])
def test_an_id_passes_once_a_day_for_each_customer(name: str) -> None:
    assert passed(name) == [("ann", 1, 0), ("bob", 1, 10), ("ann", 2, 20), ("ann", 1, DAY)]


def test_an_id_passes_once_a_day_for_all_customers() -> None:
    assert passed("once_in_all") == [("ann", 1, 0), ("ann", 2, 20), ("ann", 1, DAY)]


def test_an_id_that_is_over_leaves_the_store() -> None:
    build, cluster = example("deduplication").once_for_each_customer, InMemoryCluster()
    cluster.create_topic("orders")
    start = int(cluster.clock.time() * 1000) - 10 * DAY
    for number, at in ((1, 0), (2, 2 * DAY)):
        cluster.produce("orders", json.dumps({"id": number}).encode(), b"ann", timestamp_ms=start + at)
    cluster.run(build())
    kept = {name for key, name in cluster.state(build(), "seen") if key == b"ann" and not name.startswith("__")}
    assert kept == {"order/2"}
