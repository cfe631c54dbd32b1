"""Up to which offsets a worker reads its inputs: to their ends, or, while it builds a store anew, up to given bounds.

Invariants:
    - A bounded worker processes no record at or past its bound, and none of a partition without a bound.
    - Bounds live as long as the process: a restarted worker reads nothing until it gets bounds again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from holdfast.infra.kafka.records import Batch, Partition


class Reach:
    """Up to which offsets records are processed.

    Args:
        bounded: Whether nothing is, before it is told; else all are.
    """

    def __init__(self, *, bounded: bool) -> None:
        self.bounded = bounded
        self._bounds: dict[Partition, int] = {}

    def within(self, batch: Batch) -> int:
        """How many records of a batch, from its first on, are to be processed."""
        if not self.bounded:
            return len(batch.offsets)
        return bisect_left(batch.offsets, self._bounds.get(batch.partition, 0))

    def extend(self, bounds: Mapping[Partition, int]) -> None:
        """Process records of these partitions up to new offsets."""
        self._bounds.update(bounds)
