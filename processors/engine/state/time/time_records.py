"""Finds the window or message key to which a record of a store belongs, from the record's key and value.

Owner commands that read a store record by record use these functions, for example to clear the windows of one day. The
modules ``window_keys`` and ``own_keys`` define the formats of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.processors.engine.changelog.format import (
    decode_value,
    encode_value,
    event_time_ms,
    key_prefix,
    split_key,
)
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE, EXPIRES, RESERVED, TIMERS_BY_CLOCK, index_parts
from holdfast.processors.engine.state.time.stream_time import NO_TIME
from holdfast.processors.engine.state.time.timers import CLOCKS
from holdfast.processors.engine.state.time.window_keys import (
    CLOCK,
    HELD,
    KEY_TIME,
    OWN_KEY,
    SESSION,
    ahead_of,
    due_entry,
    first_ahead,
    first_due,
    first_hold,
    held_of,
    is_session,
    open_window_of,
    opened_of,
    session_key,
    window_key,
    window_of,
)

#: The prefix of the changelog keys of all internal records of a store.
OWN = key_prefix(OWN_KEY)
#: The state keys of the internal records that contain a stream time.
CLOCKS_OF_STORES = (CLOCK, CLOCK_OF_STORE)
_INDEXES = (*(f"{TIMERS_BY_CLOCK}{clock}/" for clock in CLOCKS), EXPIRES)

#: A function that returns the stored value of a message key and a state key; None without a value.
Look = Callable[[bytes, str], bytes | None]


class Span(NamedTuple):
    """Event times from ``start_ms`` (inclusive) to ``end_ms`` (exclusive), in milliseconds since 1970."""

    start_ms: int
    end_ms: int

    def meets(self, start: int, end: int) -> bool:
        """Whether the window from ``start`` to ``end`` overlaps this time span."""
        return start < self.end_ms and end > self.start_ms


class Part(NamedTuple):
    """What a command has selected of a record: nothing, a part of the value, or all of it.

    ``left`` is the value without the selected part; None if nothing remains.
    """

    selected: bool
    left: bytes | None = None


def is_own(key: bytes) -> bool:
    """Whether this changelog key belongs to an internal record of the store, not to a message key."""
    if not key.startswith(OWN):
        return False
    state = key[len(OWN) :].decode()
    return state in CLOCKS_OF_STORES or owner_of(state) is not None


def owner_of(state_key: str) -> bytes | None:
    """Returns the message key that an index entry points to; None for other records."""
    with suppress(ValueError):  # a user function may have set a state key that begins like an index entry but is none
        if state_key.startswith(first_due()):
            return due_entry(state_key).message_key
        if state_key.startswith(first_hold()):
            return held_of(state_key)[1]
        if state_key.startswith(first_ahead()):
            return ahead_of(state_key)[1]
        if state_key.startswith(RESERVED):
            return next((index_parts(kind, state_key)[1] for kind in _INDEXES if state_key.startswith(kind)), None)
    return None


def part_in(span: Span, state_key: str, stored: bytes, others: Collection[int], *, sessions: bool) -> Part:
    """Finds the part of a message key's record that belongs to windows that overlap the times in ``span``.

    ``others`` is about the key's open sessions that do not overlap ``span``. For each of these sessions, it has the
    event time of the message that opened the session.
    """
    window = session_of(state_key, stored) or window_of(state_key) or open_window_of(state_key)
    if window is not None:
        return Part(span.meets(*window))
    if state_key == KEY_TIME:
        known = decode_value(stored)
        left = [each for each in known["open"] if (each[1] in others if sessions else not span.meets(*each))]
        if left == known["open"]:
            return Part(False)
        if not left and not others and known["time"] == NO_TIME:
            return Part(True)
        return Part(True, encode_value({**known, "open": left}, event_time_ms(stored)))
    if state_key == HELD:
        known = decode_value(stored)
        if known["held"] is not None and span.meets(known["held"][0]["start"], known["held"][0]["end"]):
            return Part(True, encode_value({**known, "held": None}, event_time_ms(stored)))
    return Part(False)


def session_of(state_key: str, stored: bytes) -> tuple[int, int] | None:
    """Returns the start and the end of an open session; None if the record is no open session."""
    return session_of_value(decode_value(stored)) if is_session(state_key) else None


def session_of_value(value: dict[str, Any]) -> tuple[int, int]:
    """Returns the start and the end of an open session, from the decoded value of its record."""
    return value[SESSION]["start"], value[SESSION]["end"]


def is_window_in(span: Span, key: bytes, stored: bytes) -> bool:
    """Whether the record with this changelog key is an open or closed window that overlaps ``span``."""
    if key.startswith(OWN) and is_own(key):
        return False
    state_key = split_key(key)[1]
    window = session_of(state_key, stored) or window_of(state_key)
    return window is not None and span.meets(*window)


def is_entry_in(span: Span, state_key: str, look: Look, *, sessions: bool) -> bool:
    """Whether an index entry belongs to a window that overlaps the times in ``span``.

    ``look`` reads a record of the store.
    """
    if not state_key.startswith(first_due()):
        return False
    entry = due_entry(state_key)
    if span.meets(entry.start, entry.end):  # also for sessions: the times in the entry are within the session
        return True
    if not sessions:
        return False
    stored = look(entry.message_key, session_key(entry.start))
    if stored is None:  # The session is closed (then its window is stored), or was deleted before its index entry.
        return look(entry.message_key, window_key(entry.start, entry.end)) is None
    about: dict[str, Any] = decode_value(stored)[SESSION]
    return about["entered"] == [entry.time_ms, entry.end] and span.meets(about["start"], about["end"])


def opened_in(state_key: str, stored: bytes, span: Span) -> int | None:
    """Returns the event time that opened the session of a record.

    Returns None if the record is no open session, or if the session overlaps ``span``.
    """
    window = session_of(state_key, stored)
    return None if window is None or span.meets(*window) else opened_of(state_key)
