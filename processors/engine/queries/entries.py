"""Reads entries of one store from a view, and makes them JSON values.

    kind of store         entries in an answer
    key-value             ``state``: values by state key; ``state_base64``: values that ``set_bytes`` stored
    windows               ``windows``: start, end, and the window's value
    table                 ``row``

Records that Holdfast keeps for itself (indexes, clocks, expiry times) are left out, and so are expired values.

Invariants:
    - A read looks at no more than ``ENTRIES_MAX`` records, and its answer has about ``BYTES_MAX`` bytes at most. If a
      limit ends a read, the answer has the changelog key at which the next page begins.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from holdfast.processors.engine.changelog.format import HEAD_SIZE, decode_value, key_prefix, split_key
from holdfast.processors.engine.changelog.stored_values import json_text
from holdfast.processors.engine.queries.errors import QueryWrong
from holdfast.processors.engine.schema.column_values import column_value
from holdfast.processors.engine.state.databases.message_keys import between
from holdfast.processors.engine.state.databases.views import View
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE, RESERVED
from holdfast.processors.engine.state.ranges import behind
from holdfast.processors.engine.state.time.expiries import Expiries
from holdfast.processors.engine.state.time.stream_time import NO_TIME, Remembered
from holdfast.processors.engine.state.time.time_records import OWN, Span, session_of
from holdfast.processors.engine.state.time.window_keys import window_of
from holdfast.processors.engine.store_uses import TtlUse
from holdfast.processors.engine.topology import StoreSpec

#: Maximum number of records that one read looks at, and maximum bytes of the keys and values in its answer.
ENTRIES_MAX, BYTES_MAX = 10_000, 1 << 20


@dataclass(slots=True)
class Found:
    """The entries of one message key. ``after`` is the changelog key of the next page; None if all entries are here.

    It is true if there are entries here or in a later page.
    """

    state: dict[str, msgspec.Raw] = field(default_factory=dict)
    state_base64: dict[str, str] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    after: bytes | None = None

    def __bool__(self) -> bool:
        return bool(self.state or self.state_base64 or self.windows or self.after)


@dataclass(frozen=True, slots=True)
class StateKeys:
    """A selection of state keys of one message key: one key, a prefix, or a range from ``start`` to before ``end``."""

    one: str | None = None
    prefix: str = ""
    start: str = ""
    end: str | None = None

    def bounds(self) -> tuple[bytes, bytes | None]:
        """Returns the first state key and the first one behind the selection; None if the selection has no end."""
        first = max(self.prefix, self.start).encode()
        ends = [behind(self.prefix.encode()) or None, None if self.end is None else self.end.encode()]
        return first, min((each for each in ends if each is not None), default=None)


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """A selection of message keys: from ``low`` to before ``high``; None has no end."""

    low: bytes = b""
    high: bytes | None = None

    @classmethod
    def beginning_with(cls, prefix: bytes) -> MessageKeys:
        """Returns the selection of all message keys with this prefix."""
        return cls(prefix, behind(prefix) or None)


@dataclass(slots=True)
class Page:
    """Message keys with their entries. ``after`` is the changelog key of the next page; None at the end."""

    rows: list[tuple[bytes, Found]] = field(default_factory=list)
    after: bytes | None = None


class StoreReader:
    """Reads one store in one view.

    Args:
        spec: The description of the store.
    """

    def __init__(self, view: View, spec: StoreSpec) -> None:
        self._view, self._spec = view, spec
        self._expires = any(isinstance(use, TtlUse) for use in spec.uses)
        self._now_ms = self._stream_time() if self._expires else NO_TIME
        values = () if spec.schema is None else spec.schema.values
        self._columns = values[0].columns if len(values) == 1 else ()

    def value(self, message_key: bytes, state_key: str) -> bytes | None:
        """Returns the stored value of one state key; None if there is none, or if it has expired."""
        key = key_prefix(message_key) + state_key.encode()
        stored = self._view.get(self._spec.name, key)
        return None if stored is None or self._is_over(key, stored) or state_key.startswith(RESERVED) else stored

    def entries(self, message_key: bytes, keys: StateKeys, limit: int, after: bytes = b"") -> Found:
        """Returns entries of one message key, at most ``limit``, from the changelog key ``after`` on.

        Raises:
            QueryWrong: ``after`` belongs to another message key.
        """
        if keys.one is None:
            return self._read(message_key, keys, None, limit, after)
        found, stored = Found(), self.value(message_key, keys.one)
        if stored is not None:
            self._add(found, keys.one, stored)
        return found

    def windows(self, message_key: bytes, span: Span, limit: int, after: bytes = b"") -> Found:
        """Returns the windows of one message key that overlap the span, at most ``limit``.

        Open sessions come first, then the windows by their start. A read that ends at its limits may have no window
        yet, and has ``after``. Raises the same errors as ``entries``.
        """
        return self._read(message_key, StateKeys(), span, limit, after)

    def _read(self, message_key: bytes, keys: StateKeys, span: Span | None, limit: int, after: bytes) -> Found:
        found, head = Found(), key_prefix(message_key)
        if after and not after.startswith(head):
            raise QueryWrong(
                "`page` belongs to a page of another key.",
                action="Send `next` of the last answer about this key, or leave `page` out.",
            )
        first, end = keys.bounds()
        taken = size = 0
        for looked, (key, stored) in enumerate(self._view.items(self._spec.name, max(head + first, after))):
            if not key.startswith(head) or (end is not None and key[len(head) :] >= end):
                break
            state_key = key[len(head) :].decode()
            is_taken = self._is_shown(state_key) and not self._is_over(key, stored)
            if is_taken and span is not None:
                window = self._window(state_key, stored)
                is_taken = window is not None and span.meets(*window)
            # A page ends before an entry that is there. So no page is empty only because its first entries have ended.
            if looked >= ENTRIES_MAX or size > BYTES_MAX or (is_taken and taken >= limit):
                found.after = key
                break
            if is_taken:
                taken, size = taken + 1, size + len(key) + len(stored)
                self._add(found, state_key, stored)
        return found

    def message_keys(self, keys: MessageKeys, limit: int, after: bytes = b"") -> Page:
        """Returns message keys with their entries, at most ``limit`` keys, from the changelog key ``after`` on.

        Message keys come in the order of their length, then of their bytes. A message key that begins in a page also
        ends in it, except beyond the limits of a read.
        """
        page = Page()
        head, size = b"", 0
        read = partial(self._view.items, self._spec.name)
        for looked, (key, stored) in enumerate(between(read, keys.low, keys.high, after)):
            is_new = not head or not key.startswith(head)
            if looked >= ENTRIES_MAX or size > BYTES_MAX or (is_new and len(page.rows) >= limit):
                page.after = key
                break
            message_key, state_key = split_key(key)
            if is_new:
                head, found = key_prefix(message_key), Found()
                page.rows += [] if head == OWN else [(message_key, found)]
            if head != OWN and self._is_shown(state_key) and not self._is_over(key, stored):
                self._add(found, state_key, stored)
                size += len(key) + len(stored)
        page.rows = [row for row in page.rows if row[1]]
        return page

    def _add(self, found: Found, state_key: str, stored: bytes) -> None:
        text = json_text(stored)
        if text is None:
            found.state_base64[state_key] = base64.b64encode(stored[HEAD_SIZE:]).decode()
            return
        window = self._window(state_key, stored) if self._spec.has_windows else None
        if window is None:
            found.state[state_key] = msgspec.Raw(text)
            return
        value = decode_value(stored)
        if self._columns:
            value = {each.name: column_value(each, state_key, value) for each in self._columns if each.key_part is None}
        found.windows.append({"start": window[0], "end": window[1], "value": value})

    @staticmethod
    def _window(state_key: str, stored: bytes) -> tuple[int, int] | None:
        return session_of(state_key, stored) or window_of(state_key)

    def _is_shown(self, state_key: str) -> bool:
        return not state_key.startswith(RESERVED) and self._spec.has_value_at(state_key)

    def _is_over(self, key: bytes, stored: bytes) -> bool:
        if not self._expires or key.startswith(OWN):
            return False
        message_key, name = split_key(key)
        return Expiries.has_ended(message_key, name, self._look, self._now_ms)

    def _look(self, message_key: bytes, state_key: str) -> bytes | None:
        return self._view.get(self._spec.name, key_prefix(message_key) + state_key.encode())

    def _stream_time(self) -> int:
        stored = self._view.get(self._spec.name, OWN + CLOCK_OF_STORE.encode())
        return NO_TIME if stored is None else Remembered.of(decode_value(stored)).time_ms


def raw_value(stored: bytes) -> tuple[bytes, str]:
    """Returns the payload of a stored value, and its content type: the bytes of ``set_bytes``, or JSON text."""
    text = json_text(stored)
    return (stored[HEAD_SIZE:], "application/octet-stream") if text is None else (text, "application/json")
