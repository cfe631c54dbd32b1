"""The timers of one task, which fire between two messages.

    message ──► stream time advances ──► due stream timers fire ──► next message
                                          └── more timers than a commit allows: a commit comes first

A timer is processed like a message: its state changes and outputs happen together or not at all. If a timer raises an
error, the failure policy decides. The timer is then deleted, unless the worker stops.

Invariants:
    - No message is processed while a stream timer is due, so that results do not depend on the moment of a commit.
    - The number of timers that are set or that fire in one commit is limited, even if one key has many timers.
    - While a stream timer fires, the timer's time decides which values have expired. A value is therefore deleted only
      after all timers before its expiry have fired.
    - Stream timers of all steps fire in the order of their times. At equal times, the order of steps decides, then
      message key and name. The order therefore does not depend on the moment of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.dataframe.plain_loop import RunFunction
from holdfast.processors.engine.formats.serialization import Deserializer
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.time.timers import Due, Pending, TimerClock, Timers

#: Maximum number of timers that fire before one commit.
FIRED_AT_ONCE = 5_000
#: Number of timers that a step may set between two commits; then a commit must come before the next message or timer.
#: The number is checked between calls, so a single call that sets many timers may exceed it.
SET_AT_ONCE = 10_000
#: Maximum number of timers that are read from the store in one call.
READ_AT_ONCE = 500

#: The failure policy for timers: stop the worker, write a dead letter, or skip the timer. Its arguments are the input
#: topic, the timer, and the error that it raised.
OnTimerError = Callable[[str, Due, BaseException], None]


@dataclass(frozen=True, slots=True)
class TimerSteps:
    """The timers of one step, with the compiled function that runs the step's ``on_timer`` and the later steps."""

    topic: str
    timers: Timers
    run: RunFunction
    deserialize_key: Deserializer


class Until:
    """An iterator over messages or timers that stops early if ``ended()`` returns True, for example before a commit.

    ``length_hint`` of this iterator is the number of items that are left.
    """

    def __init__(self, items: Iterable[Any], ended: Callable[[], bool]) -> None:
        self._items, self._ended = iter(items), ended

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ended():
            raise StopIteration
        return next(self._items)

    def __length_hint__(self) -> int:
        return length_hint(self._items)


class TaskTimers:
    """Fires the timers of all steps of a task."""

    def __init__(self, states: Mapping[str, StoreState], stream: StreamTime) -> None:
        self._states, self._stream = states, stream
        self._steps: list[TimerSteps] = []
        self._fired = 0
        #: The current time for processing timers: the worker's clock at the last ``look``. It stays the same while the
        #: worker is paused.
        self._now_ms = NO_TIME

    def add(self, steps: TimerSteps) -> None:
        """Adds a step whose timers this object must fire."""
        self._steps.append(steps)

    def pending(self, limit: int) -> dict[str, Pending]:
        """Counts for each store the timers that have not fired yet. For each clock, the count stops at ``limit``."""
        return {steps.timers.store: steps.timers.pending(limit) for steps in self._steps}

    def look(self, now_ms: int) -> bool:
        """Sets the current time for processing timers. Returns True if such a timer may be due."""
        self._now_ms = now_ms
        return any(steps.timers.is_due("processing", now_ms) for steps in self._steps)

    def are_due(self) -> bool:
        """Whether stream timers may be due. They must fire before the next message."""
        # a list, because this runs before each message, and a generator takes twice as long
        next_ms = min([steps.timers.on_stream.next_ms for steps in self._steps], default=EVENT_TIME_END_MS)
        if next_ms <= self._stream.time_ms:
            return True
        self._stream.settled_ms = self._stream.time_ms
        return False

    def stop_messages(self) -> bool:
        """Whether the next message must wait, because stream timers may be due, or a commit must come first."""
        return self.are_due() or self._is_full()

    def fire_between(self, on_error: OnTimerError) -> bool:
        """Fires the due stream timers.

        Returns False if the limits of a commit are reached, so that a commit must come first.

        Raises the errors of ``on_error``.
        """
        self._fire_stream(on_error)
        return not self.stop_messages()

    def fire(self, on_error: OnTimerError) -> None:
        """Fires the due stream timers and processing timers, up to the limits of one commit.

        Raises the errors of ``on_error``.
        """
        self._fire_stream(on_error)
        for steps in self._steps:
            while self._has_room() and steps.timers.is_due("processing", self._now_ms):
                self._fire(steps, "processing", self._now_ms, on_error)

    @property
    def reached_ms(self) -> int:
        """The time up to which all stream timers have fired, so that values may expire and windows may close."""
        next_ms = min([steps.timers.on_stream.next_ms for steps in self._steps], default=EVENT_TIME_END_MS)
        return min(max(next_ms, self._stream.settled_ms), self._stream.time_ms)

    @property
    def more(self) -> bool:
        """Whether more timers are due than the last commit allowed to fire."""
        return self.are_due() or any(steps.timers.is_due("processing", self._now_ms) for steps in self._steps)

    @property
    def fired(self) -> bool:
        """Whether a timer has fired, was set, or was found deleted since the last commit."""
        return self._fired > 0 or any(steps.timers.set_since for steps in self._steps)

    def begin(self) -> None:
        """Resets the counts of fired and set timers. Must be called after a commit or an aborted transaction."""
        self._fired = 0
        for steps in self._steps:
            steps.timers.set_since = 0

    def look_again(self) -> None:
        """Makes the next check read the due timers from the stores again.

        Must be called after an aborted transaction, and after a command such as ``clear`` has changed the stores.
        """
        self.begin()
        for steps in self._steps:
            steps.timers.look_again()

    def _is_full(self) -> bool:
        return max([steps.timers.set_since for steps in self._steps], default=0) >= SET_AT_ONCE

    def _has_room(self) -> bool:
        """Whether one more timer may fire before the next commit."""
        return self._fired < FIRED_AT_ONCE and not self._is_full()

    def _fire_stream(self, on_error: OnTimerError) -> None:
        """Fires due stream timers in the order of their times, over all steps.

        Each round takes the step with the earliest timer, and fires this step's timers that are not later than those of
        other steps.
        """
        while self._has_room() and self._steps:
            first = min(self._steps, key=lambda steps: steps.timers.on_stream.next_ms)
            if first.timers.on_stream.next_ms > self._stream.time_ms:
                return
            self._fire(first, "stream", min(self._stream.time_ms, self._first_upto_ms(first)), on_error)

    def _first_upto_ms(self, of: TimerSteps) -> int:
        """Returns the time up to which this step's timers may fire before other steps' timers must fire.

        At equal times, the step that was declared first fires first.
        """
        upto_ms, others_first = EVENT_TIME_END_MS, 1
        for steps in self._steps:
            if steps is of:
                others_first = 0
            else:
                upto_ms = min(upto_ms, steps.timers.on_stream.next_ms - others_first)
        return upto_ms

    def _fire(self, steps: TimerSteps, clock: TimerClock, upto_ms: int, on_error: OnTimerError) -> None:
        found = steps.timers.due(clock, upto_ms, min(READ_AT_ONCE, FIRED_AT_ONCE - self._fired))
        if found:
            self._run(steps, found, on_error)

    def _run(self, steps: TimerSteps, found: list[Due], on_error: OnTimerError) -> None:
        """Fires due timers in order. Timers that did not fire are put back into the index.

        Stops early if a fired timer has set an earlier timer in any step, or if a commit must come first.
        """
        timers, waiting = steps.timers, iter(found)

        def ended() -> bool:
            left = length_hint(waiting)
            if not left:
                return False
            due = found[len(found) - left]
            if self._is_full() or not timers.comes_first(due):
                return True
            return due.timer.clock == "stream" and due.timer.time > self._first_upto_ms(steps)

        values = Until(waiting, ended)
        keys = [due.message_key for due in found]
        raw_keys, deserialized = iter(keys), iter([steps.deserialize_key(key) for key in keys])
        times, headers = iter([due.timer.time for due in found]), iter([None] * len(found))
        try:
            while True:
                try:
                    steps.run(values, raw_keys, times, deserialized, headers)
                except BaseException as error:
                    self._decide(steps, found[len(found) - length_hint(waiting) - 1], error, on_error)
                else:
                    break
        finally:
            self._stream.begin_call(None)
            fired = len(found) - length_hint(waiting)
            self._fired += fired
            for due in found[fired:]:
                timers.put_back(due)

    def _decide(self, steps: TimerSteps, failed: Due, error: BaseException, on_error: OnTimerError) -> None:
        """Undoes the changes of a timer that raised an error.

        Deletes the timer, unless the failure policy stops the worker.
        """
        for state in self._states.values():
            state.undo_message()
        if isinstance(error, (StateFailed, FormatUnknown)):
            raise error  # an unreadable state is not an error of the timer, so the failure policy does not decide
        on_error(steps.topic, failed, error)
        steps.timers.give_up(failed)
        for state in self._states.values():
            state.keep_message()
