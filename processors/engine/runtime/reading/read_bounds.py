"""The offsets up to which a worker reads its inputs: none, or given bounds while it rebuilds a store.

Invariants:
    - A bounded worker processes no record at or past its bound, and none of a partition without a bound.
    - Bounds live as long as the process: a restarted worker reads nothing until it gets bounds again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from holdfast.infra.kafka.records import Batch, Partition


class ReadBounds:
    """The bounds of a worker's inputs; if ``bounded``, a partition without a bound is not processed at all."""

    def __init__(self, *, bounded: bool) -> None:
        self.bounded = bounded
        self._bounds: dict[Partition, int] = {}
        #: Partitions of which a record at or after the bound was read.
        self._passed: set[Partition] = set()

    def within(self, batch: Batch) -> int:
        """How many records of a batch to process, counted from its first."""
        if not self.bounded:
            return len(batch.offsets)
        within = bisect_left(batch.offsets, self._bounds.get(batch.partition, 0))
        if within < len(batch.offsets):
            self._passed.add(batch.partition)
        return within

    def is_ended(self, partition: Partition, position: int) -> bool:
        """Whether nothing is left to process from a position, because its bound was reached."""
        return self.bounded and (partition in self._passed or position >= self._bounds.get(partition, 0))

    def extend(self, bounds: Mapping[Partition, int]) -> None:
        """Process records of these partitions up to new offsets."""
        self._bounds.update(bounds)
        self._passed.difference_update(bounds)
