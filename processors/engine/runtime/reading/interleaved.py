"""Records that a task processes together: a run of one input, or records of several inputs in one order.

parts    left  l0 l1 l2       order  0 3 1 2 4   ──►   l0 r0 l1 l2 r1
         right r0 r1                 └ the index of a record among those of all parts, part after part
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from holdfast.infra.kafka.records import Batch


class Run(NamedTuple):
    """Records ``first`` to ``last`` - 1 of a batch."""

    batch: Batch
    first: int
    last: int

    def place(self, index: int) -> tuple[Batch, int]:
        """The batch of the record at a place of the run, and its index there."""
        return self.batch, self.first + index

    def behind(self, count: int) -> dict[str, int]:
        """By topic, the offset after the first ``count`` records; empty without records."""
        return {self.batch.partition.topic: self.batch.offsets[self.first + count - 1] + 1} if count > 0 else {}

    def newest(self, index: int) -> int:
        """The latest timestamp from the record at ``index`` on, of the same input, in milliseconds."""
        return max(self.batch.timestamps[self.first + index : self.last])

    def is_taken(self, positions: Mapping[str, int]) -> bool:
        """Whether all records of the run are processed, given by topic the next offset to process."""
        return self.first == self.last or positions[self.batch.partition.topic] > self.batch.offsets[self.last - 1]

    @property
    def size(self) -> int:
        """The number of records."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class InterleavedRun:
    """Records of several inputs, one part for each, in an order that keeps the order of each part."""

    parts: tuple[Run, ...]
    order: Sequence[int]

    def place(self, index: int) -> tuple[Batch, int]:
        """As of ``Run``."""
        part, at = self._part(self.order[index])
        return part.place(at)

    def behind(self, count: int) -> dict[str, int]:
        """As of ``Run``."""
        if count == len(self.order):
            return {topic: offset for part in self.parts for topic, offset in part.behind(part.size).items()}
        found: dict[str, int] = {}
        for index in reversed(self.order[: max(0, count)]):
            part, at = self._part(index)
            found = part.behind(at + 1) | found
            if len(found) == len(self.parts):
                break  # the last one of each part is found
        return found

    def newest(self, index: int) -> int:
        """As of ``Run``."""
        part, at = self._part(self.order[index])
        return part.newest(at)

    def is_taken(self, positions: Mapping[str, int]) -> bool:
        """As of ``Run``."""
        return all(part.is_taken(positions) for part in self.parts)

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self.order)

    def runs(self) -> list[Run]:
        """The same records as runs."""
        found, at = [], [part.first for part in self.parts]
        ranks = [rank for rank, part in enumerate(self.parts) for _ in range(part.size)]
        for rank, group in groupby(ranks[index] for index in self.order):
            last = at[rank] + len(list(group))
            found.append(Run(self.parts[rank].batch, at[rank], last))
            at[rank] = last
        return found

    def _part(self, index: int) -> tuple[Run, int]:
        """The part of the record with a given index in the order, and its index in the part."""
        for part in self.parts:
            if index < part.size:
                return part, index
            index -= part.size
        raise IndexError(index)
