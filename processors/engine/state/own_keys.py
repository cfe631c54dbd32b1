"""The state keys under which Holdfast keeps internal records in users' stores; only this module builds or reads them.

State keys that begin with ``RESERVED`` belong to Holdfast: ``state.items`` and ``state.keys`` leave them out. The
entries of indexes by time have the message key ``OWN_KEY``. Their state keys contain a time (milliseconds since 1970,
with 15 digits) and therefore sort by time.
"""

from __future__ import annotations

from binascii import hexlify

#: Prefix of the state keys of internal records.
RESERVED = "__holdfast/"
RESERVED_BYTES = RESERVED.encode()
#: Prefixes of state keys about expiry. ``ENDS`` + state key: the expiry time of this state key's value. ``EXPIRES`` +
#: time: an entry of the index by expiry time.
ENDS, EXPIRES = f"{RESERVED}ends/", f"{RESERVED}expires/"
#: Prefixes of state keys of timers. ``TIMERS`` + name: a timer. ``TIMERS_BY_CLOCK`` + clock + time: an entry of the
#: clock's index by due time.
TIMERS, TIMERS_BY_CLOCK = f"{RESERVED}timers/", f"{RESERVED}timers-by-"
#: The state key under which the newest event time of a message key is stored.
NEWEST = f"{RESERVED}newest"
#: The state key under which the stream time of a store is stored.
CLOCK_OF_STORE = f"{RESERVED}clock"
#: Prefix of the state keys of schedules. ``SCHEDULES`` + name: the progress of one schedule.
SCHEDULES = f"{RESERVED}schedules/"
#: Prefix of the state keys of sources. ``SOURCES`` + name: the progress of one source, from which the source continues
#: after a restart.
SOURCES = f"{RESERVED}sources/"
#: Prefix of the state keys of sinks. ``SINKS`` + name: the list of what one sink has staged and may not have published.
SINKS = f"{RESERVED}sinks/"


def index_key(kind: str, time_ms: int | None = None, message_key: bytes = b"", name: str = "") -> str:
    """Returns the state key of an entry in an index by time. ``kind`` is the prefix of the index.

    If ``time_ms`` is None, returns a key that sorts before all entries of the index.
    """
    return kind if time_ms is None else f"{kind}{time_ms:015d}/{message_key.hex()}/{name}"


def index_place(kind: bytes, time_ms: int, message_key: bytes, name: str) -> bytes:
    """Returns the same key as ``index_key``, as bytes. ``kind`` is bytes, too."""
    return b"%b%015d/%b/%b" % (kind, time_ms, hexlify(message_key), name.encode())


def index_end(kind: str) -> str:
    """Returns a state key that sorts after all entries of the index."""
    return f"{kind}~"


def index_parts(kind: str, place: str) -> tuple[int, bytes, str]:
    """Splits the state key of an index entry into its time, its message key and its name."""
    time_ms, message_key, name = place[len(kind) :].split("/", 2)
    return int(time_ms), bytes.fromhex(message_key), name
