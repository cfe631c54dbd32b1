"""The state of a source, as its thread sees it: committed values, and the thread's own later writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import decode_value, encode_value
from holdfast.processors.engine.state.methods import StateMethods, Ttl
from holdfast.processors.engine.state.own_keys import RESERVED


class SourceStateKeyInvalid(HoldfastError):
    """A state key of a source is no text, or begins with a name that belongs to Holdfast."""


class SourceState(StateMethods):
    """The values that a ``StatefulSource`` keeps, for example its position in the other system.

    All values are in memory, so the state should stay small. Only the worker's loop may use the store, so the source's
    thread works on this copy. ``writes`` has the changes since the last unit (messages that are committed together).
    The loop writes them into the store, in the transaction that contains the unit's messages.

    Args:
        store: The name of the store.
        held: The stored bytes of each state key.
        check_room: A function of a state key and a size in bytes. It raises RecordTooLarge if a changelog record of
            this size is too large.
    """

    __slots__ = ("_check_room", "_held", "message_key", "name", "timestamp_ms", "writes")

    def __init__(self, store: str, held: Mapping[str, bytes], check_room: Callable[[str, int], None]) -> None:
        self.name, self.message_key, self.timestamp_ms = store, b"", 0
        self._held, self._check_room = dict(held), check_room
        self.writes: dict[str, bytes | None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a copy of the value of ``key``; without a value, returns a copy of ``default``."""
        raw = self._load(key)
        return copy.deepcopy(default) if raw is None else decode_value(raw)

    def set(self, key: str, value: Any, *, ttl: Ttl = None) -> None:
        """Sets the value of ``key``, which must be a JSON value; raises ValueNotStorable or RecordTooLarge."""
        if ttl is not None:
            raise self.without_ttl()
        self._check_key(key)
        self._store(key, encode_value(value, self.timestamp_ms, where=f" for key {key!r} of store {self.name!r}"))

    def _load(self, key: str) -> bytes | None:
        self._check_key(key)
        return self._held.get(key)

    def _check_key(self, key: Any) -> None:
        """Raises SourceStateKeyInvalid if the key can't be a state key of a source."""
        if isinstance(key, str) and not key.startswith(RESERVED):
            return
        is_text = isinstance(key, str)
        raise SourceStateKeyInvalid(
            f"A state key of store {self.name!r} is {repr(key)[:80]} of type {type(key).__name__}; expected a text"
            + (f" that does not begin with {RESERVED!r}." if is_text else "."),
            action="Choose another state key." if is_text else "Pass a text, for example `str(key)`.",
            store=self.name,
            seen=repr(key)[:80],
        )

    def _store(self, key: str, raw: bytes | None) -> None:
        self._check_key(key)
        if raw is None:
            self._held.pop(key, None)
        else:
            self._check_room(key, len(raw) + len(key.encode()))
            self._held[key] = raw
        self.writes[key] = raw

    # -- methods for reads of key ranges; ``stored`` includes the uncommitted values -----------------------------------

    def uncommitted(
        self, message_key: bytes, first: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields nothing, because ``stored`` also yields the uncommitted writes."""
        return iter(())

    def stored(self, message_key: bytes, first: bytes) -> Generator[tuple[bytes, bytes]]:
        """Yields the pairs (state key, value) in key order, beginning at the key ``first``."""
        yield from ((key, raw) for key, raw in self._sorted() if key >= first)

    def stored_back(self, message_key: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
        """Yields the pairs (state key, value) before the key ``end``, in reverse order; None means all pairs."""
        yield from ((key, raw) for key, raw in reversed(self._sorted()) if end is None or key < end)

    def _sorted(self) -> list[tuple[bytes, bytes]]:
        return sorted((key.encode(), raw) for key, raw in self._held.items())
