"""Running aggregates over numpy arrays: pure functions whose results equal processing one message at a time.

Messages are sorted by row, and keep their order within a row. The rank of a message is its number within its row. All
messages of one rank are computed in one numpy step, from the results of the previous rank::

    rows in order of arrival   a b a c a        sorted   a a a b c
                                                rank     0 1 2 0 0
    step 0: a0, b0, c0 from the rows   step 1: a1 = a0 + item   step 2: a2 = a1 + item

If a row has more than ``RANKS_MAX`` messages, a Python loop adds them instead of numpy.

All numbers are stored as floats. A boolean array (``whole``) tells which of them are integers (Python's ``int``).
Integers below ``WHOLE_MAX`` are exact as floats. Their sums are exact while they stay below ``WHOLE_MAX``;
``Numbers.fit`` checks this.

Invariants:
    - No sum is made of partial sums, because ``np.add.reduceat`` and differences of ``np.cumsum`` round differently
      from a loop in Python.
    - If numbers are equal, the first of them is kept: 0.0 or -0.0, 1 or 1.0. ``np.minimum`` does not guarantee this.
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

#: Every integer below this number is exact as a float.
WHOLE_MAX = float(1 << 53)
#: A row with more messages than this number is computed by a Python loop, one message after the other.
RANKS_MAX = 24


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers, stored as floats.

    ``whole`` is a boolean array: True where the number is an ``int``. It is None if no number is an ``int``.
    """

    values: Floats
    whole: Marks | None = None

    def take(self, places: Places) -> Numbers:
        """Returns the numbers at these positions."""
        return Numbers(self.values[places], None if self.whole is None else self.whole[places])

    def fit(self) -> bool:
        """Whether all numbers are finite, and all integers are exact as floats."""
        if self.whole is None or not self.whole.any():
            return bool(np.isfinite(self.values).all())
        most = np.abs(self.values)
        return bool((most < np.where(self.whole, WHOLE_MAX, np.inf)).all())

    def as_python(self) -> list[Any]:
        """Converts the numbers to Python's ``int`` and ``float``."""
        if self.whole is None or not self.whole.any():
            return list(self.values.tolist())
        if self.whole.all():
            return list(self.values.astype(np.int64).tolist())
        pairs = zip(self.values.tolist(), self.whole.tolist(), strict=True)
        return [int(value) if whole else value for value, whole in pairs]


@dataclass(frozen=True, slots=True)
class Held:
    """The numbers that the rows have before the messages are added.

    ``there`` is an array that is True for each row that has a number.
    """

    numbers: Numbers
    there: Marks


@dataclass(frozen=True, slots=True)
class Segments:
    """Messages that are computed together, sorted by row.

    Attributes:
        order: The positions of the messages, sorted by row. All other attributes use this sorted order.
        rows: The rows that have messages, ascending.
        starts: The position of the first message of each row.
        lasts: The position of the last message of each row.
        ranks: The rank of each message: its number within its row, from 0.
        later: For rank 1, rank 2 and so on, the positions of all messages with this rank. Rows in ``long`` are left
            out.
        long: For each row with more than ``RANKS_MAX`` messages, the position of its first message, and of its last
            message + 1.
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
        """Returns the segments of these messages. ``rows`` has the row of each message, and must not be empty."""
        count = len(rows)
        # numpy sorts 16-bit integers with the faster radix sort. With few keys, all row numbers fit into 16 bits.
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
        by_rank = np.argsort(few, kind="stable")
        ends = np.cumsum(np.bincount(few, minlength=highest + 1))
        later = tuple(by_rank[ends[rank - 1] : ends[rank]] for rank in range(1, highest + 1))
        return Segments(order, ordered[starts], starts, starts + counts - 1, ranks, later, long)

    def unsorted(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns values in the order in which the messages arrived."""
        result = np.empty_like(values)
        result[self.order] = values
        return result


def running_count(held: Places, segments: Segments) -> Places:
    """Returns for each message the count of its row, this message included.

    ``held`` is the count of each row before these messages, 0 for a new row.
    """
    return np.repeat(held, segments.lasts - segments.starts + 1) + segments.ranks + 1


def running_sum(numbers: Numbers, held: Held, segments: Segments) -> Numbers:
    """Returns for each message the sum of its row up to this message. The caller must check the result with ``fit``."""
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
    """Returns for each message the minimum or maximum of its row up to this message.

    If numbers are equal, the first of them is kept.
    """
    sign = 1.0 if least else -1.0  # The maximum is the negated minimum of the negated numbers. Negation is exact.
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
    """Yields for each index of ``values`` the position of the smallest value up to this index."""
    at, least = first, values[0]
    for place, value in enumerate(values, first):
        if value < least:
            at, least = place, value
        yield at


def _marks(numbers: Numbers) -> Marks:
    return np.zeros(len(numbers.values), bool) if numbers.whole is None else numbers.whole
