"""Running aggregates over columns: pure functions of arrays, to the bit what adding and comparing one by one gives.

Messages are sorted by row, each row's in their order. A message's place in its row is its rank; all messages of one
rank are computed at once, from those of the rank before. Rows with many messages are folded on their own.

Numbers are floats here, with a mark on those that are whole (Python's ``int``). Whole numbers below ``WHOLE_MAX`` are
exact as floats, and so are their sums as long as these stay below it; at it or beyond, nothing here may be used.

Invariants:
    - No sum is made of partial sums: ``np.add.reduceat`` and differences of ``np.cumsum`` round otherwise.
    - Of equal numbers the first is kept, with its sign of zero and its mark: ``np.minimum`` promises neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
Places = NDArray[np.int64]

#: Below it every whole number is a float of its own.
WHOLE_MAX = float(1 << 53)
#: Rows with more messages than this are folded on their own.
RANKS_MAX = 24


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers; ``whole`` marks those that are Python's ``int``, None when none is."""

    values: Floats
    whole: Marks | None = None

    def take(self, places: Places) -> Numbers:
        """Those at some places."""
        return Numbers(self.values[places], None if self.whole is None else self.whole[places])

    def fit(self) -> bool:
        """Whether all are finite, and the whole ones exact."""
        if self.whole is None or not self.whole.any():
            return bool(np.isfinite(self.values).all())
        most = np.abs(self.values)
        return bool((most < np.where(self.whole, WHOLE_MAX, np.inf)).all())

    def as_python(self) -> list[Any]:
        """As ``int`` and ``float``."""
        if self.whole is None or not self.whole.any():
            return list(self.values.tolist())
        if self.whole.all():
            return list(self.values.astype(np.int64).tolist())
        pairs = zip(self.values.tolist(), self.whole.tolist(), strict=True)
        return [int(value) if whole else value for value, whole in pairs]


@dataclass(frozen=True, slots=True)
class Held:
    """What rows held before; ``there`` marks those that held anything, None when all did."""

    numbers: Numbers
    there: Marks


@dataclass(frozen=True, slots=True)
class Segments:
    """Messages by row.

    Attributes:
        order: The messages' places, sorted by row; all other places here are places in this order.
        rows: The rows that have messages, ascending.
        starts: The first message of each row.
        lasts: The last message of each row.
        ranks: Each message's place in its row.
        later: Of rows with few messages, the places of all second, third, ... messages.
        long: First place, and place behind the last, of each row with many.
    """

    order: Places
    rows: Places
    starts: Places
    lasts: Places
    ranks: Places
    later: tuple[Places, ...]
    long: tuple[tuple[int, int], ...]

    @staticmethod
    def of(rows: Places) -> Segments:
        """From each message's row; there is at least one message."""
        count = len(rows)
        # Sorting 16 bits at a time is a radix sort; row numbers are small as long as there are few keys.
        order = np.argsort(rows.astype(np.uint16) if rows.max() < 1 << 16 else rows, kind="stable")
        ordered = rows[order]
        begins = np.empty(count, bool)
        begins[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
        starts = np.flatnonzero(begins)
        counts = np.diff(starts, append=count)
        ranks = np.arange(count) - np.repeat(starts, counts)
        few = ranks
        long: tuple[tuple[int, int], ...] = ()
        if counts.max() > RANKS_MAX:
            many = counts > RANKS_MAX
            long = tuple(zip(starts[many].tolist(), (starts + counts)[many].tolist(), strict=True))
            few = np.where(np.repeat(many, counts), 0, ranks)
        highest = int(few.max())
        by_rank = np.argsort(few.astype(np.uint8), kind="stable")
        ends = np.cumsum(np.bincount(few, minlength=highest + 1))
        later = tuple(by_rank[ends[rank - 1] : ends[rank]] for rank in range(1, highest + 1))
        return Segments(order, ordered[starts], starts, starts + counts - 1, ranks, later, long)

    def unsorted(self, values: NDArray[Any]) -> NDArray[Any]:
        """Back in the order of the messages."""
        result = np.empty_like(values)
        result[self.order] = values
        return result


def running_count(held: Places, segments: Segments) -> Places:
    """How many messages each row has had, at each message; ``held`` is 0 for rows without any."""
    return np.repeat(held, segments.lasts - segments.starts + 1) + segments.ranks + 1


def running_sum(numbers: Numbers, held: Held, segments: Segments) -> Numbers:
    """The totals at each message; for the caller to check with ``fit``."""
    starts, values = segments.starts, numbers.values
    sums = values.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        sums[starts] = np.where(held.there, held.numbers.values + values[starts], values[starts])
        for places in segments.later:
            sums[places] += sums[places - 1]
        for first, end in segments.long:
            sums[first:end] = list(accumulate(sums[first:end].tolist()))
    if numbers.whole is None and held.numbers.whole is None:
        return Numbers(sums)
    whole = _marks(numbers).copy()
    whole[starts] &= ~held.there | _marks(held.numbers)
    for places in segments.later:
        whole[places] &= whole[places - 1]
    for first, end in segments.long:
        whole[first:end] = np.logical_and.accumulate(whole[first:end])
    return Numbers(sums, whole)


def running_extreme(numbers: Numbers, held: Held, segments: Segments, *, least: bool) -> Numbers:
    """The least, or the greatest, number at each message; of equal ones the first."""
    sign = 1.0 if least else -1.0  # changing the sign is exact
    best = numbers.values * sign
    whole = None
    if numbers.whole is not None or held.numbers.whole is not None:
        whole = _marks(numbers).copy()
    starts = segments.starts
    before = held.numbers.values * sign
    keep = held.there & ~(best[starts] < before)
    best[starts] = np.where(keep, before, best[starts])
    if whole is not None:
        whole[starts] = np.where(keep, _marks(held.numbers), whole[starts])
    for places in segments.later:
        keep = ~(best[places] < best[places - 1])
        best[places] = np.where(keep, best[places - 1], best[places])
        if whole is not None:
            whole[places] = np.where(keep, whole[places - 1], whole[places])
    for first, end in segments.long:
        at = list(_places_of_least(best[first:end].tolist(), first))
        best[first:end] = best[at]
        if whole is not None:
            whole[first:end] = whole[at]
    return Numbers(best * sign, whole)


def _places_of_least(values: list[float], first: int) -> Iterator[int]:
    """Where the least number so far stands."""
    at, least = first, values[0]
    for place, value in enumerate(values, first):
        if value < least:
            at, least = place, value
        yield at


def _marks(numbers: Numbers) -> Marks:
    return np.zeros(len(numbers.values), bool) if numbers.whole is None else numbers.whole
