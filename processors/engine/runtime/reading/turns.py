"""A turn ends at the first records that were not processed; all later records are left for the next turn.

    turn 1    orders 0..4   │ prices 0..1   orders 5..9      the calls of orders 0..2 fill the time of a transaction:
                   └ cut at 3 └───── left ──────────┘        what is behind them is given again
    turn 2    orders 3..4     prices 0..1   orders 5..9

A task has one position for each input. If the turn processed records after a cut, the position would skip unprocessed
messages, and a watermark or a message of another input would come too soon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Protocol, TypeVar

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run

Records = TypeVar("Records", Run, InterleavedRun, Run | InterleavedRun)


class Positioned(Protocol):
    """A task, with the next offset to process of each input."""

    @property
    def positions(self) -> Mapping[str, int]:
        """By input topic, the offset of the next record to process."""


def in_turn(records: Iterable[Records], task: Positioned) -> Iterator[Records]:
    """Yields records for the caller to process, as long as the caller processes all yielded records."""
    for each in records:
        yield each
        if not each.is_taken(task.positions):
            return


def without_watermarks(batch: Batch, first: int, last: int) -> Iterator[Run]:
    """Runs of messages, and each record without a key as a separate run."""
    keys = batch.keys
    for is_message, indices in groupby(range(first, last), key=lambda index: keys[index] is not None):
        of_run = list(indices)
        if is_message:
            yield Run(batch, of_run[0], of_run[-1] + 1)
        else:
            yield from (Run(batch, index, index + 1) for index in of_run)
