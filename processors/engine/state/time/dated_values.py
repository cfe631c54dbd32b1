"""Values whose state keys end with an event time. This time decides when a value expires. Joins store such values.

    message key     state key                                                      value
    the message's   <side><time>                                                   the value that the step stores
    the message's   <side><time>/<number>                                          a further value of the same time
    OWN_KEY         __holdfast/expires/<time>/<message key in hex>/<state key>     1

``<side>`` is the join's input, left or right. ``<time>`` has 15 digits. ``<number>`` has 9 digits and counts from 1.
A value may hold several messages of one time. The step limits its size, and stores further messages of that time as a
further value in a separate record. No record holds the expiry time, because the step computes it from the state key and
the value. Reads do not check expiry, because the step reads only times at which values have not expired.

A *moment* is the time and the number of one value, combined to one integer: ``time * NUMBERS + number``. For message
keys with recent messages, the moments are also in memory, so that a message needs no range read::

    moments of one key and side   ──x───x─┬─x──xx───x──► time
                               in the store │ in memory, too
                                            └ floor

Invariants:
    - Each expiring value has an index entry at the time of its next check. An entry without a value is deleted at that
      time.
    - Memory has all moments of a key and side that are at or after the floor. When a message fails, the moments of its
      key are removed from memory.
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

#: Number of digits of a time in a state key.
DIGITS = 15
#: A moment is the integer ``time * NUMBERS + number``. NUMBERS is larger than the count of values that one key can have
#: at one time.
NUMBERS = 10**9
#: Estimated bytes in memory: of one moment, and of an empty list of moments for one message key and side.
MOMENT_BYTES, LINE_BYTES = 56, 400
#: Old moments of a message key and side are removed from memory only if at least this many of them are in memory.
TRIM_FROM = 64

#: Estimated bytes of a decoded value in memory, in addition to twice the bytes of its stored form.
READ_BYTES = 400


class Rest(NamedTuple):
    """Result of an expiry check of a value: the part that has not expired, and the time of the next check.

    ``raw`` is None if all of the value has expired. ``look_ms`` is in milliseconds; None means no further check.
    """

    raw: bytes | None
    look_ms: int | None = None


#: A function that returns the part of a value that has not expired. Its arguments are the state key, the stored value,
#: the time of the due index entry, and the current stream time.
RestOf = Callable[[str, bytes, int, int], Rest]


class Dating(NamedTuple):
    """Describes the values of a store that have a time in their state keys, and when these values expire.

    Attributes:
        sides: The prefixes of the state keys that end with a time, for example ``l/`` and ``r/``.
        rest_of: A function that returns the part of a value that has not expired at a given time.
        slack_ms: Milliseconds. Memory also keeps the moments (times of values) up to this much before the requested
            time.
        numbered: Whether a key may have several values of one time. If so, older versions of Holdfast must not read the
            store.
    """

    sides: tuple[str, ...]
    rest_of: RestOf
    slack_ms: int
    numbered: bool = False


class PlacedRecords(OwnRecords, Protocol):
    """The methods of a store to access values by their changelog keys; ``DeclaredState`` implements them.

    ``scattered`` has prefixes of state keys. A state key with such a prefix occurs with one message key only.
    """

    scattered: tuple[str, ...]
    cache_bytes: int

    def entry_bytes(self) -> float:
        """Returns the estimated mean bytes of a cached value in memory."""

    def read_value(self, message_key: bytes, state_key: str) -> bytes | None:
        """Returns the stored value of a message key and a state key; None if there is no value."""

    def write_value(self, message_key: bytes, state_key: str, raw: bytes | None) -> None:
        """Sets the stored value of a message key and a state key; None deletes it."""

    def read_place(self, place: bytes) -> bytes | None:
        """Returns the stored value of a changelog key; None without a value.

        The state key's prefix must be in ``scattered``: such a state key occurs with one message key only.
        """

    def write_place(self, place: bytes, raw: bytes | None) -> None:
        """Sets the stored value of a changelog key; None deletes it.

        The state key's prefix must be in ``scattered``: such a state key occurs with one message key only.
        """


def time_text(time_ms: int) -> str:
    """Formats an event time for a state key, as 15 digits."""
    return f"{time_ms:015d}"


def time_of(name: str, side: str) -> int:
    """Returns the event time from the state key of a value, ``<side><time>`` or ``<side><time>/<number>``."""
    return int(name[len(side) : len(side) + DIGITS])


def line_of(message_key: bytes, side: bytes) -> bytes:
    """Returns the prefix of the changelog keys of all values of one message key and one side (left or right input)."""
    return key_prefix(message_key) + side


def place_of(line: bytes, time_ms: int) -> bytes:
    """Returns the changelog key of the first value at ``time_ms``. ``line`` is a prefix from ``line_of``."""
    return line + b"%015d" % time_ms


def place_at(line: bytes, moment: int) -> bytes:
    """Returns the changelog key of the value at ``moment`` (time and number). ``line`` is a prefix from ``line_of``."""
    time_ms, number = divmod(moment, NUMBERS)
    return b"%b%015d/%09d" % (line, time_ms, number) if number else b"%b%015d" % (line, time_ms)


def _moment_in(text: bytes) -> int:
    """Parses ``<time>`` or ``<time>/<number>`` to a moment, the integer ``time * NUMBERS + number``."""
    return int(text[:DIGITS]) * NUMBERS + int(text[DIGITS + 1 :] or 0)


class DatedValues:
    """The values of one store in one task whose state keys end with an event time, and the expiry of all values.

    Args:
        state: The store.
        stream: The stream time of the task.
        dating: Describes which values have a time in their state keys, and when these values expire.
        by_stream: Whether values expire by stream time alone, not by the event time of the current message.
    """

    def __init__(self, state: PlacedRecords, stream: StreamTime, dating: Dating, *, by_stream: bool = False) -> None:
        self._state, self.stream, self._by_stream = state, stream, by_stream
        self._sides = tuple(side.encode() for side in dating.sides)
        self._rest_of, self._slack_ms = dating.rest_of, dating.slack_ms
        self._index = TimeIndex(state, EXPIRES)
        state.scattered = dating.sides
        #: Maps each line (prefix of one message key and one side) to a pair. Its first item is the time in milliseconds
        #: from which on memory has all moments (times and numbers of values). Its second item has these moments,
        #: ascending.
        self._near: dict[bytes, tuple[int, list[int]]] = {}
        self._bytes = 0
        #: Maps message keys to decoded values that a step has read or set. If the dict is too large, the next commit
        #: clears it.
        self.read: dict[bytes, Any] = {}

    def now_ms(self) -> int:
        """Returns the time that decides for the current message what has expired, in milliseconds.

        It is the larger of stream time and the message's event time. If ``by_stream`` is True, or the event time is
        after the worker's clock, it is the stream time. During a timer's call, it is the timer's time.
        """
        at_ms, stream = self._state.timestamp_ms, self.stream
        if stream.call_ms is not None:
            return stream.call_ms
        return stream.time_ms if self._by_stream or at_ms > stream.cap_ms else max(stream.time_ms, at_ms)

    @property
    def stream_ms(self) -> int:
        """The time up to which values have expired, in milliseconds; ``NO_TIME`` before the first message.

        The time is the stream time of the task, or during a timer's call the timer's time.
        """
        return self.stream.ends_ms

    def moments(self, line: bytes, first_ms: int, last_ms: int) -> Sequence[int]:
        """Returns the moments (times and numbers) of the values from ``first_ms`` to ``last_ms`` inclusive.

        ``line`` is a prefix that ``line_of`` returned, for the current message's key.
        """
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
        """Returns the last moment (time and number) at ``time_ms`` that may have a value.

        None means that there is certainly no value at this time. ``line`` is a prefix that ``line_of`` returned, for
        the current message's key.
        """
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
        """Stores a value at a moment (time and number) that has no value yet, and returns the value's state key.

        ``line`` is a prefix that ``line_of`` returned, for the current message's key.

        Raises:
            RecordTooLarge: The record is larger than the changelog allows.
        """
        place = place_at(line, moment)
        self._state.write_place(place, raw)
        self._remember(line, moment)
        return place[len(key_prefix(self._state.message_key)) :].decode()

    def ends(self, name: str, end_ms: int) -> None:
        """Adds an index entry for a value of the current message's key, so that the value is checked at ``end_ms``.

        The check deletes the value if it has expired.
        """
        self._index.enter(Entry(min(end_ms, EVENT_TIME_END_MS - 1), self._state.message_key, name))

    def remove(self, limit: int) -> int:
        """Deletes values that have expired by stream time.

        Checks at most ``limit`` index entries, and returns how many entries were checked.
        """
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
                continue  # a command has cleared the key since the index entry was added
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
        """Whether a committed value with a time in its state key has expired at ``now_ms``."""
        return name.startswith(self._state.scattered) and self._rest_of(name, raw, NO_TIME, now_ms).raw is None

    def look_again(self) -> None:
        """Drops all moments (times and numbers of values) and values in memory.

        Must be called after an aborted transaction, and after a command such as ``clear`` has changed the store.
        """
        self._index.look_again()
        self.forget_all()

    def forget(self, message_key: bytes) -> None:
        """Drops the moments (times and numbers of values) and the value of one key in memory.

        Must be called after a message of the key failed. The key's next message reads them from the store again.
        """
        self.read.pop(message_key, None)
        if self._near:
            prefix = key_prefix(message_key)
            for side in self._sides:
                self._near.pop(prefix + side, None)

    def forget_all(self) -> None:
        """Drops all moments (times of values) and values in memory. The next messages read the store again."""
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
