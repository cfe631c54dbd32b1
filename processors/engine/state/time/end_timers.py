"""Timers that fire when a value with a time in its state key expires. Outer joins use them to send unmatched messages.

    message key     state key                                                           value
    the message's   <state key>                                                         the value that the step stores
    OWN_KEY         __holdfast/timers-by-stream/<end>/<message key in hex>/<state key>  1

A state key is ``<side><time>`` or ``<side><time>/<number>``: the join's input (left or right), and the value's time.
The state key is also the timer's name, so no separate timer record is stored for the message key.

Invariants:
    - Each value has one index entry, at its expiry time. A due entry without a value is deleted, and no function is
      called.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS
from holdfast.processors.engine.state.time.time_index import Entry
from holdfast.processors.engine.state.time.timers import Due, Timer, TimerClock, Timers


class EndTimers(Timers):
    """The timers of one store in one task that fire when a value expires.

    Args:
        state: The store.
        is_settled: A function that returns True if the stored value needs no call at its expiry, for example because
            its message was matched. The value is then only deleted.
    """

    def __init__(self, state: DeclaredState, is_settled: Callable[[bytes], bool]) -> None:
        super().__init__(state)
        self._values, self._is_settled = state, is_settled

    def set(self, timer: Timer) -> None:
        """Sets the timer for the expiry of a new value of the current message's key."""
        self.set_since += 1
        entry = Entry(min(timer.time, EVENT_TIME_END_MS - 1), self._values.message_key, timer.name)
        self.on_stream.enter(entry)
        added = self._added["stream"]
        self._added["stream"] = entry if added is None else min(added, entry)

    def due(self, clock: TimerClock, now_ms: int, limit: int) -> list[Due]:
        """Returns at most ``limit`` due timers whose function must be called.

        If the value of a due timer needs no call, this method deletes the value itself. It then adds 1 to ``set_since``
        (the number of changes since the last commit), so that the task commits the deletion.
        """
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
        """Deletes the index entry of a due timer. Returns True always, so that the caller calls the timer's function.

        The value stays for now, because the timer's function deletes it.
        """
        self._indexes[due.timer.clock].leave(due.entry)
        return True

    def give_up(self, due: Due) -> None:
        """Deletes a timer whose function call failed, together with its value."""
        self.take(due)
        self._values.write_place(_place_of(due), None)


def _place_of(due: Due) -> bytes:
    """Returns the changelog key of the value that belongs to the timer."""
    return key_prefix(due.message_key) + due.timer.name.encode()
