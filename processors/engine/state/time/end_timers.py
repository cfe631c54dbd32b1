"""Stream timers at the ends of values with a time in their state keys, as outer joins use them.

    message key     state key                                                           value
    the message's   <state key>                                                         what the step stores
    OWN_KEY         __holdfast/timers-by-stream/<end>/<message key in hex>/<state key>  1

A state key is ``<side><time>`` or ``<side><time>/<number>``, as in ``dated_values``. It is also the timer's name, so
the message key needs no timer record.

Invariants:
    - Each value has one entry in the index, at its end. An entry without its value fires nothing, and leaves when due.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS
from holdfast.processors.engine.state.time.time_index import Entry
from holdfast.processors.engine.state.time.timers import Due, Timer, TimerClock, Timers


class EndTimers(Timers):
    """The ends of the values of one store in one task.

    Args:
        state: The store.
        is_settled: Whether the end of a stored value needs no call, so that the value is deleted without one.
    """

    def __init__(self, state: DeclaredState, is_settled: Callable[[bytes], bool]) -> None:
        super().__init__(state)
        self._values, self._is_settled = state, is_settled

    def set(self, timer: Timer) -> None:
        """Sets the timer of a value of the current message's key that has none."""
        self.set_since += 1
        entry = Entry(min(timer.time, EVENT_TIME_END_MS - 1), self._values.message_key, timer.name)
        self.on_stream.enter(entry)
        added = self._added["stream"]
        self._added["stream"] = entry if added is None else min(added, entry)

    def due(self, clock: TimerClock, now_ms: int, limit: int) -> list[Due]:
        """As in ``Timers``; a value that needs no call is deleted, and counts as a timer that was set."""
        found = []
        for due in super().due(clock, now_ms, limit):
            place = _place_of(due)
            raw = self._values.read_place(place)
            if raw is not None and not self._is_settled(raw):
                found.append(due)
                continue
            self.set_since += 1
            self._indexes[clock].leave(due.entry)
            if raw is not None:
                self._values.write_place(place, None)
        self._values.keep_message()
        return found

    def take(self, due: Due) -> bool:
        """Deletes the entry of a timer that is due; the call deletes the value."""
        self._indexes[due.timer.clock].leave(due.entry)
        return True

    def give_up(self, due: Due) -> None:
        """Deletes a timer that failed, with its value."""
        self.take(due)
        self._values.write_place(_place_of(due), None)


def _place_of(due: Due) -> bytes:
    """The changelog key of the value."""
    return key_prefix(due.message_key) + due.timer.name.encode()
