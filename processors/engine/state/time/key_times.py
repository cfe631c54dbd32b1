"""Values that expire by the event times of their own message key, independent of other keys.

    message key     state key                                                      value
    the message's   <prefix><text>                                                 the step's value, with its event time
    the message's   __holdfast/newest                                              [newest, seen, place, ahead]
    OWN_KEY         __holdfast/expires/<place>/<message key in hex>/<state key>    1

``newest`` is the largest event time of the key's messages. ``seen`` is the stream time at one of the key's last
messages. ``place`` is the time in the index entry of this record. ``ahead`` is the key's smallest event time that the
worker's clock has not reached yet, or null.

A message is late if its event time is ``within_ms`` or more before ``newest``. A message may use a value if its event
time is less than ``within_ms`` after the value's event time. When ``newest`` is ``2 * within_ms`` after the value's
event time, every message that may use the value is late, so the value is deleted.

After ``group_by``, a key's messages come from several partitions, and one partition may be read hours ahead of another.
A value with the prefix is then kept until stream time has also reached the value's end, because stream time follows the
slowest partition.

A key that gets no more messages is removed ``remember_ms`` of stream time after its last message.

Invariants:
    - Each value with the prefix, and each ``newest`` record, has an index entry. An entry without a value is deleted
      when it is due.
    - A removal changes no result: stream time alone decides whether a key is forgotten, and reads ignore a forgotten
      key. A key is forgotten together with all of its values.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from holdfast.processors.engine.changelog.format import event_time_ms, key_prefix
from holdfast.processors.engine.state.own_keys import ENDS, EXPIRES, NEWEST
from holdfast.processors.engine.state.ranges import behind, state_keys
from holdfast.processors.engine.state.time.dated_values import PlacedRecords
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.time.time_index import Entry, TimeIndex

#: Within ``remember_ms``, a value is checked for expiry at most this many times. The key's ``seen`` (the time of a
#: recent message) is updated at most as often.
LOOKS = 16
#: Maximum number of values of a forgotten key that one check deletes.
FORGOTTEN_AT_ONCE = 1_000


class Keeping(NamedTuple):
    """The settings of a step whose values expire by the event times of their own key, for example ``drop_duplicates``.

    Attributes:
        prefix: The prefix of the state keys of values that expire.
        lasting: The state keys of values that stay until the key is forgotten.
        within_ms: Milliseconds. A message is late if it is at least this much older than the newest message of its key.
        remember_ms: Milliseconds of stream time for which a key is at least remembered after its last message; not
            below ``within_ms``.
    """

    prefix: str
    lasting: tuple[str, ...]
    within_ms: int
    remember_ms: int


class KeyTimes:
    """Decides when the values of one store in one task expire, by the event times of their own message keys."""

    def __init__(self, state: PlacedRecords, stream: StreamTime, keeping: Keeping, *, regrouped: bool = False) -> None:
        self._state, self._stream, self._keeping = state, stream, keeping
        self._index = TimeIndex(state, EXPIRES)
        self._waits = regrouped and bool(keeping.prefix)
        #: The number of late messages since the task started.
        self.late = 0
        #: The newest event time of the message key for which ``admits`` was called last.
        self.newest_ms = NO_TIME
        if keeping.prefix:
            state.scattered = (keeping.prefix,)

    def admits(self) -> bool:
        """Returns True if the current message is in time, False if it is late. Updates the key's newest event time."""
        state, at_ms, keeping = self._state, self._state.timestamp_ms, self._keeping
        held = state.read_own(state.message_key, NEWEST)
        now_ms = self._now_ms()
        # Stream time has passed the time at which the key is forgotten, but no commit has deleted the key's values yet.
        # So this message deletes them.
        if held is not None and self._end_ms(held) <= self._stream.time_ms:
            while not self._forget(state.message_key):
                pass
            held = None
        if held is None:
            place_ms = _bounded(self._forgotten_ms(now_ms))
            self._index.enter(Entry(place_ms, state.message_key, NEWEST))
            newest_ms, seen_ms, ahead_ms = NO_TIME, now_ms, None
        else:
            newest_ms, seen_ms, place_ms, ahead_ms = held
        cap_ms = self._stream.cap_ms
        if ahead_ms is not None and ahead_ms <= cap_ms:
            newest_ms, ahead_ms = max(newest_ms, ahead_ms), None
        # An event time in the future makes no message late until the worker's clock has reached this time.
        if at_ms > cap_ms:
            ahead_ms = at_ms if ahead_ms is None else min(ahead_ms, at_ms)
        elif at_ms > newest_ms:
            newest_ms = at_ms
        if now_ms - seen_ms > keeping.remember_ms // LOOKS:
            seen_ms = now_ms
        made = [newest_ms, seen_ms, place_ms, ahead_ms]
        if made != held:
            state.write_own(state.message_key, NEWEST, made)
        self.newest_ms = newest_ms
        if at_ms > self._judged_by(newest_ms) - keeping.within_ms:
            return True
        self.late += 1
        return False

    def time_of(self, name: str) -> int | None:
        """Returns the event time of the value with this state key; None without a value.

        The state key must have the prefix.
        """
        raw = self._state.read_place(key_prefix(self._state.message_key) + name.encode())
        return None if raw is None else event_time_ms(raw)

    def enter(self, name: str) -> None:
        """Adds an index entry for a new value of the current message's key, so that its expiry is checked later."""
        now_ms, lasts_ms = self._now_ms(), 2 * self._keeping.within_ms
        end_ms = self._state.timestamp_ms + lasts_ms
        # Stream time may have passed ``end_ms`` already, while the key's newest event time is still far before it. The
        # value has then not expired, so its check is scheduled ``lasts_ms`` from now.
        place_ms = end_ms if end_ms > now_ms else now_ms + lasts_ms
        self._index.enter(Entry(_bounded(place_ms), self._state.message_key, name))

    def remove(self, limit: int) -> int:
        """Deletes expired values and forgotten keys.

        Checks at most ``limit`` index entries, and returns how many entries were checked.
        """
        now_ms = self._stream.time_ms
        if now_ms == NO_TIME:
            return 0
        found = self._index.take(now_ms, limit)
        for entry in found:
            look_ms = self._left_until(entry, now_ms)
            if look_ms is not None:
                self._index.enter(entry._replace(time_ms=_bounded(max(look_ms, now_ms + 1))))
        return len(found)

    def look_again(self) -> None:
        """Drops the index entries in memory.

        Must be called after an aborted transaction, and after a command such as ``clear`` has changed the store.
        """
        self._index.look_again()

    def _left_until(self, entry: Entry, now_ms: int) -> int | None:
        """Checks the value of a due entry, and deletes the value if it has expired.

        Returns the time of the next check; None if the value was deleted, and no check is needed.
        """
        state, keeping, message_key = self._state, self._keeping, entry.message_key
        held = state.read_own(message_key, NEWEST)
        forgotten_ms = NO_TIME if held is None else self._end_ms(held)
        if entry.name == NEWEST:
            if held is None or held[2] != entry.time_ms:
                return None  # a command has cleared the key since the index entry was added
            if forgotten_ms > now_ms:
                state.write_own(message_key, NEWEST, [*held[:2], _bounded(forgotten_ms), held[3]])
                return int(forgotten_ms)
            return None if self._forget(message_key) else now_ms
        raw = state.read_value(message_key, entry.name)
        end_ms = NO_TIME if raw is None else event_time_ms(raw) + 2 * keeping.within_ms
        if raw is not None and forgotten_ms > now_ms and self._judged_by(held[0]) < end_ms:
            # By the key's newest event time, the value has not expired. This time may be far behind stream time, or may
            # never advance again. The next check is therefore scheduled by stream time.
            later_ms = now_ms + max(keeping.within_ms, keeping.remember_ms // LOOKS)
            return end_ms if end_ms > now_ms else int(min(forgotten_ms, later_ms))
        if raw is not None:
            state.erase(message_key, entry.name)
        # an older version of Holdfast wrote this record of the expiry time
        if state.read_own(message_key, ENDS + entry.name) is not None:
            state.write_own(message_key, ENDS + entry.name, None)
        return None

    def _forget(self, message_key: bytes) -> bool:
        """Deletes up to ``FORGOTTEN_AT_ONCE`` values of a key.

        If no values are left, also deletes the key's ``newest`` record and returns True. Otherwise returns False.
        """
        state, keeping, names = self._state, self._keeping, list[str]()
        if first := keeping.prefix.encode():
            with closing(state_keys(state, message_key, first, behind(first), reverse=False)) as found:
                names = [key.decode() for key, _ in islice(found, FORGOTTEN_AT_ONCE)]
        for name in (*names, *keeping.lasting):
            state.erase(message_key, name)
        if len(names) == FORGOTTEN_AT_ONCE:
            return False
        state.write_own(message_key, NEWEST, None)
        return True

    def _judged_by(self, newest_ms: int) -> int:
        """Returns the time that decides whether a message of a key is late: the newest event time of the key.

        After ``group_by``, the returned time is limited to stream time.
        """
        return min(newest_ms, self._stream.time_ms) if self._waits else newest_ms

    def _end_ms(self, held: list[Any]) -> int:
        """Returns the stream time, in milliseconds, at which the key of the record ``held`` is forgotten.

        A message with a future event time delays this time only after the worker's clock has reached the event time.
        """
        _, seen_ms, _, ahead_ms = held
        if ahead_ms is not None and ahead_ms <= self._stream.cap_ms:
            seen_ms = max(seen_ms, ahead_ms)
        return self._forgotten_ms(seen_ms)

    def _forgotten_ms(self, seen_ms: int) -> int:
        """Returns the stream time, in milliseconds, at which a key is forgotten.

        ``seen_ms`` may be up to ``remember_ms // LOOKS`` before the key's last message, so ``remember_ms // LOOKS`` is
        added.
        """
        return seen_ms + self._keeping.remember_ms + self._keeping.remember_ms // LOOKS

    def _now_ms(self) -> int:
        """Returns the larger of stream time and the current message's event time, in milliseconds.

        An event time after the worker's clock is ignored.
        """
        at_ms, stream = self._state.timestamp_ms, self._stream
        return stream.time_ms if at_ms > stream.cap_ms else max(stream.time_ms, at_ms)


def _bounded(time_ms: int) -> int:
    return min(time_ms, EVENT_TIME_END_MS - 1)
