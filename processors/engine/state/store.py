"""Stores as user functions see them: reads through the overlay, writes into it, undo for each message.

Values are kept as their stored bytes: what a function gets is its own copy, and what it sets is encoded at once,
so that changing an object afterwards changes nothing, and a value that can't be stored fails its own message.

A store has few state keys and many message keys: each state key has a cell, whose dicts go by the message key object
itself, so that full keys are built for the database and the changelog only. State keys beyond ``CELLS_MAX`` share
one cell, which goes by full keys.

Invariants:
    - The overlay is the only place of uncommitted writes; dropping it drops them all.
    - The cache (``young`` and ``old``) holds only values that are in RocksDB, and ``young`` the newer ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from holdfast.processors.engine.changelog.format import (
    CODEC_JSON,
    HEAD_SIZE,
    VALUE_VERSION,
    decode_json,
    decode_value,
    encode_bytes,
    encode_json,
    encode_value,
    full_keys,
    key_prefix,
    pack_head,
)
from holdfast.processors.engine.record_size import UNLIMITED, RecordTooLarge, too_large
from holdfast.processors.engine.state.keys import store_prefix
from holdfast.processors.engine.state.rows import Rows

if TYPE_CHECKING:
    from holdfast.processors.engine.state.task_store import TaskStore

#: What one store's cache of committed values may hold, in bytes, where nothing else is said.
CACHE_BYTES = 64 << 20
#: Prefetch follows at most so many state keys for each message key.
PREFETCH_STATE_KEYS_MAX = 4
#: After so many prefetches in a row that had nothing to load, none is made until the database had to be asked.
FOUND_ALL_MAX = 20
#: So many state keys have a cell of their own.
CELLS_MAX = 64
#: What an entry takes beside key and value: the objects' headers and its part of the dict, in bytes.
ENTRY_BYTES = 180


_UNCHANGEABLE = (str, int, float, bool, bytes, type(None))


#: What the JSON of a text begins with.
_QUOTE = 0x22


class _Missing(Enum):
    MISSING = 0


_MISSING: Final = _Missing.MISSING


class Writes(NamedTuple):
    """Uncommitted writes by changelog key, as parallel lists; None deletes."""

    keys: list[bytes]
    values: list[bytes | None]


class _Cell:
    """What the message keys have under one state key: uncommitted, and cached in two generations.

    ``suffix`` is the state key as the changelog has it; without one, the dicts go by full changelog keys. ``room`` is
    how long place and value may be together.
    """

    __slots__ = ("dirty", "old", "room", "suffix", "young")

    def __init__(self, suffix: bytes | None, record_bytes_max: int) -> None:
        self.suffix = suffix
        self.room = record_bytes_max if suffix is None else record_bytes_max - len(key_prefix(b"")) - len(suffix)
        self.dirty: dict[bytes, bytes | None] = {}
        self.young: dict[bytes, bytes | None] = {}
        self.old: dict[bytes, bytes | None] = {}

    def full(self, place: bytes) -> bytes:
        """The changelog key of a place."""
        return place if self.suffix is None else key_prefix(place) + self.suffix


class State(Protocol):
    """The state of the current message's key, in one store."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` when there is none. The value is the caller's own copy."""
        ...

    def set(self, key: str, value: Any) -> None:
        """Set ``key`` to a JSON value.

        Raises:
            ValueNotStorable: The value can't be written as JSON.
            RecordTooLarge: The changelog does not take so large a record.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove ``key``; nothing happens when it is not there."""
        ...

    def exists(self, key: str) -> bool:
        """Whether ``key`` has a value."""
        ...

    def get_bytes(self, key: str, default: bytes | None = None) -> bytes | None:
        """Like ``get``, for values that were set with ``set_bytes``."""
        ...

    def set_bytes(self, key: str, value: bytes) -> None:
        """Set ``key`` to raw bytes."""
        ...


class StoreState:
    """One store of one task; the runtime points it at each message's key in turn.

    Args:
        name: The store's name.
        backend: Where committed values are.
        topic: The changelog's topic; empty without one.
        record_bytes_max: How many bytes key and value of a record may have there.
        cache_bytes: What the cache of committed values may hold.
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
        "cache_bytes",
        "message_key",
        "misses",
        "name",
        "reads",
        "record_bytes_max",
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
        self.name = name
        self._topic = topic
        self.record_bytes_max = record_bytes_max
        #: Reads by user functions, and those of them that had to ask the database.
        self.reads = 0
        self.misses = 0
        #: The message that is being processed: its key, and its time in milliseconds.
        self.message_key = b""
        self.timestamp_ms = 0
        self._backend = backend
        self.cache_bytes = cache_bytes
        self._rocks_prefix = store_prefix(name)
        self._rows: Rows | None = None
        self._cells: dict[str, _Cell] = {}
        self._shared = _Cell(None, self.record_bytes_max)
        #: The cells that prefetch follows.
        self._followed: list[_Cell] = []
        #: So many prefetches in a row, since the database was last asked, found everything in memory.
        self._found_all = 0
        self._undo: list[tuple[dict[bytes, bytes | None], bytes, bytes | _Missing | None]] = []
        self._bytes = 0
        #: Of values that came into the cache: how many, and how long together.
        self._weighed = 0
        self._weight = 0

    # -- what user functions call ------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """See ``State.get``."""
        # The same as ``_load``, written out: this is where the engine spends its time.
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
            if raw[0] == VALUE_VERSION and raw[1] == CODEC_JSON:
                return decode_json(raw[HEAD_SIZE:])
            return decode_value(raw)
        # A default that the caller goes on to change must not be the next message's default, too.
        return default if isinstance(default, _UNCHANGEABLE) else copy.deepcopy(default)

    def set(self, key: str, value: Any) -> None:
        """See ``State.set``."""
        # As ``_store``, written out.
        try:
            payload = encode_json(value)
            raw = pack_head(VALUE_VERSION, CODEC_JSON, self.timestamp_ms) + payload
        except Exception:
            payload = raw = b""
        # What can't be encoded, and what may not be what it seems: a text (of bytes?), a null (of NaN?).
        if not payload or payload[0] == _QUOTE or b"null" in payload:
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

    def delete(self, key: str) -> None:
        """See ``State.delete``."""
        if self._load(key) is not None:
            self._store(key, None)

    def exists(self, key: str) -> bool:
        """See ``State.exists``."""
        return self._load(key) is not None

    def get_bytes(self, key: str, default: bytes | None = None) -> bytes | None:
        """See ``State.get_bytes``."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, bytes):
            raise TypeError(f"key {key!r} of store {self.name!r} holds a JSON value, not bytes: read it with get()")
        return value

    def set_bytes(self, key: str, value: bytes) -> None:
        """See ``State.set_bytes``."""
        self._store(key, encode_bytes(value, self.timestamp_ms))

    # -- what the task calls -----------------------------------------------------------------------------------

    def point_at(self, message_key: bytes, timestamp_ms: int) -> None:
        """Make the next calls be about one message."""
        self.message_key = message_key
        self.timestamp_ms = timestamp_ms

    @property
    def prefetches(self) -> bool:
        """Whether ``prefetch`` is worth its time: not while all that is asked for is in memory."""
        return self._found_all < FOUND_ALL_MAX

    def prefetch(self, message_keys: AbstractSet[bytes]) -> None:
        """Load, in one read, what a batch of messages will most likely ask for."""
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
        """What the current message has overwritten; not empty while it has written anything. Always the same list."""
        return self._undo

    def keep_message(self) -> None:
        """The message succeeded: its writes stay in the overlay."""
        self._undo.clear()

    def undo_message(self) -> None:
        """The message failed: take back its writes."""
        for dirty, place, before in reversed(self._undo):
            self._bytes -= len(dirty[place] or b"")
            if before is _MISSING:
                del dirty[place]
            else:
                dirty[place] = before
                self._bytes += len(before or b"")
        self._undo.clear()

    def writes(self) -> Writes:
        """The uncommitted writes of all message keys."""
        if self._rows is not None:
            self._rows.write_back()
        writes = Writes([], [])
        for cell in self._all():
            writes.keys.extend(cell.dirty if cell.suffix is None else full_keys(cell.dirty, cell.suffix))
            writes.values.extend(cell.dirty.values())
        return writes

    def rocks_changes(self, writes: Writes) -> Iterator[tuple[bytes, bytes | None]]:
        """Writes of this store as full RocksDB keys and values."""
        prefix = self._rocks_prefix
        return zip([prefix + key for key in writes.keys], writes.values, strict=True)

    def dirty_bytes(self) -> int:
        """Roughly how much memory the uncommitted writes hold."""
        outside = 0 if self._rows is None else self._rows.dirty_bytes()
        return outside + self._bytes + sum(len(cell.dirty) for cell in self._all()) * ENTRY_BYTES

    def cached_bytes(self) -> int:
        """Roughly how much memory the cache of committed values holds."""
        outside = 0 if self._rows is None else self._rows.rows_bytes()
        return outside + int(sum(len(cell.young) + len(cell.old) for cell in self._all()) * self._entry_bytes())

    def committed(self) -> None:
        """The overlay is in RocksDB now."""
        for cell in self._all():
            if self._rows is not None:  # they are the cache; what is here can be old
                cell.young, cell.old = {}, {}
                cell.dirty.clear()
            elif cell.dirty:
                self._weighed += len(cell.dirty)
                cell.young.update(cell.dirty)
                cell.dirty.clear()
        self._weight += self._bytes
        self._bytes = 0
        self._make_room()
        if len(self._cells) == CELLS_MAX:
            self._forget_state_keys()
        if self._rows is not None:
            self._rows.committed()

    def drop(self) -> None:
        """Forget every uncommitted write."""
        if self._rows is not None:
            self._rows.drop()
        for cell in self._all():
            cell.dirty.clear()
        self._undo.clear()
        self._bytes = 0

    def forget(self) -> None:
        """Forget all that is cached: what is committed was changed past it."""
        self.drop()
        self._cells, self._shared, self._followed = {}, _Cell(None, self.record_bytes_max), []

    # -- what rows outside of the overlay call -------------------------------------------------------------------

    def attach(self, rows: Rows) -> None:
        """Have state held in rows, which are asked before a commit and told after it."""
        self._rows = rows

    def bound_cache(self, cache_bytes: int) -> None:
        """From now on committed values may take so many bytes of memory."""
        self.cache_bytes = cache_bytes
        if self._rows is not None:
            self._rows.rows_bytes_max = cache_bytes

    def read_many(self, state_key: str, message_keys: Sequence[bytes]) -> list[bytes | None]:
        """Stored values of many message keys, uncommitted ones included; None where there is none."""
        cell = self._cells.get(state_key) or self._place(state_key)[0]
        assert cell.suffix is not None
        dirty, young = cell.dirty, cell.young
        wanted = [key for key in message_keys if key not in dirty and key not in young] if dirty or young else None
        missing = message_keys if wanted is None else wanted
        self.reads += len(message_keys)
        self.misses += len(missing)
        found = self._backend.get_many(full_keys(missing, cell.suffix, self._rocks_prefix))
        if wanted is None:
            return found
        by_key = dict(zip(wanted, found, strict=True))
        return [dirty[key] if key in dirty else young[key] if key in young else by_key[key] for key in message_keys]

    def write_many(self, state_key: str, message_keys: Iterable[bytes], values: Sequence[bytes]) -> None:
        """Put whole stored values into the overlay; there is no undo."""
        cell = self._cells.get(state_key) or self._place(state_key)[0]
        for key, raw in zip(message_keys, values, strict=True):
            self._bytes += len(raw) - len(cell.dirty.get(key) or b"")
            cell.dirty[key] = raw

    # -- inside ------------------------------------------------------------------------------------------------

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

    def _too_large(self, key: str, cell: _Cell, place: bytes, raw: bytes) -> RecordTooLarge:
        size = len(raw) + len(cell.full(place))
        return too_large(f"The value of key {key!r} in store {self.name!r}", self._topic, size, self.record_bytes_max)

    def _all(self) -> tuple[_Cell, ...]:
        return (*self._cells.values(), self._shared)

    def _place(self, key: str) -> tuple[_Cell, bytes]:
        """The cell of a state key that has none yet, and the current message's place in it."""
        try:
            suffix = key.encode()
        except AttributeError:
            raise TypeError(f"a key of store {self.name!r} is text, not {type(key).__name__}: {key!r}") from None
        if len(self._cells) < CELLS_MAX:
            cell = self._cells[key] = _Cell(suffix, self.record_bytes_max)
            return cell, self.message_key
        return self._shared, key_prefix(self.message_key) + suffix

    def _read(self, cell: _Cell, place: bytes) -> bytes | None:
        """From the older generation, or from the database; it is young then."""
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

    def _entry_bytes(self) -> float:
        return ENTRY_BYTES + self._weight / max(1, self._weighed)

    def _make_room(self) -> None:
        """When the young generation fills half of the cache it is the old one; what was old is forgotten."""
        cells = self._all()
        if sum([len(cell.young) for cell in cells]) * self._entry_bytes() <= self.cache_bytes / 2:
            return
        for cell in cells:
            cell.old, cell.young = cell.young, {}
        self._weight, self._weighed = self._weight // 2, self._weighed // 2
        self._followed.clear()

    def _forget_state_keys(self) -> None:
        """State keys that are not used any more (those with a date in them) make room for new ones."""
        used = {key: cell for key, cell in self._cells.items() if cell.young or cell.old}
        if len(used) < len(self._cells):
            self._cells = used
            # A state key that goes to the shared cell may get one of its own from now on.
            self._shared = _Cell(None, self.record_bytes_max)
            self._followed = [cell for cell in self._followed if cell in used.values()]
