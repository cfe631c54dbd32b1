"""A table of rows with the columns of an aggregation, and the stored form of the rows.

Each row belongs to a message key; for windows, the caller also knows the window of each row. A row is loaded from a
stored value at its first use, and is later converted back to a stored value::

    stored values ─► add ─► rows: arrays by column ─► run, keep ─► (commit) _state_form % parts ─► stored values

``_state_form`` is a template of bytes with ``%b`` placeholders. Filling the template is faster than encoding objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from holdfast.processors.engine.aggregates.aggregation import FORMAT, FORMAT_VERSION, Aggregation, Aggregator
from holdfast.processors.engine.aggregates.columns import (
    Column,
    CountColumn,
    LastColumn,
    MeanColumn,
    NumberColumn,
    StoredMean,
    Unfit,
    check_scalars,
    struct_of,
)
from holdfast.processors.engine.aggregates.kernels import Places, Segments
from holdfast.processors.engine.aggregates.reduce_column import ReduceColumn
from holdfast.processors.engine.aggregates.window_aggregates import Reduce
from holdfast.processors.engine.changelog.format import CODEC_JSON, HEAD_SIZE, VALUE_VERSION, pack_head
from holdfast.processors.engine.record_size import UNLIMITED

#: Estimated memory of a row's key object and of its entry in a dict, in bytes. The key's content and the columns are
#: not included.
ROW_BYTES = 200
COLUMN_BYTES = 24
#: The maximum characters of a number in JSON, and the maximum bytes of one text character in JSON (``\uXXXX``).
NUMBER_CHARACTERS, CHARACTER_BYTES = 26, 6

_JSON_HEAD = bytes([VALUE_VERSION, CODEC_JSON])


class RowTable:
    """The rows of one aggregation in one task. A row has the columns of one message key, or of one window.

    Attributes:
        keys: The message key of each row.
        times: The event time of the last message of each row, in milliseconds.
        there: For each row, whether it has a value: a stored one, or one from a message.
        dirty: For each row, whether it has changed since it was last stored.
        used: For each row, whether it was used since the caller last set this flag to False.

    Raises:
        Unfit: numpy does not support a column of the aggregation.
    """

    keys: list[bytes]
    times: Places
    there: Any
    dirty: Any
    used: Any

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation, self._kinds = aggregation, aggregation.kinds
        self._decode_stored = _stored_decoder(aggregation)
        kinds = list(self._kinds)
        self._held = [
            attrgetter(f"kind_{kinds.index(made.kind)}.field_{self._kinds[made.kind].index(name)}")
            for name, made in aggregation.columns.items()
        ]
        self.forget_all()
        names = list(aggregation.columns)
        self._state_form = _state_form(self._kinds, dict(zip(names, self._columns, strict=True)))
        self.row_bytes = ROW_BYTES + COLUMN_BYTES * len(names)
        fixed = sum(len(msgspec.json.encode(name)) + NUMBER_CHARACTERS * 2 + 24 for name in (*names, *self._kinds))
        #: The maximum bytes of a stored value. The lengths of texts in the value are not included.
        self.state_bytes = HEAD_SIZE + fixed

    def forget_all(self) -> None:
        """Drops all rows."""
        self.keys = []
        #: The row numbers that are free. The last element of this list is used first.
        self._free: list[int] = []
        self.dirty, self.used, self.there = np.zeros(0, bool), np.zeros(0, bool), np.zeros(0, bool)
        self.times = np.zeros(0, np.int64)
        self._columns = _columns_of(self._aggregation)

    def dirty_bytes(self) -> int:
        """Estimated memory in bytes that the changed rows will need in a store's overlay (uncommitted writes)."""
        return int(np.count_nonzero(self.dirty)) * (ROW_BYTES + self.state_bytes)

    def check_state_size(self, items: Sequence[Any], key_bytes: int, bytes_max: int) -> None:
        """Raises Unfit if a stored value and its key could together have more than ``bytes_max`` bytes.

        ``items`` are the new items of the columns. ``key_bytes`` is the length of the longest key.
        """
        text = 0
        for column, item in zip(self._columns, items, strict=True):
            if isinstance(column, LastColumn):
                text += check_scalars(item)
        if self.state_bytes + CHARACTER_BYTES * text + key_bytes > bytes_max:
            raise Unfit

    def add(self, keys: Sequence[bytes], raws: Sequence[bytes | None]) -> list[int]:
        """Adds a row for each key, filled with the key's stored value, and returns the numbers of the rows.

        Raises Unfit, and changes nothing, if the columns can't hold a stored value.
        """
        known = [number for number, raw in enumerate(raws) if raw is not None]
        stored = self._stored([raws[number] for number in known]) if known else []  # type: ignore[misc]
        for column, items in zip(self._columns, stored, strict=False):
            column.check(items)
        rows = self._new_rows(len(keys))
        places = np.array(rows, np.int64)
        self.there[places] = False
        for column in self._columns:
            column.clear(places)
        if known:
            places = places[known]
            self.there[places] = True
            for column, items in zip(self._columns, stored, strict=True):
                column.load(places, items)
        for row, key in zip(rows, keys, strict=True):
            self.keys[row] = key
        return rows

    def release(self, rows: Sequence[int]) -> None:
        """Makes these rows free for other keys. Changes that were not written to the store before are lost."""
        if rows:
            self.dirty[rows] = False
            self._free.extend(rows)

    def run(self, items: Sequence[Any], segments: Segments, room: int = UNLIMITED) -> list[Any]:
        """Computes each column after each message, without changing the rows.

        Pass the result to ``shown`` and ``keep``, as their argument ``ran``.

        Raises:
            Unfit: numpy can't compute exactly the same numbers as Python, or a reduced value could make a stored value
                longer than ``room`` bytes.
        """
        ran = [column.run(item, segments) for column, item in zip(self._columns, items, strict=True)]
        for column, made in zip(self._columns, ran, strict=True):
            if isinstance(column, ReduceColumn) and self.state_bytes + column.longest(made) > room:
                raise Unfit
        return ran

    def shown(self, ran: Sequence[Any], segments: Segments) -> list[list[Any]]:
        """Returns the outputs for each column, in the order of the messages. ``ran`` is the result of ``run``."""
        return [column.shown(kept, segments) for column, kept in zip(self._columns, ran, strict=True)]

    def keep(self, ran: Sequence[Any], segments: Segments, times: Places) -> None:
        """Stores the results of ``run`` in the rows. ``times`` are the event times of its messages."""
        for column, kept in zip(self._columns, ran, strict=True):
            column.keep(segments, kept)
        rows = segments.rows
        self.times[rows] = times[segments.order[segments.lasts]]
        self.dirty[rows] = self.used[rows] = self.there[rows] = True

    def results(self, rows: Places) -> list[list[Any]]:
        """Returns for each column a list with the current output of each of these rows."""
        return [column.results(rows) for column in self._columns]

    def stored(self, rows: Places) -> list[bytes]:
        """Returns the stored values of changed rows, and marks these rows as unchanged."""
        by_name = {
            name: column.stored(rows) for name, column in zip(self._aggregation.columns, self._columns, strict=True)
        }
        heads = map(pack_head, repeat(VALUE_VERSION), repeat(CODEC_JSON), self.times[rows].tolist())
        parts = [part for names in self._kinds.values() for name in names for part in by_name[name]]
        self.dirty[rows] = False
        return list(map(self._state_form.__mod__, zip(heads, *parts, strict=True)))

    def _stored(self, raws: Sequence[bytes]) -> list[list[Any]]:
        """Decodes stored values. Returns for each column its stored items, with None where a value lacks the column."""
        if {raw[:2] for raw in raws} != {_JSON_HEAD}:
            raise Unfit
        try:
            values = self._decode_stored(b"[" + b",".join([raw[HEAD_SIZE:] for raw in raws]) + b"]")
        # A damaged value raises no error here. After Unfit, the messages are processed one by one, and ``Aggregation``
        # raises the error for the message of this key.
        except (ValueError, RecursionError) as failure:
            raise Unfit from failure
        if len(values) != len(raws) or any(type(value.format) is not int for value in values):
            raise Unfit
        if {value.format for value in values} != {FORMAT_VERSION}:
            raise Unfit
        return [list(map(held, values)) for held in self._held]

    def _new_rows(self, count: int) -> list[int]:
        free = self._free
        if count > len(free):
            first = len(self.keys)
            capacity = max(1024, 2 * first, first + count)
            self.keys.extend([b""] * (capacity - first))
            for column in self._columns:
                column.grow(capacity)
            for name in ("dirty", "used", "there", "times"):
                array = getattr(self, name)
                made = np.zeros(capacity, array.dtype)
                made[:first] = array
                setattr(self, name, made)
            # The smallest free row numbers are used first, because numpy sorts row numbers below 2^16 faster.
            free[:0] = range(capacity - 1, first - 1, -1)
        rows = free[: -count - 1 : -1]
        del free[-count:]
        return rows


def _columns_of(aggregation: Aggregation) -> list[Column]:
    columns = [_column_of(made) for made in aggregation.columns.values()]
    others = [column for column in columns if not isinstance(column, CountColumn)]
    if len(others) > 1 and any(isinstance(column, ReduceColumn) for column in others):
        raise Unfit  # a reducer may change the message that the next column reads, so numpy can't be used
    return columns


def _column_of(made: Aggregator) -> Column:
    kind = made.kind
    if isinstance(made, Reduce):
        return ReduceColumn(made)
    if kind == "count":
        return CountColumn()
    if kind == "mean":
        return MeanColumn()
    if kind == "last":
        return LastColumn()
    if kind in ("sum", "min", "max"):
        return NumberColumn(kind)
    raise Unfit


def _state_form(kinds: Mapping[str, Sequence[str]], columns: Mapping[str, Column]) -> bytes:
    """Builds the template of a stored value, with ``%b`` for its head and for each part of its columns."""
    by_kind = [
        _named(kind) + b"{" + b",".join([_named(name) + columns[name].form for name in names]) + b"}"
        for kind, names in kinds.items()
    ]
    return b"%b{" + b",".join([_named(FORMAT) + str(FORMAT_VERSION).encode(), *by_kind]) + b"}"


def _named(name: str) -> bytes:
    return msgspec.json.encode(name).replace(b"%", b"%%") + b":"


def _stored_decoder(aggregation: Aggregation) -> Callable[[bytes], Any]:
    """Returns a decoder for a list of stored values. It skips columns that are not part of the aggregation."""
    fields: list[tuple[str, Any, Any]] = []
    renamed = {}
    for number, (kind, names) in enumerate(aggregation.kinds.items()):
        held = struct_of(kind, names, StoredMean | None if kind == "mean" else Any, None)
        fields.append((f"kind_{number}", held, msgspec.field(default_factory=held)))
        renamed[f"kind_{number}"] = kind
    stored = msgspec.defstruct("Stored", [("format", Any, None), *fields], rename=renamed, gc=False)
    return msgspec.json.Decoder(list[stored]).decode  # type: ignore[valid-type]
