"""Computes a built-in aggregation for a whole run of messages on numpy columns, with the results of the plain path.

Each key has a row. A row comes from the store at its first use, and returns to the store's overlay before a commit, or
when the plain path needs the key::

    messages   decode the needed fields      numpy, one step for each rank     encode all outputs
    k1 {...} ─► amount 3.0 ─┐                sort by row:  k1 k1 k2        ┌─► {"total":3.0}
    k2 {...} ─► amount 1.0 ─┼─► Segments ─►  kernels.running_sum(...)  ────┼─► {"total":1.0}
    k1 {...} ─► amount 2.0 ─┘                                              └─► {"total":5.0}

    rows       store.read_many ─► row arrays ─► (commit) _state_form % parts ─► store.write_many

A run that numpy can't compute to the bit raises ``Unfit`` before anything changes; then the plain path takes the run.
The tricks, and the tests that fail if one is wrong (``tests/unit/processors/test_columnar*.py``):

- ``_reader_of`` decodes only the needed fields, if ``skipping_is_safe`` shows that the skipped rest can't be invalid.
- ``_state_form`` is a bytes template with ``%b`` places; filling it is faster than encoding objects.
- ``kernels`` sorts small row numbers as 16-bit integers, which numpy does by radix sort.

Invariants:
    - A row is never older than the overlay's value of its key.
    - The bytes of outputs and state are the same as those of ``Aggregation`` and ``State.set``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from operator import attrgetter
from typing import Any, Protocol

import msgspec
import numpy as np

from holdfast.processors.engine.changelog.format import CODEC_JSON, HEAD_SIZE, VALUE_VERSION, pack_head
from holdfast.processors.engine.dataframe.aggregation import FORMAT, FORMAT_VERSION, STATE_KEY, Aggregation
from holdfast.processors.engine.dataframe.columns import (
    Column,
    CountColumn,
    LastColumn,
    MeanColumn,
    NumberColumn,
    StoredMean,
    Unfit,
    as_json,
    check_scalars,
    numbers_of,
)
from holdfast.processors.engine.dataframe.kernels import Places, Segments
from holdfast.processors.engine.record_size import UNLIMITED

#: Bytes of a row in memory beyond the key's bytes and the columns: the key's object and its share of the dict.
ROW_BYTES = 200
COLUMN_BYTES = 24
#: The longest number in JSON, in characters; the longest character of a text in JSON, in bytes.
NUMBER_CHARACTERS, CHARACTER_BYTES = 26, 6
#: A message up to this length has no number with more digits than a float allows.
DIGITS_MAX = 300
#: Rows that are written back at once.
PIECE_ROWS = 1000

_JSON_HEAD = bytes([VALUE_VERSION, CODEC_JSON])
_decode_json = msgspec.json.Decoder().decode
_ZERO, _E, _PLUS, _LOWER = ord("0"), ord("e"), ord("+"), 0x20


class RowStore(Protocol):
    """The store of the rows; ``StoreState`` implements it."""

    def read_many(self, state_key: str, message_keys: Sequence[bytes]) -> list[bytes | None]:
        """Stored values, uncommitted ones included; None for a key without a value."""

    def write_many(self, state_key: str, message_keys: Iterable[bytes], values: Sequence[bytes]) -> None:
        """Puts stored values into the overlay."""


class ColumnarAggregation:
    """One aggregation of one task.

    Args:
        output_bytes_max: The limit for key and value of an output, in bytes.
        state_bytes_max: The limit for changelog key and value of a state value, in bytes.
        rows_bytes_max: The memory limit of the rows; above it, a commit evicts rows that were not used recently.

    Raises:
        Unfit: The aggregation has a column without a columnar form (``Collect``).
    """

    def __init__(
        self,
        aggregation: Aggregation,
        store: RowStore,
        *,
        output_bytes_max: int = UNLIMITED,
        state_bytes_max: int = UNLIMITED,
        rows_bytes_max: int = 64 << 20,
    ) -> None:
        self._aggregation, self._store = aggregation, store
        self._output_bytes_max, self._state_bytes_max = output_bytes_max, state_bytes_max
        self._columns = [_column_of(made.kind) for made in aggregation.columns.values()]
        self._read = _reader_of(aggregation)
        names = list(aggregation.columns)
        self._make_output = _struct("Output", names)
        self._kinds = aggregation.kinds
        self._decode_stored = _stored_decoder(aggregation)
        kinds = list(self._kinds)
        self._held = [
            attrgetter(f"kind_{kinds.index(made.kind)}.field_{self._kinds[made.kind].index(name)}")
            for name, made in aggregation.columns.items()
        ]
        self._state_form = _state_form(self._kinds, dict(zip(names, self._columns, strict=True)))
        self.rows_bytes_max = rows_bytes_max
        self._row_bytes = ROW_BYTES + COLUMN_BYTES * len(names)
        fixed = sum(len(msgspec.json.encode(name)) + NUMBER_CHARACTERS * 2 + 24 for name in (*names, *self._kinds))
        self._state_bytes = HEAD_SIZE + fixed
        self._forget_all()

    def run(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Sequence[int]
    ) -> list[bytes] | None:
        """The outputs of a run of messages; None if the plain path has to take the run, and nothing changed."""
        try:
            return self._run(keys, values, timestamps)
        except Unfit:
            return None

    def leave(self, keys: Iterable[bytes | None]) -> None:
        """Gives the rows of these keys back to the store, before the plain path uses the keys."""
        found = {key: self._index.pop(key) for key in set(keys) if key is not None and key in self._index}
        if found:
            rows = np.fromiter(found.values(), np.int64, len(found))
            self._write_back(rows[self._dirty[rows]])
            self._free.extend(found.values())

    def write_back(self) -> None:
        """Writes all changed rows into the store's overlay."""
        self._write_back(np.flatnonzero(self._dirty))

    def committed(self) -> None:
        """Evicts rows above the memory limit, after a commit."""
        if len(self._index) > self._rows_max():
            self._forget_unused()

    def drop(self) -> None:
        """Forgets all rows, committed ones too."""
        self._forget_all()

    def dirty_bytes(self) -> int:
        """An estimate of the memory that changed rows will take in the overlay."""
        return int(np.count_nonzero(self._dirty)) * (ROW_BYTES + self._state_bytes)

    # -- inside ------------------------------------------------------------------------------------------------

    def _run(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Sequence[int]
    ) -> list[bytes]:
        if None in keys or None in values:
            raise Unfit
        items = self._read(values)  # type: ignore[arg-type]
        longest_key = max(map(len, keys))  # type: ignore[arg-type]
        self._check_state_size(items, longest_key)
        rows = self._rows_of(keys)  # type: ignore[arg-type]
        segments = Segments.of(rows)
        ran, outputs = [], []
        for column, item in zip(self._columns, items, strict=True):
            kept, shown = column.run(item, segments)
            ran.append(kept)
            outputs.append(shown)
        raws = as_json(map(self._make_output, *outputs))
        if max(map(len, raws)) + longest_key > self._output_bytes_max:
            raise Unfit
        for column, kept in zip(self._columns, ran, strict=True):
            column.keep(segments, kept)
        self._times[segments.rows] = np.array(timestamps, np.int64)[segments.order[segments.lasts]]
        self._dirty[segments.rows] = self._used[segments.rows] = True
        return raws

    def _check_state_size(self, items: Sequence[Any], longest_key: int) -> None:
        """Raises Unfit if a state value could exceed the changelog's limit."""
        text = 0
        for column, item in zip(self._columns, items, strict=True):
            if isinstance(column, LastColumn):
                text += check_scalars(item)
        size = self._state_bytes + CHARACTER_BYTES * text + longest_key + len(STATE_KEY) + 8
        if size > self._state_bytes_max:
            raise Unfit

    def _rows_of(self, keys: Sequence[bytes]) -> Places:
        rows: list[int | None] = list(map(self._index.get, keys))
        if None in rows:
            loaded = self._load(list(dict.fromkeys(key for key, row in zip(keys, rows, strict=True) if row is None)))
            rows = [loaded[key] if row is None else row for key, row in zip(keys, rows, strict=True)]
        return np.array(rows, np.int64)

    def _load(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Loads keys into new rows; returns the row of each key."""
        raws = self._store.read_many(STATE_KEY, keys)
        known = [number for number, raw in enumerate(raws) if raw is not None]
        stored = self._stored([raws[number] for number in known]) if known else []  # type: ignore[misc]
        for column, items in zip(self._columns, stored, strict=False):
            column.check(items)
        rows = self._new_rows(len(keys))
        places = np.array(rows, np.int64)
        for column in self._columns:
            column.clear(places)
        for column, items in zip(self._columns, stored, strict=False):
            column.load(places[known], items)
        for row, key in zip(rows, keys, strict=True):
            self._keys[row] = key
        loaded = dict(zip(keys, rows, strict=True))
        self._index.update(loaded)
        return loaded

    def _stored(self, raws: Sequence[bytes]) -> list[list[Any]]:
        """The stored items by column; None if a value lacks the column."""
        if {raw[:2] for raw in raws} != {_JSON_HEAD}:
            raise Unfit
        try:
            values = self._decode_stored(b"[" + b",".join([raw[HEAD_SIZE:] for raw in raws]) + b"]")
        except (ValueError, RecursionError) as failure:  # the plain path raises the error, at the right message
            raise Unfit from failure
        if len(values) != len(raws) or any(type(value.format) is not int for value in values):
            raise Unfit
        if {value.format for value in values} != {FORMAT_VERSION}:
            raise Unfit
        return [list(map(held, values)) for held in self._held]

    def _new_rows(self, count: int) -> list[int]:
        free = self._free
        if count > len(free):
            first = len(self._keys)
            capacity = max(1024, 2 * first, first + count)
            self._keys.extend([b""] * (capacity - first))
            for column in self._columns:
                column.grow(capacity)
            for name in ("_dirty", "_used", "_times"):
                array = getattr(self, name)
                made = np.zeros(capacity, array.dtype)
                made[:first] = array
                setattr(self, name, made)
            # The lowest rows are used first: row numbers below 2^16 sort faster.
            free[:0] = range(capacity - 1, first - 1, -1)
        rows = free[: -count - 1 : -1]
        del free[-count:]
        return rows

    def _write_back(self, rows: Places) -> None:
        # In pieces that stay in the CPU's caches.
        for first in range(0, len(rows), PIECE_ROWS):
            self._write_piece(rows[first : first + PIECE_ROWS])

    def _write_piece(self, rows: Places) -> None:
        keys = self._keys
        by_name = {
            name: column.stored(rows) for name, column in zip(self._aggregation.columns, self._columns, strict=True)
        }
        heads = map(pack_head, repeat(VALUE_VERSION), repeat(CODEC_JSON), self._times[rows].tolist())
        parts = [part for names in self._kinds.values() for name in names for part in by_name[name]]
        raws = list(map(self._state_form.__mod__, zip(heads, *parts, strict=True)))
        self._store.write_many(STATE_KEY, [keys[row] for row in rows.tolist()], raws)
        self._dirty[rows] = False

    def _forget_all(self) -> None:
        self._index: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        #: Rows without a key; the next one to use is the last.
        self._free: list[int] = []
        self._dirty, self._used = np.zeros(0, bool), np.zeros(0, bool)
        self._times = np.zeros(0, np.int64)
        self._columns = [_column_of(made.kind) for made in self._aggregation.columns.values()]

    def _rows_max(self) -> int:
        return max(1024, self.rows_bytes_max // self._row_bytes)

    def _forget_unused(self) -> None:
        """Evicts rows down to three quarters of the limit: unused rows first, the oldest first."""
        keys = list(self._index)
        rows = np.fromiter(self._index.values(), np.int64, len(keys))
        clean, used = ~self._dirty[rows], self._used[rows]
        oldest = np.concatenate((np.flatnonzero(clean & ~used), np.flatnonzero(clean & used)))
        for place in oldest[: len(keys) - self._rows_max() * 3 // 4].tolist():
            self._free.append(self._index.pop(keys[place]))
        self._used[:] = False


def _column_of(kind: str) -> Column:
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
    """The template of a stored value, with ``%b`` for its head and for each part of its columns."""
    by_kind = [
        _named(kind) + b"{" + b",".join([_named(name) + columns[name].form for name in names]) + b"}"
        for kind, names in kinds.items()
    ]
    return b"%b{" + b",".join([_named(FORMAT) + str(FORMAT_VERSION).encode(), *by_kind]) + b"}"


def _named(name: str) -> bytes:
    return msgspec.json.encode(name).replace(b"%", b"%%") + b":"


def _stored_decoder(aggregation: Aggregation) -> Callable[[bytes], Any]:
    """A decoder of a list of stored values; it skips columns that the aggregation does not have."""
    fields: list[tuple[str, Any, Any]] = []
    renamed = {}
    for number, (kind, names) in enumerate(aggregation.kinds.items()):
        held = _struct(kind, names, StoredMean | None if kind == "mean" else Any, None)
        fields.append((f"kind_{number}", held, msgspec.field(default_factory=held)))
        renamed[f"kind_{number}"] = kind
    stored = msgspec.defstruct("Stored", [("format", Any, None), *fields], rename=renamed, gc=False)
    return msgspec.json.Decoder(list[stored]).decode  # type: ignore[valid-type]


def _struct(name: str, fields: Iterable[str], kind: Any = Any, default: Any = msgspec.NODEFAULT) -> Any:
    """A class whose objects are JSON objects with these fields, in this order."""
    names = {f"field_{number}": field for number, field in enumerate(fields)}
    made = [(plain, kind, msgspec.field(default=default)) for plain in names]
    try:
        return msgspec.defstruct(name, made, rename=names, gc=False)
    except (TypeError, ValueError) as failure:  # msgspec refuses names that JSON has to escape
        raise Unfit from failure


#: Returns the items of each column: numbers, a list, or None for a count.
_Reader = Callable[[Sequence[bytes]], list[Any]]


def _reader_of(aggregation: Aggregation) -> _Reader:
    fields = list(dict.fromkeys(made.of for made in aggregation.columns.values() if isinstance(made.of, str)))
    narrow = None
    if not any(made.kind != "count" and not isinstance(made.of, str) for made in aggregation.columns.values()):
        with suppress(Unfit):
            narrow = msgspec.json.Decoder(_struct("Row", fields, Any, _ABSENT)).decode
    readers = [(field, attrgetter(f"field_{number}")) for number, field in enumerate(fields)]

    def read(values: Sequence[bytes]) -> list[Any]:
        try:
            if narrow is not None and skipping_is_safe(values):
                rows = list(map(narrow, values))
                raw: dict[Any, list[Any]] = {field: list(map(read_field, rows)) for field, read_field in readers}
            else:
                messages = list(map(_decode_json, values))
                raw = {field: [message[field] for message in messages] for field in fields}
                raw.update(
                    (made.of, [made.of(message) for message in messages])
                    for made in aggregation.columns.values()
                    if callable(made.of)
                )
                raw[None] = messages
        except Exception as failure:  # the plain path raises the error, at the right message
            raise Unfit from failure
        numbers: dict[Any, Any] = {}
        items: list[Any] = []
        for made in aggregation.columns.values():
            if made.kind == "count":
                items.append(None)
            elif made.kind == "last":
                items.append(raw[made.of])
            else:
                if made.of not in numbers:
                    numbers[made.of] = numbers_of(raw[made.of])
                items.append(numbers[made.of])
        return items

    return read


class _Absent:
    """Stands for a missing field; no column accepts its type."""


_ABSENT = _Absent()


def skipping_is_safe(values: Sequence[bytes]) -> bool:
    """Whether decoding some fields of these messages fails for the same messages as decoding all fields.

    The decoder checks the syntax of fields that it skips, but not whether they are UTF-8, nor whether a float can hold
    their numbers. So this function searches for both: bytes that are no UTF-8, and exponents like ``1E+400``.
    """
    if max(map(len, values)) > DIGITS_MAX:
        return False
    text = b"\n".join(values)
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
    codes = np.frombuffer(text, np.uint8)
    exponents = np.flatnonzero(((codes[1:-1] | _LOWER) == _E) & (codes[:-2] - _ZERO < 10))
    if not len(exponents):
        return True
    behind = codes[exponents + 2]
    return not bool(((behind - _ZERO < 10) | (behind == _PLUS)).any())
