"""The records of a window store; no other module builds or reads these state keys.

    message key     state key                                         value
    the message's   w/<start>/<end>                                   the window's aggregates; of sessions, a closed one
    the message's   s/<time that opened it>                           an open session: its aggregates, start and end
    the message's   m/<start>/<end>                                   of sliding windows: messages in order of time
    the message's   n                                                 of count windows: the open one
    the message's   counted                                           of count windows: how many messages, and where
    the message's   n/<number>                                        of count windows: messages from this one on
    the message's   time                                              the key's own time and its newest open windows
    the message's   o/<end>/<start>                                   1: an open window that is not in ``time``
    OWN_KEY         due/<time>/<start>/<end>/<message key in hex>     1: an entry of the index by time
    OWN_KEY         ahead/<time>/<message key in hex>                 1: a key whose time counts at that time
    the message's   held                                              a result that is held back, and until when
    OWN_KEY         hold/<time>/<message key in hex>                  1: an entry of the index of records ``held``
    OWN_KEY         clock                                             stream time, and how far windows are closed

Times are milliseconds since 1970 with 15 digits, so that state keys sort by time. The windows of a key are adjacent, in
the order of their starts. The entries of the index are adjacent, in the order in which windows end.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS

#: The message key of a store's internal records. Their state keys distinguish them from records of a message with the
#: same key.
OWN_KEY = b"\x00holdfast"
CLOCK = "clock"
KEY_TIME = "time"
HELD = "held"
COUNTED, COUNTED_OPEN = "counted", "n"
_WINDOW, _SESSION, _CHUNK, _DUE, _HOLD, _AHEAD = "w/", "s/", "m/", "due/", "hold/", "ahead/"
#: The prefix of the state keys of open windows that do not fit into their key's record ``time``.
OPENS = "o/"
#: The prefixes of the state keys of index entries.
INDEXES = (_DUE, _HOLD, _AHEAD)
#: The prefixes of the state keys of open and closed sessions.
SESSIONS = (_SESSION, _WINDOW)
#: The part of an open session's record that is no column.
SESSION = "session"
#: The prefixes of the state keys of windows.
WINDOWS = (_WINDOW, _SESSION)


class DueEntry(NamedTuple):
    """An entry of the index: the window, and its place in the index."""

    place: str
    time_ms: int
    start: int
    end: int
    message_key: bytes


def clock_key() -> bytes:
    """The changelog key of the record that holds a store's stream time."""
    return key_prefix(OWN_KEY) + CLOCK.encode()


def window_key(start: int, end: int) -> str:
    """The state key of a window."""
    return f"{_WINDOW}{start:015d}/{end:015d}"


def window_of(state_key: str) -> tuple[int, int] | None:
    """Start and end of the window with this state key; None for other records."""
    if not state_key.startswith(_WINDOW):
        return None
    _, start, end = state_key.split("/")
    return int(start), int(end)


def open_key(start: int, end: int) -> str:
    """The state key that marks a window as open, in the order of ends."""
    return f"{OPENS}{end:015d}/{start:015d}"


def open_before(end: int) -> str:
    """A state key after all open windows that end up to this time, and before all later ones."""
    return f"{OPENS}{end + 1:015d}"


def open_window_of(state_key: str) -> tuple[int, int] | None:
    """Start and end of the open window that this state key marks; None for other records."""
    if not state_key.startswith(OPENS):
        return None
    _, end, start = state_key.split("/")
    return int(start), int(end)


def session_key(opened: int) -> str:
    """The state key of an open session; ``opened`` is the time of the message that opened it."""
    return f"{_SESSION}{opened:015d}"


def is_session(state_key: str) -> bool:
    """Whether this is the state key of an open session."""
    return state_key.startswith(_SESSION)


def opened_of(state_key: str) -> int:
    """The time that opened the session with this state key."""
    return int(state_key[len(_SESSION) :])


def chunk_key(start: int, end: int) -> str:
    """The state key of the messages of sliding windows from a time up to, and without, another."""
    return f"{_CHUNK}{start:015d}/{end:015d}"


def counted_key(number: int) -> str:
    """The state key of the messages of count windows, from the message with this number."""
    return f"n/{number:015d}"


def due_key(time_ms: int, start: int, end: int, message_key: bytes) -> str:
    """The state key of an entry of the index."""
    return f"{_DUE}{time_ms:015d}/{start:015d}/{end:015d}/{message_key.hex()}"


def hold_key(time_ms: int, message_key: bytes) -> str:
    """The state key of an entry in the index of held-back results."""
    return f"{_HOLD}{time_ms:015d}/{message_key.hex()}"


def first_hold() -> str:
    """A state key before all entries of the index of held-back results."""
    return _HOLD


def hold_before(time_ms: int) -> str:
    """A state key after all entries of that index up to this time, and before all later ones."""
    return f"{_HOLD}{time_ms + 1:015d}"


def held_of(place: str) -> tuple[int, bytes]:
    """The time and the message key of an entry of that index."""
    _, time_ms, key = place.split("/")
    return int(time_ms), bytes.fromhex(key)


def ahead_key(time_ms: int, message_key: bytes) -> str:
    """The state key of an entry in the index of keys whose time is ahead of the worker's clock."""
    return f"{_AHEAD}{time_ms:015d}/{message_key.hex()}"


def ahead_before(time_ms: int) -> str:
    """A state key after all entries of that index up to this time, and before all later ones."""
    return f"{_AHEAD}{time_ms + 1:015d}"


def first_ahead() -> str:
    """A state key before all entries of that index."""
    return _AHEAD


def ahead_of(place: str) -> tuple[int, bytes]:
    """The time and the message key of an entry of that index."""
    _, time_ms, key = place.split("/")
    return int(time_ms), bytes.fromhex(key)


def due_before(time_ms: int) -> str:
    """A state key after all entries of the index up to this time, and before all later ones."""
    return f"{_DUE}{time_ms + 1:015d}"


def last_due(time_ms: int) -> str:
    """A place behind all entries of the index up to this time."""
    return due_key(time_ms, EVENT_TIME_END_MS - 1, EVENT_TIME_END_MS - 1, b"")


def first_due() -> str:
    """A state key before all entries of the index."""
    return _DUE


def due_entry(place: str) -> DueEntry:
    """The entry with this state key."""
    return DueEntry(place, *_due_times(place[:_DUE_KEY_AT]), bytes.fromhex(place[_DUE_KEY_AT:]))


@lru_cache(maxsize=64)
def _due_times(before: str) -> tuple[int, int, int]:
    """The times of an entry, from the part before its message key, which windows with the same end share."""
    _, time_ms, start, end, _ = before.split("/")
    return int(time_ms), int(start), int(end)


#: The position where the message key of an entry begins: after three times.
_DUE_KEY_AT = len(due_key(0, 0, 0, b""))
