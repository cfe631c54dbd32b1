"""If a record can't be processed in this turn of the worker's main loop, all later records wait for the next turn.

    turn 1    orders 0..4   │ prices 0..1   orders 5..9      the async calls of orders 0..2 take as long as a
                   └ cut at 3 └───── left ──────────┘        transaction may be open, so the task stops there
    turn 2    orders 3..4     prices 0..1   orders 5..9

A task has one position for each input. If the task processed records after the cut, the position would skip the
unprocessed records before them. A watermark, or a message of another input, would also be processed too early.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Protocol, TypeVar

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run

Records = TypeVar("Records", Run, InterleavedRun, Run | InterleavedRun)


class Positioned(Protocol):
    """The part of a task that ``in_turn`` uses: the offset of the next record in each input."""

    @property
    def positions(self) -> Mapping[str, int]:
        """Maps each input topic to the offset of the next record to process."""


def in_turn(records: Iterable[Records], task: Positioned) -> Iterator[Records]:
    """Yields groups of records, which the caller processes one after the other.

    If the caller does not process a group completely, no further group is yielded in this turn.
    """
    for each in records:
        yield each
        if not each.is_taken(task.positions):
            return


def without_watermarks(batch: Batch, first: int, last: int) -> Iterator[Run]:
    """Splits records into runs.

    Consecutive messages are one run. Each watermark (a record without a key) is a run by itself.
    """
    keys = batch.keys
    for is_message, indices in groupby(range(first, last), key=lambda index: keys[index] is not None):
        of_run = list(indices)
        if is_message:
            yield Run(batch, of_run[0], of_run[-1] + 1)
        else:
            yield from (Run(batch, index, index + 1) for index in of_run)
