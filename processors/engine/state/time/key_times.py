"""Values of a message key that expire by the event times of the key's own messages, independent of other keys.

    message key     state key                                                      value
    the message's   <prefix><text>                                                 what the step stores; its event time
                                                                                   is in the head of the stored form
    the message's   __holdfast/newest                                              [newest, seen, place, ahead]
    OWN_KEY         __holdfast/expires/<place>/<message key in hex>/<state key>    1

``newest`` is the greatest event time of the key's messages, ``seen`` the stream time at one of its last messages, and
``ahead`` the first event time beyond the worker's clock, or null. A message that is ``within_ms`` or more older than
the newest one is late. A value is valid for messages less than ``within_ms`` younger. So it is deleted once all such
messages are late: when the newest message is two times ``within_ms`` younger.

After ``group_by`` a key's messages come from several partitions, and one partition may be read hours ahead. So there a
value with the prefix is kept until stream time, the time of the slowest partition, has also reached its end.

A key without messages has no time of its own. It is removed ``remember_ms`` of stream time after its last message.

Invariants:
    - Each value with the prefix, and each record of a newest message, has an entry in the index. An entry without its
      value leaves when it is due.
    - Removing changes no answer: the stream time says whether a key is forgotten, not the commit that removes it. A key
      is forgotten with all of its values.
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

#: Maximum number of checks of a key without an effect, while the key is remembered.
LOOKS = 16
#: Values of a forgotten key that one check deletes at most.
FORGOTTEN_AT_ONCE = 1_000


class Keeping(NamedTuple):
    """How a step keeps values of a key.

    Attributes:
        prefix: The prefix of the state keys of values that expire.
        lasting: The state keys of values that stay as long as the key is remembered.
        within_ms: How much older than the newest one of its key a message may be.
        remember_ms: Minimum time that a key is remembered after its last message, by stream time; not less than
            ``within_ms``.
    """

    prefix: str
    lasting: tuple[str, ...]
    within_ms: int
    remember_ms: int


class KeyTimes:
    """The values of one store in one task that expire by the times of their own keys."""

    def __init__(self, state: PlacedRecords, stream: StreamTime, keeping: Keeping, *, regrouped: bool = False) -> None:
        self._state, self._stream, self._keeping = state, stream, keeping
        self._index = TimeIndex(state, EXPIRES)
        self._waits = regrouped and bool(keeping.prefix)
        #: Late messages since the task started.
        self.late = 0
        #: The newest event time of the key that ``admits`` was called for last.
        self.newest_ms = NO_TIME
        if keeping.prefix:
            state.scattered = (keeping.prefix,)

    def admits(self) -> bool:
        """Applies the time of the current message to its key; False if the message is late."""
        state, at_ms, keeping = self._state, self._state.timestamp_ms, self._keeping
        held = state.read_own(state.message_key, NEWEST)
        now_ms = self._now_ms()
        if held is not None and self._end_ms(held) <= self._stream.time_ms:  # no commit has removed it yet
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
        if at_ms > cap_ms:  # it counts once the clock reaches it: until then it makes no other message late
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
        """The event time at which the value of a state key with the prefix was set; None without a value."""
        raw = self._state.read_place(key_prefix(self._state.message_key) + name.encode())
        return None if raw is None else event_time_ms(raw)

    def enter(self, name: str) -> None:
        """Schedules the expiry of a value that was just set and that the key did not have."""
        now_ms, lasts_ms = self._now_ms(), 2 * self._keeping.within_ms
        end_ms = self._state.timestamp_ms + lasts_ms
        # A key behind the stream time reaches the end at a time that is not known here.
        place_ms = end_ms if end_ms > now_ms else now_ms + lasts_ms
        self._index.enter(Entry(_bounded(place_ms), self._state.message_key, name))

    def remove(self, limit: int) -> int:
        """Deletes expired values and removes keys; checks at most ``limit`` entries, and returns how many."""
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
        """The store went back to its last commit, or was changed by a command."""
        self._index.look_again()

    def _left_until(self, entry: Entry, now_ms: int) -> int | None:
        """When to check an entry's value again; None if the value was deleted."""
        state, keeping, message_key = self._state, self._keeping, entry.message_key
        held = state.read_own(message_key, NEWEST)
        forgotten_ms = NO_TIME if held is None else self._end_ms(held)
        if entry.name == NEWEST:
            if held is None or held[2] != entry.time_ms:
                return None  # a command cleared the key meanwhile
            if forgotten_ms > now_ms:
                state.write_own(message_key, NEWEST, [*held[:2], _bounded(forgotten_ms), held[3]])
                return int(forgotten_ms)
            return None if self._forget(message_key) else now_ms
        raw = state.read_value(message_key, entry.name)
        end_ms = NO_TIME if raw is None else event_time_ms(raw) + 2 * keeping.within_ms
        if raw is not None and forgotten_ms > now_ms and self._judged_by(held[0]) < end_ms:
            # Its end is in the future; or the key's time is behind stream time, or the key gets no more messages.
            later_ms = now_ms + max(keeping.within_ms, keeping.remember_ms // LOOKS)
            return end_ms if end_ms > now_ms else int(min(forgotten_ms, later_ms))
        if raw is not None:
            state.erase(message_key, entry.name)
        if state.read_own(message_key, ENDS + entry.name) is not None:  # of versions that had ends by stream time
            state.write_own(message_key, ENDS + entry.name, None)
        return None

    def _forget(self, message_key: bytes) -> bool:
        """Deletes a part of a key's values, and with the last of them the key; True if the key is forgotten."""
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
        """The time that decides whether a message of a key is late.

        The key's newest time; after ``group_by``, at most stream time.
        """
        return min(newest_ms, self._stream.time_ms) if self._waits else newest_ms

    def _end_ms(self, held: list[Any]) -> int:
        """When the key of a record is forgotten; a message that was dated ahead counts once the clock is there."""
        _, seen_ms, _, ahead_ms = held
        if ahead_ms is not None and ahead_ms <= self._stream.cap_ms:
            seen_ms = max(seen_ms, ahead_ms)
        return self._forgotten_ms(seen_ms)

    def _forgotten_ms(self, seen_ms: int) -> int:
        """When a key is forgotten; ``seen_ms`` is up to a part of ``remember_ms`` before its last message."""
        return seen_ms + self._keeping.remember_ms + self._keeping.remember_ms // LOOKS

    def _now_ms(self) -> int:
        """The later of stream time and the message's event time, but not beyond the worker's clock."""
        at_ms, stream = self._state.timestamp_ms, self._stream
        return stream.time_ms if at_ms > stream.cap_ms else max(stream.time_ms, at_ms)


def _bounded(time_ms: int) -> int:
    return min(time_ms, EVENT_TIME_END_MS - 1)
