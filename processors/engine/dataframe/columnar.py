"""A built-in aggregation over whole runs of messages: columns instead of calls, with the results of the plain path.

Keys have rows; what a row holds came from the store, and goes back into the store's overlay before a commit, and before
the plain path works on the key. A run that can't be done to the bit changes nothing at all.

Invariants:
    - A row is never older than what the store's overlay has for its key.
    - Bytes of outputs and state are those that ``Aggregation`` and ``State.set`` make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    Lines,
    MeanColumn,
    NumberColumn,
    StoredMean,
    Unfit,
    check_scalars,
    numbers_of,
)
from holdfast.processors.engine.dataframe.kernels import Places, Segments
from holdfast.processors.engine.record_size import UNLIMITED

#: What a row takes beside its key's bytes and its columns: the key's object and its place in the dict, in bytes.
ROW_BYTES = 200
COLUMN_BYTES = 24
#: A number as JSON has at the most so many characters, a character of a text as many bytes.
NUMBER_CHARACTERS, CHARACTER_BYTES = 26, 6
#: So long a message can't have a number with too many digits.
DIGITS_MAX = 300
#: So many rows are written back at once.
PIECE_ROWS = 1000

_JSON_HEAD = bytes([VALUE_VERSION, CODEC_JSON])
_decode_json = msgspec.json.Decoder().decode
_ZERO, _E, _PLUS, _LOWER = ord("0"), ord("e"), ord("+"), 0x20


class RowStore(Protocol):
    """Where rows come from and go to; see ``processors.engine.state.store.StoreState``."""

    def read_many(self, state_key: str, message_keys: Sequence[bytes]) -> list[bytes | None]:
        """Stored values, uncommitted ones included; None where there is none."""
        ...

    def write_many(self, state_key: str, message_keys: Iterable[bytes], values: Sequence[bytes]) -> None:
        """Put values into the overlay."""
        ...


class ColumnarAggregation:
    """One aggregation of one task.

    Args:
        aggregation: What is computed.
        store: The aggregation's own store.
        output_bytes_max: How many bytes key and value of an output may have.
        state_bytes_max: The same of a state value, with its key in the changelog.
        rows_bytes_max: Above so much memory, rows that were not used lately are forgotten after a commit.

    Raises:
        Unfit: It has a column that is computed message by message only.
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
        self._encode_lines = msgspec.json.Encoder().encode_lines
        self.rows_bytes_max = rows_bytes_max
        self._row_bytes = ROW_BYTES + COLUMN_BYTES * len(names)
        fixed = sum(len(msgspec.json.encode(name)) + NUMBER_CHARACTERS * 2 + 24 for name in (*names, *self._kinds))
        self._state_bytes = HEAD_SIZE + fixed
        self._forget_all()

    def run(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Sequence[int]
    ) -> list[bytes] | None:
        """Take messages in, and give their outputs; None when they are for the plain path, and nothing was done.

        Raises:
            StateFailed: The store can't be read.
        """
        try:
            return self._run(keys, values, timestamps)
        except Unfit:
            return None

    def leave(self, keys: Iterable[bytes | None]) -> None:
        """The plain path is going to work on these keys: give their rows back."""
        found = {key: self._index.pop(key) for key in set(keys) if key is not None and key in self._index}
        if found:
            rows = np.fromiter(found.values(), np.int64, len(found))
            self._write_back(rows[self._dirty[rows]])
            self._free.extend(found.values())

    def write_back(self) -> None:
        """Put every changed row into the store's overlay."""
        self._write_back(np.flatnonzero(self._dirty))

    def committed(self) -> None:
        """The overlay was committed."""
        if len(self._index) > self._rows_max():
            self._forget_unused()

    def drop(self) -> None:
        """What is not committed is to be forgotten."""
        self._forget_all()

    def dirty_bytes(self) -> int:
        """Roughly how much memory changed rows will take in the overlay."""
        return int(np.count_nonzero(self._dirty)) * (ROW_BYTES + self._state_bytes)

    def rows_bytes(self) -> int:
        """Roughly how much memory the rows take."""
        return len(self._dirty) * (ROW_BYTES + COLUMN_BYTES * len(self._columns))

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
        raws = self._encode(map(self._make_output, *outputs))
        if max(map(len, raws)) + longest_key > self._output_bytes_max:
            raise Unfit
        for column, kept in zip(self._columns, ran, strict=True):
            column.keep(segments, kept)
        self._times[segments.rows] = np.array(timestamps, np.int64)[segments.order[segments.lasts]]
        self._dirty[segments.rows] = self._used[segments.rows] = True
        return raws

    def _check_state_size(self, items: Sequence[Any], longest_key: int) -> None:
        """See that no state value can be too large for its changelog."""
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
        """Give rows to keys that have none."""
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
        """What values hold, by column; None where one has nothing for it."""
        if {raw[:2] for raw in raws} != {_JSON_HEAD}:
            raise Unfit
        try:
            values = self._decode_stored(b"[" + b",".join([raw[HEAD_SIZE:] for raw in raws]) + b"]")
        except (
            ValueError,
            RecursionError,
        ) as failure:  # the plain path says what is wrong, at the message that meets it
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
            # The lowest rows first: small numbers sort faster.
            free[:0] = range(capacity - 1, first - 1, -1)
        rows = free[: -count - 1 : -1]
        del free[-count:]
        return rows

    def _write_back(self, rows: Places) -> None:
        # Piece by piece, as what all of them need together is out of the processor's cache before it is used again.
        for first in range(0, len(rows), PIECE_ROWS):
            self._write_piece(rows[first : first + PIECE_ROWS])

    def _write_piece(self, rows: Places) -> None:
        lines, keys = Lines(), self._keys
        by_name = {
            name: column.stored(rows, lines)
            for name, column in zip(self._aggregation.columns, self._columns, strict=True)
        }
        heads = map(pack_head, repeat(VALUE_VERSION), repeat(CODEC_JSON), self._times[rows].tolist())
        parts = [part for names in self._kinds.values() for name in names for part in by_name[name]]
        raws = list(map(self._state_form.__mod__, zip(heads, *parts, strict=True)))
        self._store.write_many(STATE_KEY, [keys[row] for row in rows.tolist()], raws)
        self._dirty[rows] = False

    def _encode(self, made: Iterable[Any]) -> list[bytes]:
        """Each as JSON: all in one go, a line for each; JSON has no line break of its own."""
        lines = self._encode_lines(list(made)).split(b"\n")
        del lines[-1]
        return lines

    def _forget_all(self) -> None:
        self._index: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        #: Rows without a key, the next to be taken last.
        self._free: list[int] = []
        self._dirty, self._used = np.zeros(0, bool), np.zeros(0, bool)
        self._times = np.zeros(0, np.int64)
        self._columns = [_column_of(made.kind) for made in self._aggregation.columns.values()]

    def _rows_max(self) -> int:
        return max(1024, self.rows_bytes_max // self._row_bytes)

    def _forget_unused(self) -> None:
        """Make a quarter of room: first what no run has used since the last time, the oldest first."""
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
    """A stored value, with places for its head and for all parts of its columns: one goes faster than objects do."""
    by_kind = [
        _named(kind) + b"{" + b",".join([_named(name) + columns[name].form for name in names]) + b"}"
        for kind, names in kinds.items()
    ]
    return b"%b{" + b",".join([_named(FORMAT) + str(FORMAT_VERSION).encode(), *by_kind]) + b"}"


def _named(name: str) -> bytes:
    return msgspec.json.encode(name).replace(b"%", b"%%") + b":"


def _stored_decoder(aggregation: Aggregation) -> Callable[[bytes], Any]:
    """Of a list of stored values; what no column of today has is skipped."""
    fields: list[tuple[str, Any, Any]] = []
    renamed = {}
    for number, (kind, names) in enumerate(aggregation.kinds.items()):
        held = _struct(kind, names, StoredMean | None if kind == "mean" else Any, None)
        fields.append((f"kind_{number}", held, msgspec.field(default_factory=held)))
        renamed[f"kind_{number}"] = kind
    stored = msgspec.defstruct("Stored", [("format", Any, None), *fields], rename=renamed, gc=False)
    return msgspec.json.Decoder(list[stored]).decode  # type: ignore[valid-type]


def _struct(name: str, fields: Iterable[str], kind: Any = Any, default: Any = msgspec.NODEFAULT) -> Any:
    """A class of objects whose JSON has these fields, in this order."""
    names = {f"field_{number}": field for number, field in enumerate(fields)}
    made = [(plain, kind, msgspec.field(default=default)) for plain in names]
    try:
        return msgspec.defstruct(name, made, rename=names, gc=False)
    except (TypeError, ValueError) as failure:  # a name that JSON has to escape
        raise Unfit from failure


#: Gives each column its items: numbers, a list, or None for a column that asks for nothing.
_Reader = Callable[[Sequence[bytes]], list[Any]]


def _reader_of(aggregation: Aggregation) -> _Reader:
    fields = list(dict.fromkeys(made.of for made in aggregation.columns.values() if isinstance(made.of, str)))
    narrow = None
    if not any(made.kind != "count" and not isinstance(made.of, str) for made in aggregation.columns.values()):
        names = {f"field_{number}": field for number, field in enumerate(fields)}
        try:
            row = msgspec.defstruct("Row", [(name, Any, _ABSENT) for name in names], rename=names, gc=False)
        except (TypeError, ValueError):
            row = None
        narrow = None if row is None else msgspec.json.Decoder(row).decode
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
        except Exception as failure:  # the plain path finds the message, and says what is wrong with it
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
    """Of no type that a column takes."""


_ABSENT = _Absent()


def skipping_is_safe(values: Sequence[bytes]) -> bool:
    """Whether these messages can be read for some fields only, and would fail exactly as when read whole.

    What the decoder skips it checks, but not for being UTF-8, nor for numbers that no float can hold.
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
