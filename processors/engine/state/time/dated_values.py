"""Values of a message key under state keys that end with an event time, as joins store them, and their expiry.

    message key     state key                                                      value
    the message's   <side><time>                                                   what the step stores
    the message's   <side><time>/<number>                                          the same, of further values of a time
    OWN_KEY         __holdfast/expires/<time>/<message key in hex>/<state key>     1

``<time>`` has 15 digits, ``<number>`` has 9 and begins with 1: so no record grows with the number of values at its
time. A step computes from a state key and its value the part that remains at a time, so the end needs no record. Reads
do not check ends: the step requests only times that it may use.

A time and a number together are called a *moment*: one whole number, ``time * NUMBERS + number``. The moments of the
keys that messages come for are also in memory, so that a message costs no read of a range::

    moments of one key and side   ──x───x─┬─x──xx───x──► time
                               in the store │ in memory, too
                                            └ floor

Invariants:
    - Each value that ends has an entry in the index, when the step looks at it. An entry without its value leaves then.
    - In memory are all moments of a key and side from the floor on. A failed message forgets those of its key.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.own_keys import EXPIRES
from holdfast.processors.engine.state.ranges import behind, state_keys
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.time.time_index import Entry, OwnRecords, TimeIndex

#: Digits of a time in a state key.
DIGITS = 15
#: Factor for the times of moments, above the maximum number of values of one key and time.
NUMBERS = 10**9
#: Memory in bytes of one moment (a time in memory), and of one line (a key and side with moments), including list and
#: dict.
MOMENT_BYTES, LINE_BYTES = 56, 400
#: Moments of one key and side in memory at which old moments are removed.
TRIM_FROM = 64

#: Memory of a decoded value in bytes, in addition to two times the size of its stored form.
READ_BYTES = 400


class Rest(NamedTuple):
    """The remaining part of a stored value, None for nothing.

    And when to check again, in milliseconds, None for never.
    """

    raw: bytes | None
    look_ms: int | None = None


#: Computes the remaining part from a state key, its stored value, the time of the due entry, and the present time.
RestOf = Callable[[str, bytes, int, int], Rest]


class Dating(NamedTuple):
    """Which values of a store have a time in their state keys, and when values end.

    Attributes:
        sides: What the state keys of values with a time begin with.
        rest_of: What is left of a value.
        slack_ms: How far before a requested time the moments are also kept in memory.
        numbered: Whether a time may have several values, so that older versions must not read the store.
    """

    sides: tuple[str, ...]
    rest_of: RestOf
    slack_ms: int
    numbered: bool = False


class PlacedRecords(OwnRecords, Protocol):
    """A store with access to values by changelog keys; ``DeclaredState`` implements it."""

    scattered: tuple[str, ...]
    cache_bytes: int

    def entry_bytes(self) -> float:
        """The memory of a cached value on average, in bytes."""

    def read_value(self, message_key: bytes, state_key: str) -> bytes | None:
        """The stored value of a state key of a message key; None without one."""

    def write_value(self, message_key: bytes, state_key: str, raw: bytes | None) -> None:
        """Sets the stored value of a state key of a message key; None deletes it."""

    def read_place(self, place: bytes) -> bytes | None:
        """The stored value of the changelog key of a scattered state key; None without one."""

    def write_place(self, place: bytes, raw: bytes | None) -> None:
        """Sets the stored value of a changelog key of a scattered state key; None deletes it."""


def time_text(time_ms: int) -> str:
    """An event time as a part of a state key."""
    return f"{time_ms:015d}"


def time_of(name: str, side: str) -> int:
    """The event time in the state key of a value, without its number."""
    return int(name[len(side) : len(side) + DIGITS])


def line_of(message_key: bytes, side: bytes) -> bytes:
    """The prefix of the changelog keys of all times of a message key and a side."""
    return key_prefix(message_key) + side


def place_of(line: bytes, time_ms: int) -> bytes:
    """The changelog key of the first value at a time; ``line_of`` makes ``line``."""
    return line + b"%015d" % time_ms


def place_at(line: bytes, moment: int) -> bytes:
    """The changelog key of the value at a moment: ``line``, the time, and the number unless it is 0."""
    time_ms, number = divmod(moment, NUMBERS)
    return b"%b%015d/%09d" % (line, time_ms, number) if number else b"%b%015d" % (line, time_ms)


def _moment_in(text: bytes) -> int:
    """The moment (see the module) that the end of a state key spells: ``<time>`` or ``<time>/<number>``."""
    return int(text[:DIGITS]) * NUMBERS + int(text[DIGITS + 1 :] or 0)


class DatedValues:
    """The values of one store in one task that have a time in their state keys, and other values that expire.

    Args:
        state: The store.
        stream: The stream time of the task.
        dating: Which values have a time, and when values end.
        by_stream: As in ``Expiries``.
    """

    def __init__(self, state: PlacedRecords, stream: StreamTime, dating: Dating, *, by_stream: bool = False) -> None:
        self._state, self.stream, self._by_stream = state, stream, by_stream
        self._sides = tuple(side.encode() for side in dating.sides)
        self._rest_of, self._slack_ms = dating.rest_of, dating.slack_ms
        self._index = TimeIndex(state, EXPIRES)
        state.scattered = dating.sides
        #: Moments in memory, by line (one side of one message key): the time from which they are complete, in
        #: milliseconds, and the moments from that time, ascending.
        self._near: dict[bytes, tuple[int, list[int]]] = {}
        self._bytes = 0
        #: By message key, a value that a step has read or set. A commit clears the dict if it is too large.
        self.read: dict[bytes, Any] = {}

    def now_ms(self) -> int:
        """The later of stream time and the message's event time, but not beyond the worker's clock.

        With ``by_stream``, the stream time; during a timer's call, the timer's time.
        """
        at_ms, stream = self._state.timestamp_ms, self.stream
        if stream.call_ms is not None:
            return stream.call_ms
        return stream.time_ms if self._by_stream or at_ms > stream.cap_ms else max(stream.time_ms, at_ms)

    @property
    def stream_ms(self) -> int:
        """The time by which values are over, in milliseconds; ``NO_TIME`` before the first message.

        The stream time of the task; during a timer's call, the timer's time.
        """
        return self.stream.ends_ms

    def moments(self, line: bytes, first_ms: int, last_ms: int) -> Sequence[int]:
        """The moments with values from ``first_ms`` to ``last_ms``, both included, of the current message's key."""
        near = self._near.get(line)
        if near is None:
            near = self._load(line, first_ms)
        floor_ms, moments = near
        if first_ms < floor_ms:
            return self._read(line, first_ms, last_ms)
        first = first_ms * NUMBERS
        if not moments or moments[-1] < first:
            return ()
        return moments[bisect_left(moments, first) : bisect_left(moments, (last_ms + 1) * NUMBERS)]

    def last(self, line: bytes, time_ms: int) -> int | None:
        """The last moment of a time that the current message's key may have a value at: None is sure."""
        near = self._near.get(line)
        if near is None:
            near = self._load(line, time_ms)
        floor_ms, moments = near
        if time_ms < floor_ms:
            return self._read_last(line, time_ms)
        first = time_ms * NUMBERS
        if not moments or moments[-1] < first:
            return None
        at = bisect_left(moments, first + NUMBERS)
        return moments[at - 1] if at and moments[at - 1] >= first else None

    def put(self, line: bytes, moment: int, raw: bytes) -> str:
        """Keeps a value of the current message's key at a moment that has none; returns its state key.

        Raises:
            RecordTooLarge: The record is larger than the changelog allows.
        """
        place = place_at(line, moment)
        self._state.write_place(place, raw)
        self._remember(line, moment)
        return place[len(key_prefix(self._state.message_key)) :].decode()

    def ends(self, name: str, end_ms: int) -> None:
        """Schedules a check of a value of the current message's key, which deletes the value if it has ended."""
        self._index.enter(Entry(min(end_ms, EVENT_TIME_END_MS - 1), self._state.message_key, name))

    def remove(self, limit: int) -> int:
        """Deletes values whose end is before stream time; checks at most ``limit`` entries, and returns how many."""
        state, now_ms = self._state, self.stream.ends_ms
        if len(self.read) * (READ_BYTES + 2 * state.entry_bytes()) > state.cache_bytes // 4:
            self.read.clear()
        if now_ms == NO_TIME:
            return 0
        found = self._index.take(now_ms, limit)
        for entry in found:
            _, message_key, name = entry
            is_placed = name.startswith(state.scattered)
            place = key_prefix(message_key) + name.encode() if is_placed else b""
            raw = state.read_place(place) if is_placed else state.read_value(message_key, name)
            if raw is None:
                continue  # a command cleared the key meanwhile
            rest = self._rest_of(name, raw, entry.time_ms, now_ms)
            if rest.raw is not raw and is_placed:
                state.write_place(place, rest.raw)
            elif rest.raw is not raw:
                state.write_value(message_key, name, rest.raw)
                self.read.pop(message_key, None)
            if rest.look_ms is not None:
                self._index.enter(entry._replace(time_ms=min(rest.look_ms, EVENT_TIME_END_MS - 1)))
        return len(found)

    def has_ended(self, name: str, raw: bytes, now_ms: int) -> bool:
        """Whether a committed value with a time in its state key has ended at a time."""
        return name.startswith(self._state.scattered) and self._rest_of(name, raw, NO_TIME, now_ms).raw is None

    def look_again(self) -> None:
        """The store went back to its last commit, or was changed by a command."""
        self._index.look_again()
        self.forget_all()

    def forget(self, message_key: bytes) -> None:
        """The last message of a key failed: discards the key's moments and value, so that they are read again."""
        self.read.pop(message_key, None)
        if self._near:
            prefix = key_prefix(message_key)
            for side in self._sides:
                self._near.pop(prefix + side, None)

    def forget_all(self) -> None:
        """All moments and values are read again."""
        self._near, self._bytes = {}, 0
        self.read.clear()

    def _remember(self, line: bytes, moment: int) -> None:
        near = self._near.get(line)
        if near is None or moment < near[0] * NUMBERS:
            return
        moments = near[1]
        self._bytes += MOMENT_BYTES
        if moments and moment <= moments[-1]:
            insort(moments, moment)
            return
        moments.append(moment)
        floor_ms = moment // NUMBERS - self._slack_ms
        if len(moments) > TRIM_FROM and moments[len(moments) // 2] < floor_ms * NUMBERS:
            cut = bisect_left(moments, floor_ms * NUMBERS)
            del moments[:cut]
            self._bytes -= cut * MOMENT_BYTES
            self._near[line] = floor_ms, moments

    def _read_last(self, line: bytes, time_ms: int) -> int | None:
        side = self._side_of(line)
        first = side + b"%015d" % time_ms
        with closing(state_keys(self._state, self._state.message_key, first, behind(first), reverse=True)) as found:
            return next((_moment_in(key[len(side) :]) for key, _ in found), None)

    def _load(self, line: bytes, first_ms: int) -> tuple[int, list[int]]:
        floor_ms = max(0, first_ms - self._slack_ms)
        moments = self._read(line, floor_ms)
        self._bytes += LINE_BYTES + len(moments) * MOMENT_BYTES
        if self._bytes > self._state.cache_bytes // 4:
            self.forget_all()
            self._bytes = LINE_BYTES + len(moments) * MOMENT_BYTES
        near = self._near[line] = floor_ms, moments
        return near

    def _read(self, line: bytes, first_ms: int, last_ms: int = EVENT_TIME_END_MS - 1) -> list[int]:
        side = self._side_of(line)
        end = behind(side + b"%015d" % min(last_ms, EVENT_TIME_END_MS - 1)) if last_ms >= 0 else side
        first = side + b"%015d" % max(0, first_ms)
        with closing(state_keys(self._state, self._state.message_key, first, end, reverse=False)) as found:
            return [_moment_in(key[len(side) :]) for key, _ in found]

    def _side_of(self, line: bytes) -> bytes:
        return line[len(key_prefix(self._state.message_key)) :]
