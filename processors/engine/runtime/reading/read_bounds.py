"""Limits the offsets up to which a shadow reads its inputs. A shadow is a worker that only rebuilds a store.

Invariants:
    - A shadow processes no record at or after a partition's bound, and no record of a partition without a bound.
    - Bounds are kept in memory only: a restarted shadow reads nothing until it gets bounds again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from holdfast.infra.kafka.records import Batch, Partition


class ReadBounds:
    """The offsets (bounds) before which a worker must stop reading its inputs.

    If ``bounded`` is False, the worker reads without bounds.
    """

    def __init__(self, *, bounded: bool) -> None:
        self.bounded = bounded
        self._bounds: dict[Partition, int] = {}
        #: Partitions in which a record at or after the bound has arrived.
        self._passed: set[Partition] = set()

    def within(self, batch: Batch) -> int:
        """Returns the number of records at the start of the batch that are before the partition's bound."""
        if not self.bounded:
            return len(batch.offsets)
        within = bisect_left(batch.offsets, self._bounds.get(batch.partition, 0))
        if within < len(batch.offsets):
            self._passed.add(batch.partition)
        return within

    def is_ended(self, partition: Partition, position: int) -> bool:
        """Whether the partition has no record between this position and its bound."""
        return self.bounded and (partition in self._passed or position >= self._bounds.get(partition, 0))

    def extend(self, bounds: Mapping[Partition, int]) -> None:
        """Sets new bounds for these partitions."""
        self._bounds.update(bounds)
        self._passed.difference_update(bounds)
