"""Running aggregates over arrays: pure functions with exactly the results of processing one message at a time.

Messages are sorted by row and keep their order within a row. The rank of a message is its number within its row. All
messages of one rank are computed in one numpy step, from the results of the rank before::

    rows in order of arrival   a b a c a        sorted   a a a b c
                                                rank     0 1 2 0 0
    step 0: a0, b0, c0 from the rows   step 1: a1 = a0 + item   step 2: a2 = a1 + item

A row with more than ``RANKS_MAX`` messages is folded alone, in Python.

Numbers are floats; a mark tells which ones are integers (Python's ``int``). Integers below ``WHOLE_MAX`` are exact as
floats. Their sums are exact while they stay below ``WHOLE_MAX``, which ``Numbers.fit`` checks.

Invariants:
    - No sum is made of partial sums: ``np.add.reduceat`` and differences of ``np.cumsum`` round differently.
    - The first one of equal numbers is kept, with its sign of zero and its mark; ``np.minimum`` guarantees neither.
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

#: Below this number, every integer is exact as a float.
WHOLE_MAX = float(1 << 53)
#: Rows with more messages than this are folded alone.
RANKS_MAX = 24


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers; ``whole`` marks values of Python's ``int``, None if there are none."""

    values: Floats
    whole: Marks | None = None

    def take(self, places: Places) -> Numbers:
        """The numbers at these places."""
        return Numbers(self.values[places], None if self.whole is None else self.whole[places])

    def fit(self) -> bool:
        """Whether all numbers are finite, and all integers exact as floats."""
        if self.whole is None or not self.whole.any():
            return bool(np.isfinite(self.values).all())
        most = np.abs(self.values)
        return bool((most < np.where(self.whole, WHOLE_MAX, np.inf)).all())

    def as_python(self) -> list[Any]:
        """The numbers as ``int`` and ``float``."""
        if self.whole is None or not self.whole.any():
            return list(self.values.tolist())
        if self.whole.all():
            return list(self.values.astype(np.int64).tolist())
        pairs = zip(self.values.tolist(), self.whole.tolist(), strict=True)
        return [int(value) if whole else value for value, whole in pairs]


@dataclass(frozen=True, slots=True)
class Held:
    """The numbers in the rows before a run; ``there`` marks the rows with a number."""

    numbers: Numbers
    there: Marks


@dataclass(frozen=True, slots=True)
class Segments:
    """Messages by row.

    Attributes:
        order: The positions of the messages, sorted by row; all other attributes use this order.
        rows: The rows with messages, ascending.
        starts: The first message of each row.
        lasts: The last message of each row.
        ranks: The rank of each message.
        later: The places of all messages with rank 1, rank 2, ... in rows with few messages.
        long: The range of places of each row with many messages: first, and last + 1.
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
        """The segments of at least one message, computed from each message's row."""
        count = len(rows)
        # numpy sorts 16-bit integers by radix sort. With few keys all row numbers fit into 16 bits.
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
        """Values in the order of the messages' arrival."""
        result = np.empty_like(values)
        result[self.order] = values
        return result


def running_count(held: Places, segments: Segments) -> Places:
    """The running count of the message's row at each message; ``held`` is the count before the run, 0 for a new row."""
    return np.repeat(held, segments.lasts - segments.starts + 1) + segments.ranks + 1


def running_sum(numbers: Numbers, held: Held, segments: Segments) -> Numbers:
    """The running total of the message's row at each message; the caller checks the result with ``fit``."""
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
    """The running minimum (or maximum) of the message's row at each message; the first of equal numbers."""
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
    """The place of the least number so far."""
    at, least = first, values[0]
    for place, value in enumerate(values, first):
        if value < least:
            at, least = place, value
        yield at


def _marks(numbers: Numbers) -> Marks:
    return np.zeros(len(numbers.values), bool) if numbers.whole is None else numbers.whole
