"""Finds the partitions that can have a message key.

A repartition topic (``group_by``) has each key where murmur2 puts it. Other programs choose the partition of a source
topic's records, mostly by murmur2 or by crc32. The key is looked for in these two partitions first, then in the others.
So a key is found wherever it is, and it is said to be absent only if no partition has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from holdfast.infra.clock import Clock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.topics.partitioners import MURMUR2, PARTITIONERS
from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.topology import StoreSpec, Topology

#: Seconds for which the partition counts of topics are reused, and the timeout of a request for them.
COUNTS_FRESH_S, REQUEST_TIMEOUT_S = 10.0, 2.5


def partitions_of_key(key: bytes, count: int, *, grouped: bool) -> tuple[int, ...]:
    """Returns the partitions that can have a key, the likeliest first.

    Args:
        count: The number of partitions of the store's inputs.
        grouped: Whether all inputs of the store are repartition topics, so that murmur2 is certain.
    """
    if grouped:
        return (PARTITIONERS[MURMUR2](key, count),)
    likely = (place(key, count) for place in PARTITIONERS.values())
    return tuple(dict.fromkeys((*likely, *range(count))))


def is_grouped(topology: Topology, spec: StoreSpec) -> bool:
    """Whether all inputs of a store are repartition topics."""
    return all(topology.is_repartition(name) for name in spec.inputs)


class PartitionCounts:
    """The partition counts of a processor's inputs, requested from Kafka and reused for a short time."""

    def __init__(self, topology: Topology, cluster: Cluster, clock: Clock) -> None:
        self._inputs = [spec.name for spec in topology.inputs]
        self._cluster, self._clock = cluster, clock
        self._lock = Lock()
        self._counts: Mapping[str, int] = {}
        self._until = float("-inf")

    @property
    def is_fresh(self) -> bool:
        """Whether ``of`` needs no request to Kafka."""
        return self._clock.monotonic() < self._until

    def of(self, inputs: tuple[str, ...]) -> int:
        """Returns the number of partitions of topics that share a store.

        Raises:
            StateAway: Kafka does not answer, and the counts are not known yet.
        """
        with self._lock:
            if self._clock.monotonic() >= self._until:
                self._look()
            count = max((self._counts.get(name, 0) for name in inputs), default=0)
        if not count:
            raise StateAway(f"The topics {', '.join(inputs)} are not there.")
        return count

    def _look(self) -> None:
        try:
            described = self._cluster.topics(REQUEST_TIMEOUT_S).describe(self._inputs)
        except HoldfastError as failure:
            if not self._counts:
                raise StateAway(f"The partitions of the inputs are not known: {failure.message}") from failure
        else:
            self._counts = {name: facts.partitions for name, facts in described.items()}
        self._until = self._clock.monotonic() + COUNTS_FRESH_S
