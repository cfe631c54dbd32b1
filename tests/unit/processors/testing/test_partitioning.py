"""Keys are sent to the same partitions as by Kafka's own clients."""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.topics.partitioners import murmur2
from holdfast.processors.testing import InMemoryCluster


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_has_the_values_of_kafkas_own_tests(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_equal_keys_share_a_partition_and_a_given_partition_wins() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions=5)
    for number in range(40):
        cluster.produce("in", b"%d" % number, b"k%d" % (number % 10))
    cluster.produce("in", b"placed", b"k0", partition=4)
    places = {}
    for partition, record in cluster.read("in"):
        if record.value != b"placed":
            places.setdefault(record.key, set()).add(partition)
    assert len(places) == 10
    assert {len(found) for found in places.values()} == {1}
    assert len(set.union(*places.values())) > 1
    assert [partition for partition, record in cluster.read("in") if record.value == b"placed"] == [4]
