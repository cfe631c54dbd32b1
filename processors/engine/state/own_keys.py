"""The internal state keys of a store of users' functions; no other module builds or reads them.

State keys that begin with ``RESERVED`` belong to Holdfast: ranges hide them from functions. Indexes are below the
message key ``OWN_KEY``, ordered by time: milliseconds since 1970 with 15 digits.
"""

from __future__ import annotations

from binascii import hexlify

#: Prefix of the state keys of internal records.
RESERVED = "__holdfast/"
RESERVED_BYTES = RESERVED.encode()
#: Prefixes of the end of a value, followed by the value's state key, and of the index of ends.
ENDS, EXPIRES = f"{RESERVED}ends/", f"{RESERVED}expires/"
#: Prefixes of a timer, followed by its name, and of the index of timers, followed by the clock that fires them.
TIMERS, TIMERS_BY_CLOCK = f"{RESERVED}timers/", f"{RESERVED}timers-by-"
#: The newest event time of a message key.
NEWEST = f"{RESERVED}newest"
#: The stream time of a store.
CLOCK_OF_STORE = f"{RESERVED}clock"


def index_key(kind: str, time_ms: int | None = None, message_key: bytes = b"", name: str = "") -> str:
    """The state key of an entry of an index; without a time, a state key before all its entries."""
    return kind if time_ms is None else f"{kind}{time_ms:015d}/{message_key.hex()}/{name}"


def index_place(kind: bytes, time_ms: int, message_key: bytes, name: str) -> bytes:
    """The state key of an entry of an index, as bytes; ``kind`` as bytes, too."""
    return b"%b%015d/%b/%b" % (kind, time_ms, hexlify(message_key), name.encode())


def index_end(kind: str) -> str:
    """A state key after all entries of an index."""
    return f"{kind}~"


def index_parts(kind: str, place: str) -> tuple[int, bytes, str]:
    """The time, the message key and the name of an entry with this state key."""
    time_ms, message_key, name = place[len(kind) :].split("/", 2)
    return int(time_ms), bytes.fromhex(message_key), name
