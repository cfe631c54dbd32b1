"""The stores that user functions read and write: writes go to an overlay, and each message has an undo log.

The overlay holds stored bytes: ``set`` encodes at once, and ``get`` returns a copy. If a function changes the object
after ``set``, the state does not change. A value that can't be stored fails the message that sets it.

A read searches the levels of this diagram from left to right. A write stays in the overlay until the commit::

    state key ──► cell:  dirty (overlay)  ──►  young (cache)  ──►  old (cache)  ──►  database
                         uncommitted           newer half          older half
                           └── commit ────────►

A store usually has few state keys and many message keys. Each state key therefore has a cell: dicts from message keys
to values. Full keys (message key and state key) are built only for the database and the changelog. State keys beyond
``CELLS_MAX``, and state keys with a prefix in ``scattered``, share one cell whose dicts use full keys.

``get`` and ``set`` inline ``_load`` and ``_store``. This saves 4 % of the CPU time of a stateful message.
``tests/unit/processors/engine/state/test_store_inlined.py`` checks that both variants give equal results.

Invariants:
    - Only the overlay holds uncommitted writes; dropping the overlay drops all of them.
    - The cache holds committed values only. ``young`` has the values that were used most recently.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.processors.engine.changelog.format import (
    CODEC_JSON,
    HEAD_SIZE,
    VALUE_VERSION,
    ValueNotStorable,
    decode_json,
    decode_value,
    encode_value,
    full_keys,
    is_too_deep,
    key_prefix,
)
from holdfast.processors.engine.record_size import UNLIMITED, RecordTooLarge, too_large
from holdfast.processors.engine.state.cell import Cell
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.methods import StateMethods, Ttl
from holdfast.processors.engine.state.own_keys import RESERVED
from holdfast.processors.engine.state.ranges import WrittenKeys, behind, merge_writes

if TYPE_CHECKING:
    from holdfast.processors.engine.state.databases.task_store import TaskStore

#: Default maximum size of one store's cache of committed values, in bytes.
CACHE_BYTES = 64 << 20
#: ``prefetch`` loads the values of at most this many state keys of a message key.
PREFETCH_STATE_KEYS_MAX = 4
#: After this many consecutive prefetches without a cache miss, prefetching stops until the next cache miss.
FOUND_ALL_MAX = 20
#: Maximum number of state keys whose values are in dicts of their own (cells).
CELLS_MAX = 64
#: Estimated bytes of an entry in addition to its key and value: object headers, and its place in the dict.
ENTRY_BYTES = 180

_JSON_HEAD: Final = bytes([VALUE_VERSION, CODEC_JSON])
_UNCHANGEABLE = (str, int, float, bool, bytes, type(None))


class Rows(Protocol):
    """Values that a step computes with numpy. They are not in the store's dicts until ``write_back`` is called."""

    #: Maximum memory for committed values, in bytes.
    rows_bytes_max: int

    def write_back(self) -> None:
        """Writes all uncommitted values into the store's dicts, so that the commit contains them."""

    def committed(self) -> None:
        """Must be called after a commit. The database then already contains the store's writes."""

    def drop(self) -> None:
        """Drops all uncommitted values, after a transaction was aborted."""

    def dirty_bytes(self) -> int:
        """Returns the estimated bytes that the uncommitted values will need in the store's dicts."""


class _Missing(Enum):
    MISSING = 0


_MISSING: Final = _Missing.MISSING


class Writes(NamedTuple):
    """Uncommitted writes as parallel lists: changelog keys, and their values. The value None deletes the key."""

    keys: list[bytes]
    values: list[bytes | None]


class StoreState(StateMethods):
    """One store of one task.

    For each message, the engine calls ``point_at`` before the user function runs.

    ``topic`` is the changelog's name, or empty. ``record_bytes_max`` limits key plus value of a changelog record.
    """

    __slots__ = (
        "_backend",
        "_bytes",
        "_cells",
        "_followed",
        "_found_all",
        "_rocks_prefix",
        "_rows",
        "_shared",
        "_topic",
        "_undo",
        "_weighed",
        "_weight",
        "_written",
        "cache_bytes",
        "message_key",
        "misses",
        "name",
        "reads",
        "record_bytes_max",
        "scattered",
        "timestamp_ms",
    )

    def __init__(
        self,
        name: str,
        backend: TaskStore,
        topic: str = "",
        record_bytes_max: int = UNLIMITED,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.name, self._topic, self.record_bytes_max = name, topic, record_bytes_max
        #: Prefixes of state keys that occur with only one message key each, for example of index entries. They share
        #: one cell, because a separate cell for each of these state keys would hold a single value.
        self.scattered: tuple[str, ...] = ()
        #: ``reads``: the number of reads by user functions. ``misses``: how many of them had to read the database.
        self.reads = self.misses = 0
        #: The key and the event time (ms) of the current message.
        self.message_key, self.timestamp_ms = b"", 0
        self._backend = backend
        self.cache_bytes = cache_bytes
        self._rocks_prefix = store_prefix(name)
        self._rows: Rows | None = None
        self._cells: dict[str, Cell] = {}
        self._shared = Cell(None, self.record_bytes_max)
        #: The cells (values of one state key) for which ``prefetch`` loads values.
        self._followed: list[Cell] = []
        #: The number of prefetches since the last cache miss. All of them found their values in the cache.
        self._found_all = 0
        self._undo: list[tuple[dict[bytes, bytes | None], bytes, bytes | _Missing | None]] = []
        #: Index by message key of the uncommitted writes in ``_shared``. Other cells need no index, because they have
        #: one value for each message key.
        self._written = WrittenKeys()
        self._bytes = 0
        #: For the mean length of a value: the number of sampled values, and the sum of their lengths in bytes.
        self._weighed = self._weight = 0

    # -- methods for user functions -------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a copy of the value of ``key``, or of ``default`` if the key has no value."""
        # The code of ``_load`` is repeated inline here, for speed.
        self.reads += 1
        cell = self._cells.get(key)
        if cell is None:
            cell, place = self._place(key)
        else:
            place = self.message_key
        raw = cell.dirty.get(place, _MISSING)
        if raw is _MISSING:
            raw = cell.young.get(place, _MISSING)
            if raw is _MISSING:
                raw = self._read(cell, place)
        if raw is not None:
            if raw[:2] == _JSON_HEAD:
                try:
                    return decode_json(raw[HEAD_SIZE:])
                except (ValueError, RecursionError) as failure:
                    if isinstance(failure, RecursionError) and not is_too_deep(raw):
                        raise  # the value's nesting is not the cause: the caller had filled the stack already
                    return decode_value(raw)  # Raises an error that names the stored state as the cause.
            return decode_value(raw)
        # A function may change the returned default, so it gets a copy.
        return default if isinstance(default, _UNCHANGEABLE) else copy.deepcopy(default)

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets ``key`` to a JSON value; raises ValueNotStorable or RecordTooLarge."""
        if ttl is not None:
            raise self.without_ttl()
        # The code of ``_store`` is repeated inline here, for speed.
        try:
            raw = encode_value(value, self.timestamp_ms)
        except ValueNotStorable:  # Building the error's text costs time, so it is built only after a failure.
            raw = encode_value(value, self.timestamp_ms, where=f" for key {key!r} of store {self.name!r}")
        cell = self._cells.get(key)
        if cell is None:
            cell, place = self._place(key)
        else:
            place = self.message_key
        if len(raw) + len(place) > cell.room:
            raise self._too_large(key, cell, place, raw)
        dirty = cell.dirty
        before = dirty.get(place, _MISSING)
        self._undo.append((dirty, place, before))
        dirty[place] = raw
        self._bytes += len(raw) if before is _MISSING or before is None else len(raw) - len(before)

    # -- methods for the task -------------------------------------------------------------------------------------

    def point_at(self, message_key: bytes, timestamp_ms: int) -> None:
        """Sets the current message: the key and the event time that the next calls use."""
        self.message_key, self.timestamp_ms = message_key, timestamp_ms

    @property
    def prefetches(self) -> bool:
        """Whether ``prefetch`` may save database reads: False while the cache has all values that messages read."""
        return self._found_all < FOUND_ALL_MAX

    def prefetch(self, message_keys: AbstractSet[bytes]) -> None:
        """Loads the values that messages with these keys will probably read: one database read for each state key."""
        if self._followed:
            self._found_all += 1
        for cell in tuple(self._followed):
            assert cell.suffix is not None
            missing = set(message_keys).difference(cell.dirty).difference(cell.young)
            if not missing:
                continue
            self._found_all = 0
            young, old = cell.young, cell.old
            if old:
                kept = [key for key in missing if key in old]
                young.update([(key, old[key]) for key in kept])
                missing.difference_update(kept)
            wanted = list(missing)
            found = self._backend.get_many(full_keys(wanted, cell.suffix, self._rocks_prefix))
            young.update(zip(wanted, found, strict=True))
            self._weigh(found)
            self._make_room()

    @property
    def undo_log(self) -> list[Any]:
        """The old values of keys that the current message has written. Always the same list, so callers may keep it."""
        return self._undo

    def keep_message(self) -> None:
        """Clears the undo log after a successful message, so that the next commit contains the message's writes."""
        self._undo.clear()

    def undo_message(self, mark: int = 0) -> None:
        """Reverts the writes of a failed message, except those of the first ``mark`` entries of the undo log."""
        for dirty, place, before in reversed(self._undo[mark:]):
            self._bytes -= len(dirty[place] or b"")
            if before is _MISSING:
                del dirty[place]
            else:
                dirty[place] = before
                self._bytes += len(before or b"")
        self._written.cut(len(self._shared.dirty))
        del self._undo[mark:]

    def writes(self) -> Writes:
        """Returns the uncommitted writes of all messages."""
        if self._rows is not None:
            self._rows.write_back()
        writes = Writes([], [])
        for cell in self._all():
            writes.keys.extend(cell.dirty if cell.suffix is None else full_keys(cell.dirty, cell.suffix))
            writes.values.extend(cell.dirty.values())
        return writes

    def rocks_changes(self, writes: Writes) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields the writes with their keys in the task's database: store prefix + changelog key."""
        prefix = self._rocks_prefix
        return zip([prefix + key for key in writes.keys], writes.values, strict=True)

    def dirty_bytes(self) -> int:
        """Returns the estimated bytes of all uncommitted writes."""
        outside = 0 if self._rows is None else self._rows.dirty_bytes()
        return outside + self._bytes + sum(len(cell.dirty) for cell in self._all()) * ENTRY_BYTES

    def committed(self) -> None:
        """Moves the uncommitted writes into the cache. Must be called after they were written to the database."""
        for cell in self._all():
            if self._rows is not None:  # ``_rows`` caches the values; a copy in ``young`` would become outdated
                cell.young, cell.old = {}, {}
                cell.dirty.clear()
            elif cell.dirty:
                self._weighed += len(cell.dirty)
                cell.young.update(cell.dirty)
                cell.dirty.clear()
        self._weight += self._bytes
        self._bytes = 0
        self._make_room()
        self._written.cut(0)
        if len(self._cells) == CELLS_MAX:
            self._forget_state_keys()
        if self._rows is not None:
            self._rows.committed()

    def drop(self) -> None:
        """Drops all uncommitted writes, after a transaction was aborted."""
        if self._rows is not None:
            self._rows.drop()
        for cell in self._all():
            cell.dirty.clear()
        self._undo.clear()
        self._written.cut(0)
        self._bytes = 0

    def forget(self) -> None:
        """Drops all uncommitted and cached values. Must be called after a command has changed the database."""
        self.drop()
        self._cells, self._shared, self._followed = {}, Cell(None, self.record_bytes_max), []

    # -- methods for steps that compute values with numpy ------------------------------------------------------------

    def attach(self, rows: Rows) -> None:
        """Registers the values that a step computes with numpy. They are written back before each commit."""
        self._rows = rows

    def bound_cache(self, cache_bytes: int) -> None:
        """Sets the maximum size of the cache of committed values, in bytes."""
        self.cache_bytes = cache_bytes
        if self._rows is not None:
            self._rows.rows_bytes_max = cache_bytes

    def read_many(self, state_key: str, message_keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of many message keys, including uncommitted ones; None for a key without a value."""
        cell = self._cells.get(state_key) or self._place(state_key)[0]
        places = cell.places(message_keys, state_key)
        dirty, young = cell.dirty, cell.young
        wanted = [place for place in places if place not in dirty and place not in young] if dirty or young else None
        missing = places if wanted is None else wanted
        self.reads += len(message_keys)
        self.misses += len(missing)
        found = self._backend.get_many(cell.full_keys(missing, self._rocks_prefix))
        if wanted is None:
            return found
        by_place = dict(zip(wanted, found, strict=True))
        return [dirty[at] if at in dirty else young[at] if at in young else by_place[at] for at in places]

    def write_many(self, state_key: str, message_keys: Iterable[bytes], values: Sequence[bytes]) -> None:
        """Writes values of many message keys, uncommitted. The failure of one message does not undo these writes."""
        cell = self._cells.get(state_key) or self._place(state_key)[0]
        self._overwrite(cell.dirty, cell.places(message_keys, state_key), values)

    def write_scattered(self, message_key: bytes, state_keys: Iterable[str], values: Sequence[bytes]) -> None:
        """Writes values of one message key, uncommitted.

        Each state key must have a prefix in ``scattered``: such a state key occurs with one message key only.
        """
        prefix = key_prefix(message_key)
        self._overwrite(self._shared.dirty, [prefix + state_key.encode() for state_key in state_keys], values)

    def _overwrite(self, dirty: dict[bytes, bytes | None], places: Iterable[bytes], values: Sequence[bytes]) -> None:
        for place, raw in zip(places, values, strict=True):
            self._bytes += len(raw) - len(dirty.get(place) or b"")
            dirty[place] = raw

    def uncommitted(
        self, message_key: bytes, first: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields the uncommitted writes of one message key, sorted by state key, from ``first`` to before ``end``."""
        prefix = key_prefix(message_key)
        size, least, most = len(prefix), prefix + first, behind(prefix) if end is None else prefix + end
        cells = [(cell.suffix or b"", cell.dirty) for cell in self._cells.values() if message_key in cell.dirty]
        found = [(key, of[message_key]) for key, of in cells if key >= first and (end is None or key < end)]
        shared = self._written.between(self._shared.dirty, prefix, least, most, reverse=reverse)
        return merge_writes(found, ((key[size:], raw) for key, raw in shared), reverse=reverse)

    def stored(self, message_key: bytes, first: bytes) -> Generator[tuple[bytes, bytes]]:
        """Yields state keys of one message key, from ``first`` upward, with their committed values, in key order."""
        prefix = key_prefix(message_key)
        yield from self._within(prefix, self._backend.items(self.name, prefix + first))

    def stored_back(self, message_key: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
        """Yields state keys of one message key before ``end`` (None: all), with committed values, in reverse order."""
        prefix = key_prefix(message_key)
        last = behind(prefix) if end is None else prefix + end
        yield from self._within(prefix, self._backend.items_back(self.name, last))

    @staticmethod
    def _within(prefix: bytes, items: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for key, raw in items:
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], raw

    # -- internal methods --------------------------------------------------------------------------------------

    def _load(self, key: str) -> bytes | None:
        self.reads += 1
        cell = self._cells.get(key)
        if cell is None:
            cell, place = self._place(key)
        else:
            place = self.message_key
        raw = cell.dirty.get(place, _MISSING)
        if raw is _MISSING:
            raw = cell.young.get(place, _MISSING)
            if raw is _MISSING:
                raw = self._read(cell, place)
        return raw

    def _store(self, key: str, raw: bytes | None) -> None:
        cell = self._cells.get(key)
        if cell is None:
            cell, place = self._place(key)
        else:
            place = self.message_key
        self._write(cell, place, key, raw)

    def _write(self, cell: Cell, place: bytes, key: str, raw: bytes | None) -> None:
        dirty = cell.dirty
        before = dirty.get(place, _MISSING)
        if raw is not None:
            if len(raw) + len(place) > cell.room:
                raise self._too_large(key, cell, place, raw)
            self._bytes += len(raw)
        if before is not _MISSING and before is not None:
            self._bytes -= len(before)
        self._undo.append((dirty, place, before))
        dirty[place] = raw

    def _too_large(self, key: str, cell: Cell, place: bytes, raw: bytes) -> RecordTooLarge:
        size = len(raw) + len(cell.full(place))
        return too_large(f"The value of key {key!r} in store {self.name!r}", self._topic, size, self.record_bytes_max)

    def _all(self) -> tuple[Cell, ...]:
        return (*self._cells.values(), self._shared)

    def _place(self, key: str) -> tuple[Cell, bytes]:
        """Returns the cell (dicts of values) for a new state key, and the current message's key in these dicts."""
        try:
            suffix = key.encode()
        except AttributeError:
            raise TypeError(
                f"a state key of store {self.name!r} is {key!r}, a {type(key).__name__}; expected a text"
            ) from None
        if self.scattered and key.startswith(self.scattered):
            return self._shared, key_prefix(self.message_key) + suffix
        if key.startswith(RESERVED):
            raise ValueError(f"state keys of store {self.name!r} that begin with {RESERVED!r} belong to Holdfast")
        if len(self._cells) < CELLS_MAX:
            cell = self._cells[key] = Cell(suffix, self.record_bytes_max)
            return cell, self.message_key
        return self._shared, key_prefix(self.message_key) + suffix

    def _read(self, cell: Cell, place: bytes) -> bytes | None:
        """Reads a value from the cache's older half or from the database, and puts it into the newer half."""
        raw = cell.old.get(place, _MISSING)
        self._found_all = 0
        if raw is _MISSING:
            self.misses += 1
            if cell.suffix is not None and len(self._followed) < PREFETCH_STATE_KEYS_MAX and cell not in self._followed:
                self._followed.append(cell)
            raw = self._backend.get(self._rocks_prefix + cell.full(place))
            self._weigh([raw])
            if self.misses % 64 == 0:
                self._make_room()
        cell.young[place] = raw
        return raw

    def _weigh(self, found: list[bytes | None]) -> None:
        self._weighed += len(found)
        self._weight += sum(map(len, filter(None, found)))

    def entry_bytes(self) -> float:
        """Returns the estimated mean bytes of one cached value, from the values sampled so far."""
        return ENTRY_BYTES + self._weight / max(1, self._weighed)

    def _make_room(self) -> None:
        """Limits the cache. If its newer half is full, drops the older half; the newer half becomes the older half."""
        cells = self._all()
        if sum([len(cell.young) for cell in cells]) * self.entry_bytes() <= self.cache_bytes / 2:
            return
        for cell in cells:
            cell.old, cell.young = cell.young, {}
        self._weight, self._weighed = self._weight // 2, self._weighed // 2
        self._followed.clear()

    def _forget_state_keys(self) -> None:
        """Frees the cells of state keys that are no longer used, for example of state keys that contain a past date."""
        used = {key: cell for key, cell in self._cells.items() if cell.young or cell.old}
        if len(used) < len(self._cells):
            self._cells = used
            # The shared cell is emptied, because some of its state keys may now get their own cells.
            self._shared = Cell(None, self.record_bytes_max)
            self._followed = [cell for cell in self._followed if cell in used.values()]
