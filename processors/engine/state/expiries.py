"""When the values of a store end: an entry for each value with an end, and an index of these by time.

    message key     state key                                                      value
    the message's   __holdfast/ends/<state key>                                    [end, place in the index]
    OWN_KEY         __holdfast/expires/<place>/<message key in hex>/<state key>    1

Times are event times in milliseconds, with 15 digits in keys. A value is not readable from its end on, by the stream
time of the task or by the event time of the message that reads. Its records leave later, in bounded steps.

A value that is set again gets a new end only. Its entry in the index stays where it is, and moves when it is due. So a
value that is set a thousand times has one entry, and writes one.

Invariants:
    - A value with an end has one entry in the index, at its end or before. A value without an end has none.
    - Removing changes no read: what is removed was not readable before.
"""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.processors.engine.state.own_keys import ENDS, EXPIRES, index_before, index_key, index_parts
from holdfast.processors.engine.state.ranges import Ranged, state_keys_between
from holdfast.processors.engine.state.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.window_keys import OWN_KEY


class OwnRecords(Ranged, Protocol):
    """A store as its own records are read and written: ``DeclaredState``."""

    message_key: bytes
    timestamp_ms: int

    def read_own(self, message_key: bytes, state_key: str) -> Any:
        """The value of an own record; None without one."""

    def write_own(self, message_key: bytes, state_key: str, value: Any) -> None:
        """Sets the value of an own record; None deletes it."""

    def erase(self, message_key: bytes, state_key: str) -> None:
        """Deletes a value of a function, with nothing else."""


class Expiries:
    """The ends of the values of one store in one task.

    Args:
        state: The store.
        ttl_ms: How long a value lasts that is set without a time of its own; None for always.
        stream: The stream time of the task.
    """

    def __init__(self, state: OwnRecords, ttl_ms: int | None, stream: StreamTime) -> None:
        self._state, self._ttl_ms, self._stream = state, ttl_ms, stream
        #: Nothing in the index is before this place. It spares the next look what was removed before.
        self._first = index_key(EXPIRES)

    def are_over(self, key: str) -> bool:
        """Whether the value of a state key of the current message's key has ended."""
        held = self._state.read_own(self._state.message_key, ENDS + key)
        return held is not None and held[0] <= self._now_ms()

    def put(self, key: str, ttl_ms: int | None) -> bool:
        """Gives the value that was just set its end; False if that is over already: the value is to be deleted."""
        ttl_ms = self._ttl_ms if ttl_ms is None else ttl_ms
        if ttl_ms is None:
            self.forget(key)
            return True
        state = self._state
        end_ms = min(max(state.timestamp_ms, 0) + ttl_ms, EVENT_TIME_END_MS - 1)
        if end_ms <= self._now_ms():
            return False
        held = state.read_own(state.message_key, ENDS + key)
        place_ms = end_ms if held is None else held[1]
        if held is None or end_ms < place_ms:
            if held is not None:
                state.write_own(OWN_KEY, index_key(EXPIRES, place_ms, state.message_key, key), None)
            place_ms = end_ms
            self._enter(end_ms, state.message_key, key)
        if held != [end_ms, place_ms]:
            state.write_own(state.message_key, ENDS + key, [end_ms, place_ms])
        return True

    def forget(self, key: str) -> None:
        """Forgets the end of a value that was deleted, or that has none from now on."""
        self._forget(self._state.message_key, key)

    def remove(self, limit: int) -> int:
        """Deletes values whose end stream time has passed; looks at ``limit`` entries at most, returns at how many."""
        state, now_ms = self._state, self._stream.time_ms
        if now_ms == NO_TIME:
            return 0
        before = index_before(EXPIRES, now_ms)
        found = state_keys_between(state, OWN_KEY, self._first, before, limit)
        for place, _ in found:
            place_ms, message_key, key = index_parts(EXPIRES, place)
            held = state.read_own(message_key, ENDS + key)
            state.write_own(OWN_KEY, place, None)
            if held is None or held[1] != place_ms:
                continue  # a command cleared the key meanwhile
            if held[0] > now_ms:  # it was set again
                self._enter(held[0], message_key, key)
                state.write_own(message_key, ENDS + key, [held[0], held[0]])
            else:
                state.write_own(message_key, ENDS + key, None)
                state.erase(message_key, key)
        self._first = found[-1][0] if len(found) == limit else max(self._first, before)
        return len(found)

    def look_again(self) -> None:
        """The store went back to its last commit, or was changed by a command."""
        self._first = index_key(EXPIRES)

    def _enter(self, place_ms: int, message_key: bytes, key: str) -> None:
        place = index_key(EXPIRES, place_ms, message_key, key)
        if place <= self._first:
            self._first = index_key(EXPIRES)
        self._state.write_own(OWN_KEY, place, 1)

    def _forget(self, message_key: bytes, key: str) -> None:
        state = self._state
        held = state.read_own(message_key, ENDS + key)
        if held is not None:
            state.write_own(message_key, ENDS + key, None)
            state.write_own(OWN_KEY, index_key(EXPIRES, held[1], message_key, key), None)

    def _now_ms(self) -> int:
        """The later one of stream time and the message's event time, unless the world has not reached that."""
        at_ms, stream = self._state.timestamp_ms, self._stream
        return max(stream.time_ms, at_ms) if at_ms <= stream.cap_ms else stream.time_ms
