"""Stores as user functions see them: reads through the overlay, writes into it, undo for each message.

Values are kept as their stored bytes: what a function gets is its own copy, and what it sets is encoded at once,
so that changing an object afterwards changes nothing, and a value that can't be stored fails its own message.

Invariants:
    - The overlay is the only place of uncommitted writes; dropping it drops them all.
    - ``clean`` holds only values that are in RocksDB.
"""

from __future__ import annotations

import copy
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Protocol

from processors.changelog.format import decode_value, encode_bytes, encode_value, key_prefix
from processors.record_size import UNLIMITED, too_large
from processors.state.keys import store_prefix

if TYPE_CHECKING:
    from processors.state.task_store import TaskStore

#: Above so many entries the clean cache is emptied; dirty entries are bounded by the commit trigger.
CLEAN_ENTRIES_MAX = 400_000
#: Prefetch follows at most so many state keys for each message key.
PREFETCH_STATE_KEYS_MAX = 4


_UNCHANGEABLE = (str, int, float, bool, bytes, type(None))


class _Missing:
    __slots__ = ()


_MISSING = _Missing()


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
    """One store of one task; the runtime points it at each message's key in turn."""

    __slots__ = (
        "_backend",
        "_bytes",
        "_bytes_max",
        "_clean",
        "_dirty",
        "_known",
        "_prefix",
        "_rocks_prefix",
        "_timestamp",
        "_topic",
        "_undo",
        "misses",
        "name",
        "reads",
    )

    def __init__(self, name: str, backend: TaskStore, topic: str = "", record_bytes_max: int = UNLIMITED) -> None:
        self.name = name
        self._topic = topic
        self._bytes_max = record_bytes_max
        #: Reads by user functions, and those of them that had to ask the database.
        self.reads = 0
        self.misses = 0
        self._backend = backend
        self._rocks_prefix = store_prefix(name)
        self._dirty: dict[bytes, bytes | None] = {}
        self._clean: dict[bytes, bytes | None] = {}
        self._undo: list[tuple[bytes, bytes | _Missing | None]] = []
        self._known: dict[bytes, None] = {}
        self._prefix = b""
        self._timestamp = 0
        self._bytes = 0

    # -- what user functions call ------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """See ``State.get``."""
        raw = self._load(key)
        if raw is not None:
            return decode_value(raw)
        # A default that the caller goes on to change must not be the next message's default, too.
        return default if isinstance(default, _UNCHANGEABLE) else copy.deepcopy(default)

    def set(self, key: str, value: Any) -> None:
        """See ``State.set``."""
        self._store(key, encode_value(value, self._timestamp, where=f" for key {key!r} of store {self.name!r}"))

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
        self._store(key, encode_bytes(value, self._timestamp))

    # -- what the task calls -----------------------------------------------------------------------------------

    def point_at(self, message_key: bytes, timestamp_ms: int) -> None:
        """Make the next calls be about one message."""
        self._prefix = key_prefix(message_key)
        self._timestamp = timestamp_ms

    def prefetch(self, message_keys: AbstractSet[bytes]) -> None:
        """Load, in one read, what a batch of messages will most likely ask for."""
        if not self._known:
            return
        clean, dirty = self._clean, self._dirty
        if len(clean) > CLEAN_ENTRIES_MAX:
            clean.clear()
        wanted = [
            full
            for message_key in message_keys
            for full in (key_prefix(message_key) + state_key for state_key in self._known)
            if full not in clean and full not in dirty
        ]
        prefix = self._rocks_prefix
        for full, raw in zip(wanted, self._backend.get_many([prefix + key for key in wanted]), strict=True):
            clean[full] = raw

    def keep_message(self) -> None:
        """The message succeeded: its writes stay in the overlay."""
        self._undo.clear()

    def undo_message(self) -> None:
        """The message failed: take back its writes."""
        dirty = self._dirty
        for key, before in reversed(self._undo):
            if isinstance(before, _Missing):
                del dirty[key]
            else:
                dirty[key] = before
        self._undo.clear()

    def dirty(self) -> dict[bytes, bytes | None]:
        """Uncommitted writes by changelog key; None deletes."""
        return self._dirty

    def dirty_bytes(self) -> int:
        """Roughly how much memory the uncommitted writes hold."""
        return self._bytes

    def rocks_changes(self) -> list[tuple[bytes, bytes | None]]:
        """The overlay as full RocksDB keys and values."""
        prefix = self._rocks_prefix
        return [(prefix + key, raw) for key, raw in self._dirty.items()]

    def committed(self) -> None:
        """The overlay is in RocksDB now."""
        self._clean.update(self._dirty)
        self._dirty.clear()
        self._bytes = 0

    def drop(self) -> None:
        """Forget every uncommitted write."""
        self._dirty.clear()
        self._undo.clear()
        self._bytes = 0

    # -- inside ------------------------------------------------------------------------------------------------

    def _load(self, key: str) -> bytes | None:
        self.reads += 1
        encoded = self._encoded(key)
        full = self._prefix + encoded
        raw = self._dirty.get(full, _MISSING)
        if not isinstance(raw, _Missing):
            return raw
        raw = self._clean.get(full, _MISSING)
        if not isinstance(raw, _Missing):
            return raw
        if len(self._known) < PREFETCH_STATE_KEYS_MAX:
            self._known[encoded] = None
        self.misses += 1
        found = self._backend.get(self._rocks_prefix + full)
        self._clean[full] = found
        return found

    def _encoded(self, key: str) -> bytes:
        try:
            return key.encode()
        except AttributeError:
            raise TypeError(f"a key of store {self.name!r} is text, not {type(key).__name__}: {key!r}") from None

    def _store(self, key: str, raw: bytes | None) -> None:
        full = self._prefix + self._encoded(key)
        if raw is not None and len(raw) + len(full) > self._bytes_max:
            what = f"The value of key {key!r} in store {self.name!r}"
            raise too_large(what, self._topic, len(raw) + len(full), self._bytes_max)
        dirty = self._dirty
        self._undo.append((full, dirty.get(full, _MISSING)))
        dirty[full] = raw
        self._bytes += len(full) + (len(raw) if raw is not None else 0)
