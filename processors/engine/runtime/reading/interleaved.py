"""Groups of records that a task processes in one call. They are of one input, or of several inputs in a common order.

    parts    left  l0 l1 l2       order  0 3 1 2 4   ──►   l0 r0 l1 l2 r1
             right r0 r1                 └ index of a record in the list of all parts: l0 l1 l2 r0 r1

A part is a *run*: consecutive records of one input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.state.store import StoreState


class Run(NamedTuple):
    """Consecutive records of one input: the records ``first`` to ``last`` - 1 of a batch."""

    batch: Batch
    first: int
    last: int

    def place(self, index: int) -> tuple[Batch, int]:
        """Returns the batch with record number ``index`` of this run, and the record's index in the batch."""
        return self.batch, self.first + index

    def behind(self, count: int) -> dict[str, int]:
        """Returns the position after the first ``count`` of these records, by topic; empty if ``count`` is 0."""
        return {self.batch.partition.topic: self.batch.offsets[self.first + count - 1] + 1} if count > 0 else {}

    def newest(self, index: int) -> int:
        """Returns the largest timestamp, in milliseconds, of record number ``index`` and all records after it."""
        return max(self.batch.timestamps[self.first + index : self.last])

    def is_taken(self, positions: Mapping[str, int]) -> bool:
        """Whether all records of this run are processed. ``positions`` maps the topic to the next offset to process."""
        return self.first == self.last or positions[self.batch.partition.topic] > self.batch.offsets[self.last - 1]

    @property
    def size(self) -> int:
        """The number of records in this run."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class InterleavedRun:
    """Records of several inputs in one common order. Each input has one part, whose records keep their order."""

    parts: tuple[Run, ...]
    order: Sequence[int]

    def place(self, index: int) -> tuple[Batch, int]:
        """Returns the batch with record number ``index`` of this order, and the record's index in that batch."""
        part, at = self._part(self.order[index])
        return part.place(at)

    def behind(self, count: int) -> dict[str, int]:
        """Returns the position of each topic after the first ``count`` of these records; empty if ``count`` is 0."""
        if count == len(self.order):
            return {topic: offset for part in self.parts for topic, offset in part.behind(part.size).items()}
        found: dict[str, int] = {}
        for index in reversed(self.order[: max(0, count)]):
            part, at = self._part(index)
            found = part.behind(at + 1) | found
            if len(found) == len(self.parts):
                break  # the positions of all parts are known
        return found

    def newest(self, index: int) -> int:
        """Returns the largest timestamp, in ms, of record number ``index`` and later records of the same input."""
        part, at = self._part(self.order[index])
        return part.newest(at)

    def is_taken(self, positions: Mapping[str, int]) -> bool:
        """Whether all records of all inputs are processed.

        ``positions`` maps each topic to the next offset to process.
        """
        return all(part.is_taken(positions) for part in self.parts)

    @property
    def size(self) -> int:
        """The number of records of all inputs."""
        return len(self.order)

    def runs(self) -> list[Run]:
        """Returns the same records in the same order, split into runs (consecutive records of one input)."""
        found, at = [], [part.first for part in self.parts]
        ranks = [rank for rank, part in enumerate(self.parts) for _ in range(part.size)]
        for rank, group in groupby(ranks[index] for index in self.order):
            last = at[rank] + len(list(group))
            found.append(Run(self.parts[rank].batch, at[rank], last))
            at[rank] = last
        return found

    def _part(self, index: int) -> tuple[Run, int]:
        """Returns the part that contains a record, and the record's index in the part.

        ``index`` is the record's index in the list of all parts, one part after the other.
        """
        for part in self.parts:
            if index < part.size:
                return part, index
            index -= part.size
        raise IndexError(index)


def prefetch(states: Collection[StoreState], *runs: Run) -> None:
    """Reads the state of these records' keys from RocksDB in one call, for stores whose cache lacks values."""
    asked = [state for state in states if state.prefetches]
    if asked:
        keys = {key for batch, first, last in runs for key in batch.keys[first:last] if key is not None}
        for state in asked:
            state.prefetch(keys)
