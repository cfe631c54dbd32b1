"""The state keys of the records in a window store. Only this module builds and parses these keys.

    message key     state key                                         value
    the message's   w/<start>/<end>                                   aggregates of a window, or of a closed session
    the message's   s/<time that opened it>                           an open session: its aggregates, start and end
    the message's   m/<start>/<end>                                   sliding windows: messages, sorted by time
    the message's   n                                                 count windows: the open window
    the message's   counted                                           count windows: message count, start of each chunk
    the message's   n/<number>                                        count windows: a chunk, from message <number> on
    the message's   time                                              the key's largest event time; newest open windows
    the message's   o/<end>/<start>                                   1: an open window that is not in ``time``
    OWN_KEY         due/<time>/<start>/<end>/<message key in hex>     1: an entry of the index of window ends
    OWN_KEY         ahead/<time>/<message key in hex>                 1: a key with an event time in the future
    the message's   held                                              a held-back result, and its due time
    OWN_KEY         hold/<time>/<message key in hex>                  1: an entry of the index of held-back results
    OWN_KEY         clock                                             stream time, and the end of closed windows

Times are milliseconds since 1970 with 15 digits, so that state keys sort by time. The windows of a message key are
stored in the order of their starts. The index entries are stored in the order in which windows end. A held-back result
is a result of a window that is sent later (``suppress``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS

#: The message key of a store's internal records. If a message has the same key by chance, its records still have other
#: state keys.
OWN_KEY = b"\x00holdfast"
CLOCK = "clock"
KEY_TIME = "time"
HELD = "held"
COUNTED, COUNTED_OPEN = "counted", "n"
_WINDOW, _SESSION, _CHUNK, _DUE, _HOLD, _AHEAD = "w/", "s/", "m/", "due/", "hold/", "ahead/"
#: Prefix of state keys that mark a window as open. They are needed for open windows that are not in the key's record
#: ``time``.
OPENS = "o/"
#: Prefixes of the state keys of all index entries.
INDEXES = (_DUE, _HOLD, _AHEAD)
#: Prefixes of the state keys of open and closed sessions.
SESSIONS = (_SESSION, _WINDOW)
#: In the value of an open session: the name of the field with the session's times. All other fields are aggregates.
SESSION = "session"
#: Prefixes of the state keys of all windows and sessions, open and closed.
WINDOWS = (_WINDOW, _SESSION)


class DueEntry(NamedTuple):
    """An entry of the index of window ends: state key (``place``), time, window start, window end, and message key."""

    place: str
    time_ms: int
    start: int
    end: int
    message_key: bytes


def clock_key() -> bytes:
    """Returns the changelog key of the record that contains a store's stream time."""
    return key_prefix(OWN_KEY) + CLOCK.encode()


def window_key(start: int, end: int) -> str:
    """Returns the state key of a window."""
    return f"{_WINDOW}{start:015d}/{end:015d}"


def window_of(state_key: str) -> tuple[int, int] | None:
    """Returns the start and the end of the window with this state key; None for other records."""
    if not state_key.startswith(_WINDOW):
        return None
    _, start, end = state_key.split("/")
    return int(start), int(end)


def open_key(start: int, end: int) -> str:
    """Returns the state key whose record says that a window is open. These state keys sort by the windows' ends."""
    return f"{OPENS}{end:015d}/{start:015d}"


def open_before(end: int) -> str:
    """Returns a state key that sorts after the state keys ``open_key`` of all windows that end at or before ``end``."""
    return f"{OPENS}{end + 1:015d}"


def open_window_of(state_key: str) -> tuple[int, int] | None:
    """Returns the start and end of the window that a state key from ``open_key`` marks; None for other state keys."""
    if not state_key.startswith(OPENS):
        return None
    _, end, start = state_key.split("/")
    return int(start), int(end)


def session_key(opened: int) -> str:
    """Returns the state key of an open session. ``opened`` is the event time of the message that opened it."""
    return f"{_SESSION}{opened:015d}"


def is_session(state_key: str) -> bool:
    """Whether this is the state key of an open session."""
    return state_key.startswith(_SESSION)


def opened_of(state_key: str) -> int:
    """Returns the event time of the message that opened the session with this state key."""
    return int(state_key[len(_SESSION) :])


def chunk_key(start: int, end: int) -> str:
    """Returns the state key of a sliding window's messages from ``start`` (inclusive) to ``end`` (exclusive)."""
    return f"{_CHUNK}{start:015d}/{end:015d}"


def counted_key(number: int) -> str:
    """Returns the state key of a record with messages of count windows.

    ``number`` is the number of the record's first message.
    """
    return f"n/{number:015d}"


def due_key(time_ms: int, start: int, end: int, message_key: bytes) -> str:
    """Returns the state key of an entry in the index of window ends."""
    return f"{_DUE}{time_ms:015d}/{start:015d}/{end:015d}/{message_key.hex()}"


def hold_key(time_ms: int, message_key: bytes) -> str:
    """Returns the state key of an entry in the index of held-back results."""
    return f"{_HOLD}{time_ms:015d}/{message_key.hex()}"


def first_hold() -> str:
    """Returns a state key that sorts before all entries of the index of held-back results."""
    return _HOLD


def hold_before(time_ms: int) -> str:
    """Returns a state key that sorts after all index entries of held-back results up to this time."""
    return f"{_HOLD}{time_ms + 1:015d}"


def held_of(place: str) -> tuple[int, bytes]:
    """Returns the time and the message key from the state key of an index entry for a held-back result."""
    _, time_ms, key = place.split("/")
    return int(time_ms), bytes.fromhex(key)


def ahead_key(time_ms: int, message_key: bytes) -> str:
    """Returns the state key of an entry in the index of keys with an event time after the worker's clock."""
    return f"{_AHEAD}{time_ms:015d}/{message_key.hex()}"


def ahead_before(time_ms: int) -> str:
    """Returns a state key that sorts after all entries ``ahead/`` up to ``time_ms``, and before all later entries."""
    return f"{_AHEAD}{time_ms + 1:015d}"


def first_ahead() -> str:
    """Returns a state key that sorts before all entries of the index of keys with a future event time."""
    return _AHEAD


def ahead_of(place: str) -> tuple[int, bytes]:
    """Returns the time and the message key from the state key of an entry ``ahead/`` (a future event time)."""
    _, time_ms, key = place.split("/")
    return int(time_ms), bytes.fromhex(key)


def due_before(time_ms: int) -> str:
    """Returns a state key that sorts after all entries of the index of window ends up to this time."""
    return f"{_DUE}{time_ms + 1:015d}"


def last_due(time_ms: int) -> str:
    """Returns a state key that sorts after all entries of the index of window ends with this time."""
    return due_key(time_ms, EVENT_TIME_END_MS - 1, EVENT_TIME_END_MS - 1, b"")


def first_due() -> str:
    """Returns a state key that sorts before all entries of the index of window ends."""
    return _DUE


def due_entry(place: str) -> DueEntry:
    """Parses the state key of an entry in the index of window ends."""
    return DueEntry(place, *_due_times(place[:_DUE_KEY_AT]), bytes.fromhex(place[_DUE_KEY_AT:]))


@lru_cache(maxsize=64)
def _due_times(before: str) -> tuple[int, int, int]:
    """Parses the times at the start of a state key in the index of window ends.

    The result is cached, because entries of windows with the same start and end have the same beginning.
    """
    _, time_ms, start, end, _ = before.split("/")
    return int(time_ms), int(start), int(end)


#: The position in an entry's state key at which the message key begins.
_DUE_KEY_AT = len(due_key(0, 0, 0, b""))
