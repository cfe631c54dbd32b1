"""In which partitions a key is looked for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.topics.partitioners import CRC32, MURMUR2, PARTITIONERS
from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.engine.queries.placement import (
    COUNTS_FRESH_S,
    REQUEST_TIMEOUT_S,
    PartitionCounts,
    is_grouped,
    partitions_of_key,
)
from holdfast.processors.engine.topology import Topology
from holdfast.processors.testing.process import InlineProcess
from tests.mechanics.tiers import examples


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(key=st.binary(max_size=12), count=st.integers(1, 40))
def test_a_key_is_looked_for_everywhere_the_likely_partitions_first(key: bytes, count: int) -> None:
    found = partitions_of_key(key, count, grouped=False)
    assert sorted(found) == list(range(count))
    likely = [PARTITIONERS[name](key, count) for name in (MURMUR2, CRC32)]
    assert list(found[: len(set(likely))]) == list(dict.fromkeys(likely))
    assert partitions_of_key(key, count, grouped=True) == found[:1]


def topology() -> Topology:
    app = Application("localhost:1", consumer_group="shop", loglevel=None)
    orders = app.dataframe(app.topic("orders"))
    orders.apply(lambda value, state: value, stateful=True, store="by_key")
    grouped = orders.group_by("city")
    grouped.apply(lambda value, state: value, stateful=True, store="by_city")
    return app.topology()


def test_only_a_store_behind_a_group_by_has_one_partition_for_a_key() -> None:
    made = topology()
    assert {spec.name: is_grouped(made, spec) for spec in made.stores} == {"by_key": False, "by_city": True}


def test_partition_counts_are_requested_again_when_they_are_old() -> None:
    cluster, made = InMemoryCluster(), topology()
    counts = PartitionCounts(made, cluster.connect(InlineProcess(cluster.clock)), cluster.clock)
    assert not counts.is_fresh
    with pytest.raises(StateAway, match="orders are not there"):
        counts.of(("orders",))
    assert counts.is_fresh, "a missing topic causes no request for each query"
    cluster.create_topic("orders", 3)
    cluster.advance(COUNTS_FRESH_S)
    assert counts.of(("orders",)) == 3
    cluster.add_partitions("orders", 5)
    assert counts.of(("orders",)) == 3
    cluster.advance(COUNTS_FRESH_S)
    assert not counts.is_fresh
    assert counts.of(("orders", "nosuch")) == 5


def test_known_counts_are_used_while_kafka_does_not_answer() -> None:
    cluster, made = InMemoryCluster(), topology()
    cluster.create_topic("orders", 3)
    counts = PartitionCounts(made, cluster.connect(InlineProcess(cluster.clock)), cluster.clock)
    cluster.network.brokers_up = False
    began = cluster.clock.monotonic()
    with pytest.raises(StateAway, match="are not known: No answer from Kafka"):
        counts.of(("orders",))
    assert cluster.clock.monotonic() - began <= REQUEST_TIMEOUT_S
    cluster.network.brokers_up = True
    assert counts.of(("orders",)) == 3
    cluster.network.brokers_up = False
    cluster.advance(COUNTS_FRESH_S)
    assert counts.of(("orders",)) == 3
    assert counts.is_fresh
