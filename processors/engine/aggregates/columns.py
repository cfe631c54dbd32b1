"""The columns of an aggregation, as numpy arrays. An array has one element for each row (a message key or a window).

A column processes a run (consecutive messages) in two steps: ``run`` computes without changing anything, and ``keep``
stores the result. Between these steps, ``shown`` makes the outputs. If numpy can't compute a run with exactly the same
results as Python, ``run`` raises ``Unfit``. ``Aggregation`` or ``WindowStore`` then processes the messages of the run
one by one (the plain path).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Protocol

import msgspec
import numpy as np

from holdfast.processors.engine.aggregates.kernels import (
    WHOLE_MAX,
    Held,
    Numbers,
    Places,
    Segments,
    running_count,
    running_extreme,
    running_sum,
)

_SCALARS = {str, int, float, bool, type(None)}


class Unfit(Exception):
    """Raised if numpy can't compute these messages exactly. They must then be processed one by one, without numpy."""


def numbers_of(items: Sequence[Any]) -> Numbers:
    """Converts items to an array of numbers.

    Raises Unfit if an item is not a finite number, or a float can't hold it exactly.
    """
    kinds = set(map(type, items))
    if kinds == {float}:
        numbers = Numbers(np.array(items, np.float64))
    elif kinds <= {int, float}:
        try:
            values = np.fromiter(items, np.float64, len(items))
        except OverflowError as failure:
            raise Unfit from failure
        whole = np.ones(len(items), bool)
        if float in kinds:
            whole = np.fromiter((type(item) is int for item in items), bool, len(items))
        numbers = Numbers(values, whole)
    else:
        raise Unfit
    if not numbers.fit():
        raise Unfit
    return numbers


def check_scalars(items: Sequence[Any]) -> int:
    """Checks that JSON returns each item unchanged. Returns the length of the longest text in characters, or 0.

    Raises:
        Unfit: An item is not a text, a 64-bit integer, a finite float, a boolean or null.
    """
    kinds = set(map(type, items))
    if not kinds <= _SCALARS:
        raise Unfit
    if int in kinds:
        whole = items if len(kinds) == 1 else [item for item in items if type(item) is int]
        if min(whole) < -(1 << 63) or max(whole) >= 1 << 63:
            raise Unfit
    if float in kinds and not all(isfinite(item) for item in items if type(item) is float):
        raise Unfit
    if str not in kinds:
        return 0
    return max(map(len, items if len(kinds) == 1 else [item for item in items if type(item) is str]))


_encode = msgspec.json.Encoder().encode


def as_json(items: Iterable[Any]) -> list[bytes]:
    """Encodes each item as JSON."""
    return list(map(_encode, items))


class Column(Protocol):
    """One column of an aggregation, for all rows. A row belongs to one message key or one window."""

    def grow(self, capacity: int) -> None:
        """Enlarges the arrays to ``capacity`` rows."""

    def check(self, stored: Sequence[Any]) -> None:
        """Raises Unfit if the column can't hold one of these stored values."""

    def clear(self, rows: Places) -> None:
        """Removes the stored values from these rows, so that the rows are empty."""

    def load(self, rows: Places, stored: Sequence[Any]) -> None:
        """Loads these stored values into these rows. For the value None, the row becomes empty."""

    def run(self, items: Any, segments: Segments) -> Any:
        """Computes the column after each message of ``segments`` (messages sorted by row), without changing the rows.

        Pass the returned object to ``shown`` and ``keep``, as their argument ``ran``.
        """

    def shown(self, ran: Any, segments: Segments) -> list[Any]:
        """Returns the column's output for each message, in the order of the messages.

        ``ran`` is the result of ``run``.
        """

    def results(self, rows: Places) -> list[Any]:
        """Returns the current output of each of these rows; None for a row without a value."""

    def keep(self, segments: Segments, ran: Any) -> None:
        """Stores the result of ``run`` in the rows. ``run`` itself leaves the rows unchanged."""

    #: The template of the column's stored JSON, with ``%b`` for each part that ``stored`` returns.
    form: bytes

    def stored(self, rows: Places) -> list[list[bytes]]:
        """Encodes these rows as parts of JSON text: for each ``%b`` in ``form``, a list with one part for each row."""


class CountColumn(Column):
    """The number of messages of each row, as an exact integer."""

    form = b"%b"

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)

    def grow(self, capacity: int) -> None:
        self._counts = grown(self._counts, capacity)

    def check(self, stored: Sequence[Any]) -> None:
        kinds = set(map(type, stored))
        if not kinds <= {int, type(None)}:
            raise Unfit
        if int in kinds:
            counts = [held for held in stored if held is not None]
            if min(counts) < 0 or max(counts) >= WHOLE_MAX:
                raise Unfit

    def load(self, rows: Places, stored: Sequence[Any]) -> None:
        self._counts[rows] = [held or 0 for held in stored]

    def clear(self, rows: Places) -> None:
        self._counts[rows] = 0

    def run(self, items: Any, segments: Segments) -> Places:
        return running_count(self._counts[segments.rows], segments)

    def shown(self, ran: Places, segments: Segments) -> list[Any]:
        return list(segments.unsorted(ran).tolist())

    def results(self, rows: Places) -> list[Any]:
        return [count or None for count in self._counts[rows].tolist()]

    def keep(self, segments: Segments, ran: Any) -> None:
        self._counts[segments.rows] = ran[segments.lasts]

    def stored(self, rows: Places) -> list[list[bytes]]:
        return [as_json(self._counts[rows].tolist())]


class NumberColumn(Column):
    """The sum, minimum or maximum of each row: the column of ``Sum``, ``Min`` and ``Max``."""

    form = b"%b"

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._values = np.zeros(0, np.float64)
        self._whole = np.zeros(0, bool)
        self._there = np.zeros(0, bool)

    def grow(self, capacity: int) -> None:
        self._values = grown(self._values, capacity)
        self._whole, self._there = grown(self._whole, capacity), grown(self._there, capacity)

    def check(self, stored: Sequence[Any]) -> None:
        kinds = set(map(type, stored))
        if not kinds <= {float, int, type(None)}:
            raise Unfit
        if int in kinds and not all(abs(held) < WHOLE_MAX for held in stored if type(held) is int):
            raise Unfit

    def load(self, rows: Places, stored: Sequence[Any]) -> None:
        if set(map(type, stored)) == {float}:
            self._values[rows], self._whole[rows], self._there[rows] = stored, False, True
            return
        self._values[rows] = [0.0 if held is None else float(held) for held in stored]
        self._whole[rows] = [type(held) is int for held in stored]
        self._there[rows] = [held is not None for held in stored]

    def clear(self, rows: Places) -> None:
        self._there[rows] = self._whole[rows] = False

    def run(self, items: Numbers, segments: Segments) -> Numbers:
        rows = segments.rows
        whole = self._whole[rows]
        held = Held(Numbers(self._values[rows], whole if whole.any() else None), self._there[rows])
        if self._kind != "sum":
            return running_extreme(items.take(segments.order), held, segments, least=self._kind == "min")
        ran = running_sum(items.take(segments.order), held, segments)
        if not ran.fit():
            raise Unfit
        return ran

    def shown(self, ran: Numbers, segments: Segments) -> list[Any]:
        marks = None if ran.whole is None else segments.unsorted(ran.whole)
        return Numbers(segments.unsorted(ran.values), marks).as_python()

    def results(self, rows: Places) -> list[Any]:
        made, there = Numbers(self._values[rows], self._whole[rows]).as_python(), self._there[rows]
        return made if there.all() else [each if held else None for each, held in zip(made, there, strict=True)]

    def keep(self, segments: Segments, ran: Numbers) -> None:
        rows, last = segments.rows, ran.take(segments.lasts)
        self._values[rows] = last.values
        self._whole[rows] = False if last.whole is None else last.whole
        self._there[rows] = True

    def stored(self, rows: Places) -> list[list[bytes]]:
        return [as_json(Numbers(self._values[rows], self._whole[rows]).as_python())]


class MeanColumn(Column):
    """The sum and the count of each row. The output is the sum divided by the count."""

    form = b'{"sum":%b,"count":%b}'

    def __init__(self) -> None:
        self._totals = NumberColumn("sum")
        self._counts = CountColumn()

    def grow(self, capacity: int) -> None:
        self._totals.grow(capacity)
        self._counts.grow(capacity)

    def check(self, stored: Sequence[Any]) -> None:
        totals, counts = _parted(stored)
        self._totals.check(totals)
        self._counts.check(counts)
        if any(held is not None and (held.sum is None or not held.count) for held in stored):
            raise Unfit

    def load(self, rows: Places, stored: Sequence[Any]) -> None:
        totals, counts = _parted(stored)
        self._totals.load(rows, totals)
        self._counts.load(rows, counts)

    def clear(self, rows: Places) -> None:
        self._totals.clear(rows)
        self._counts.clear(rows)

    def run(self, items: Numbers, segments: Segments) -> tuple[Numbers, Places]:
        return self._totals.run(items, segments), self._counts.run(None, segments)

    def shown(self, ran: tuple[Numbers, Places], segments: Segments) -> list[Any]:
        # The sum and the count are exact as floats. Only the division rounds, and it rounds like Python's division.
        return list(segments.unsorted(ran[0].values / ran[1]).tolist())

    def results(self, rows: Places) -> list[Any]:
        pairs = zip(self._totals.results(rows), self._counts.results(rows), strict=True)
        return [None if count is None else total / count for total, count in pairs]

    def keep(self, segments: Segments, ran: Any) -> None:
        self._totals.keep(segments, ran[0])
        self._counts.keep(segments, ran[1])

    def stored(self, rows: Places) -> list[list[bytes]]:
        return [*self._totals.stored(rows), *self._counts.stored(rows)]


class LastColumn(Column):
    """The newest value of each row, as a Python object."""

    form = b"%b"

    def __init__(self) -> None:
        self._values: Any = np.zeros(0, object)

    def grow(self, capacity: int) -> None:
        self._values = grown(self._values, capacity)

    def check(self, stored: Sequence[Any]) -> None:
        """Does nothing, because this column can hold values of every type."""

    def load(self, rows: Places, stored: Sequence[Any]) -> None:
        self._values[rows] = np.fromiter(stored, object, len(stored))

    def clear(self, rows: Places) -> None:
        self._values[rows] = None

    def run(self, items: list[Any], segments: Segments) -> list[Any]:
        return items

    def shown(self, ran: list[Any], segments: Segments) -> list[Any]:
        return ran

    def results(self, rows: Places) -> list[Any]:
        return list(self._values[rows].tolist())

    def keep(self, segments: Segments, ran: list[Any]) -> None:
        items = np.fromiter(ran, object, len(ran))
        self._values[segments.rows] = items[segments.order[segments.lasts]]

    def stored(self, rows: Places) -> list[list[bytes]]:
        return [as_json(self._values[rows].tolist())]


def struct_of(name: str, fields: Iterable[str], kind: Any = Any, default: Any = msgspec.NODEFAULT) -> Any:
    """Returns a new class. Its objects are encoded as JSON objects with these fields, in this order.

    Raises:
        Unfit: The name of a field has a character that JSON must escape.
    """
    names = {f"field_{number}": field for number, field in enumerate(fields)}
    made = [(plain, kind, msgspec.field(default=default)) for plain in names]
    try:
        return msgspec.defstruct(name, made, rename=names, gc=False)
    except (TypeError, ValueError) as failure:  # msgspec refuses a name with a character that JSON must escape
        raise Unfit from failure


class StoredMean(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The stored JSON of a mean: ``sum`` and ``count``. Other fields are refused."""

    sum: Any
    count: Any


def _parted(means: Sequence[StoredMean | None]) -> tuple[list[Any], list[Any]]:
    """Splits stored means, each with a sum and a count, into a list of the sums and a list of the counts."""
    if None not in means:
        return [mean.sum for mean in means], [mean.count for mean in means]  # type: ignore[union-attr]
    parts = [(None, None) if mean is None else (mean.sum, mean.count) for mean in means]
    return [total for total, _ in parts], [count for _, count in parts]


def grown(array: Any, capacity: int) -> Any:
    """Returns a copy of an array with the length ``capacity``. New elements are zero."""
    made = np.zeros(capacity, array.dtype)
    made[: len(array)] = array
    return made
