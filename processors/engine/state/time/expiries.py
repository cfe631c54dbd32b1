"""The expiry of values. Each value has a record with its expiry time (end), and an entry in an index by time.

    message key     state key                                                      value
    the message's   __holdfast/ends/<state key>                                    [end, time of the index entry]
    OWN_KEY         __holdfast/expires/<time>/<message key in hex>/<state key>     1

Times are event times in milliseconds, with 15 digits in keys. A value is readable until its end. The stream time of the
task, or the event time of the reading message, decides whether the end has passed. For joins after ``group_by``, only
stream time decides. During a timer's call, the timer's time decides. Records of expired values are not deleted at once.
The next commits delete them, a limited number in each commit.

If a value is set again, only its end record changes. The index entry keeps its old time, and is moved when this time is
due. A value that is set a thousand times therefore writes only one index entry.

Invariants:
    - A value with an end has one index entry, at its end or earlier. A value without an end has no entry.
    - A message that is older than the message that last set the value never makes the value expire earlier.
    - The deletion of an expired value changes no result, because reads already ignore the value.
"""

from __future__ import annotations

from holdfast.processors.engine.changelog.format import decode_value
from holdfast.processors.engine.state.own_keys import ENDS, EXPIRES, RESERVED
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.time.time_index import Entry, OwnRecords, TimeIndex
from holdfast.processors.engine.state.time.time_records import Look


class Expiries:
    """The expiry times of the values of one store in one task.

    Args:
        state: The store.
        ttl_ms: The default time to live of a value; None for no expiry.
        stream: The stream time of the task.
        by_stream: Whether only stream time expires values, and the event time of the current message is ignored. This
            is needed after ``group_by``. A repartition topic mixes several source partitions, so a message with an
            older event time can follow a newer message. The older message must still find its value.
    """

    def __init__(self, state: OwnRecords, ttl_ms: int | None, stream: StreamTime, *, by_stream: bool = False) -> None:
        self._state, self._ttl_ms, self._stream, self._by_stream = state, ttl_ms, stream, by_stream
        self._index = TimeIndex(state, EXPIRES)

    def are_over(self, key: str) -> bool:
        """Whether the current message's key has a value of this state key that has expired."""
        held = self._state.read_own(self._state.message_key, ENDS + key)
        return held is not None and held[0] <= self._now_ms()

    def put(self, key: str, ttl_ms: int | None) -> bool:
        """Sets the expiry time of the value that was just set.

        Returns False if this time has already passed. The caller must then delete the value.
        """
        ttl_ms = self._ttl_ms if ttl_ms is None else ttl_ms
        if ttl_ms is None:
            self.forget(key)
            return True
        state = self._state
        end_ms = min(max(state.timestamp_ms, 0) + ttl_ms, EVENT_TIME_END_MS - 1)
        held = state.read_own(state.message_key, ENDS + key)
        if (held is None and self._ttl_ms is None) or (held is not None and end_ms < held[0]):
            former_ms = state.overwritten_ms(key)
            # A message that is older than the stored value must not shorten the value's life.
            if former_ms is not None and state.timestamp_ms < former_ms:
                if held is None:
                    return True
                end_ms = held[0]
        if end_ms <= self._now_ms():
            return False
        place_ms = end_ms if held is None else held[1]
        if held is None or end_ms < place_ms:
            if held is not None:
                self._index.leave(Entry(place_ms, state.message_key, key))
            place_ms = end_ms
            self._index.enter(Entry(end_ms, state.message_key, key))
        if held != [end_ms, place_ms]:
            state.write_own(state.message_key, ENDS + key, [end_ms, place_ms])
        return True

    def forget(self, key: str) -> None:
        """Removes the expiry time of a value. Must be called if the value was deleted, or no longer expires."""
        state = self._state
        held = state.read_own(state.message_key, ENDS + key)
        if held is not None:
            state.write_own(state.message_key, ENDS + key, None)
            self._index.leave(Entry(held[1], state.message_key, key))

    def remove(self, limit: int) -> int:
        """Deletes values that have expired by stream time.

        Checks at most ``limit`` index entries, and returns how many entries were checked.
        """
        state, now_ms = self._state, self._stream.ends_ms
        if now_ms == NO_TIME:
            return 0
        found = self._index.due(now_ms, limit)
        for entry in found:
            held = state.read_own(entry.message_key, ENDS + entry.name)
            self._index.leave(entry)
            if held is None or held[1] != entry.time_ms:
                continue  # a command has cleared the key since the index entry was added
            if held[0] > now_ms:  # The value was set again after the index entry was written, and expires later.
                self._index.enter(entry._replace(time_ms=held[0]))
                state.write_own(entry.message_key, ENDS + entry.name, [held[0], held[0]])
            else:
                state.write_own(entry.message_key, ENDS + entry.name, None)
                state.erase(entry.message_key, entry.name)
        return len(found)

    @staticmethod
    def has_ended(message_key: bytes, name: str, look: Look, now_ms: int) -> bool:
        """Whether a committed record has expired at ``now_ms``.

        The record is a value, or the expiry time of a value.
        """
        if name.startswith(RESERVED) and not name.startswith(ENDS):
            return False
        held = look(message_key, ENDS + name.removeprefix(ENDS))
        return held is not None and bool(decode_value(held)[0] <= now_ms)

    def look_again(self) -> None:
        """Drops the index entries in memory.

        Must be called after an aborted transaction, and after a command such as ``clear`` has changed the store.
        """
        self._index.look_again()

    def _now_ms(self) -> int:
        """Returns the time that decides for the current message what has expired, in milliseconds.

        It is the larger of stream time and the message's event time. If ``by_stream`` is True, or the event time is
        after the worker's clock, it is the stream time. During a timer's call, it is the timer's time.
        """
        at_ms, stream = self._state.timestamp_ms, self._stream
        if stream.call_ms is not None:
            return stream.call_ms
        return stream.time_ms if self._by_stream or at_ms > stream.cap_ms else max(stream.time_ms, at_ms)
