"""A store that an application declares: its values have models, or an end, or its keys have timers.

All other stores are plain ``StoreState`` and pay nothing for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.processors.engine.changelog.format import decode_value, encode_bytes, encode_value, key_prefix
from holdfast.processors.engine.state.expiries import Expiries
from holdfast.processors.engine.state.methods import Ttl
from holdfast.processors.engine.state.store import StoreState

if TYPE_CHECKING:
    from holdfast.processors.engine.state.typed import TypedValues


class DeclaredState(StoreState):
    """One declared store of one task.

    Args:
        plain: The store as it was opened; this one takes its place.
        typed: The models of its values; None for plain JSON.
    """

    __slots__ = ("_expiries", "_read_ttl", "_typed")

    def __init__(self, plain: StoreState, typed: TypedValues | None) -> None:
        super().__init__(
            plain.name, plain._backend, plain._topic, plain.record_bytes_max, cache_bytes=plain.cache_bytes
        )
        self._typed = typed
        self._expiries: Expiries | None = None
        self._read_ttl: Callable[[int | timedelta], int] | None = None

    def let_expire(self, expiries: Expiries, read_ttl: Callable[[int | timedelta], int]) -> Expiries:
        """Gives values an end from now on; ``read_ttl`` checks a ``ttl`` of ``set``."""
        self._expiries, self._read_ttl = expiries, read_ttl
        return expiries

    # -- what user functions call ------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """As in ``State``."""
        raw = self._load(key)
        return copy.deepcopy(default) if raw is None else self._decoded(key, raw)

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """As in ``State``."""
        if self._typed is not None and self._typed.has(key):
            value = self._typed.written(key, value)
        self._put(key, encode_value(value, self.timestamp_ms, where=f" for key {key!r} of store {self.name!r}"), ttl)

    def set_bytes(self, key: str, value: bytes, *, ttl: Ttl = None) -> None:
        """As in ``State``."""
        if self._typed is not None and self._typed.has(key):
            raise self._unfit(key, "was set to raw bytes", "a value of its model", "Use `state.set`.")
        self._put(key, encode_bytes(value, self.timestamp_ms), ttl)

    def _put(self, key: str, raw: bytes, ttl: Ttl) -> None:
        if ttl is not None and self._read_ttl is None:
            raise self.without_ttl()
        ttl_ms = None if ttl is None or self._read_ttl is None else self._read_ttl(ttl)
        super()._store(key, raw)
        if self._expiries is not None and not self._expiries.put(key, ttl_ms):
            self._store(key, None)

    def _load(self, key: str) -> bytes | None:
        raw = super()._load(key)
        return None if raw is not None and self._expiries is not None and self._expiries.are_over(key) else raw

    def _store(self, key: str, raw: bytes | None) -> None:
        super()._store(key, raw)
        if self._expiries is not None and raw is None:
            self._expiries.forget(key)

    def _is_shown(self, key: bytes) -> bool:
        if not super()._is_shown(key):
            return False
        return self._expiries is None or not self._expiries.are_over(key.decode())

    def _decoded(self, key: str, raw: bytes) -> Any:
        typed = self._typed
        return typed.read(key, raw) if typed is not None and typed.has(key) else decode_value(raw)

    # -- own records -------------------------------------------------------------------------------------------

    def read_own(self, message_key: bytes, state_key: str) -> Any:
        """The value of an own record of a message key; None without one."""
        cell, place = self._shared, key_prefix(message_key) + state_key.encode()
        if place in cell.dirty:
            raw = cell.dirty[place]
        else:
            raw = cell.young[place] if place in cell.young else self._read(cell, place)
        return None if raw is None else decode_value(raw)

    def write_own(self, message_key: bytes, state_key: str, value: Any) -> None:
        """Sets the value of an own record; None deletes it."""
        raw = None if value is None else encode_value(value, max(self.timestamp_ms, 0))
        self._write(self._shared, key_prefix(message_key) + state_key.encode(), state_key, raw)

    def erase(self, message_key: bytes, state_key: str) -> None:
        """Deletes a value of a function, and leaves own records as they are."""
        former, self.message_key = self.message_key, message_key
        super()._store(state_key, None)
        self.message_key = former
