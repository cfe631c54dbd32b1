"""The timers of one task: they fire between messages, in bounded steps, and like messages.

    message ──► stream time moves ──► stream timers that are due ──► next message
                                          └── more than a commit takes: the commit comes first

A timer passes through the steps like a message: its sets, sends and deletes happen together or not at all. A timer that
raises is handled by the failure policy, and is deleted unless the worker stops.

Invariants:
    - No message is processed while a stream timer is due. So results do not depend on when commits are.
    - A commit has a bounded number of timers that were set and that fired, however many a key has.
    - In the call of a stream timer, and in the steps behind it, values end by the timer's time. So a value leaves once
      all timers of a time before its end have fired.
    - Stream timers fire by time, those of all steps; those of a step by time, message key and name. So what a timer
      emits does not depend on which step has it, nor on where a commit comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.dataframe.generated_loop import RunFunction
from holdfast.processors.engine.formats.serialization import Deserializer
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.time.timers import Due, Pending, TimerClock, Timers

#: Timers that one commit fires at most.
FIRED_AT_ONCE = 5_000
#: Maximum timers set between two commits; one message or timer may exceed it.
SET_AT_ONCE = 10_000
#: Timers that are read from the index at once.
READ_AT_ONCE = 500

#: Decides about a timer that raised: called with the topic of its stream and the error.
OnTimerError = Callable[[str, Due, BaseException], None]


@dataclass(frozen=True, slots=True)
class TimerSteps:
    """The timers of a step, and that step with its later steps as a function of timers."""

    topic: str
    timers: Timers
    run: RunFunction
    deserialize_key: Deserializer


class Until:
    """An iterator that ends early once ``ended`` is true; ``length_hint`` returns the number of remaining items."""

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
    """The timers of all steps of a task."""

    def __init__(self, states: Mapping[str, StoreState], stream: StreamTime) -> None:
        self._states, self._stream = states, stream
        self._steps: list[TimerSteps] = []
        self._fired = 0
        #: The worker's clock as processing timers see it; it is frozen while the worker processes nothing.
        self._now_ms = NO_TIME

    def add(self, steps: TimerSteps) -> None:
        """Fires the timers of a step from now on."""
        self._steps.append(steps)

    def pending(self, limit: int) -> dict[str, Pending]:
        """By store, the timers that have not fired, counted up to ``limit`` for each clock."""
        return {steps.timers.store: steps.timers.pending(limit) for steps in self._steps}

    def look(self, now_ms: int) -> bool:
        """Reads the worker's clock for processing timers; True if one may be due."""
        self._now_ms = now_ms
        return any(steps.timers.is_due("processing", now_ms) for steps in self._steps)

    def are_due(self) -> bool:
        """Whether stream timers may be due: they fire before the next message."""
        # A list, because this runs before each message, and a generator costs twice as much.
        next_ms = min([steps.timers.on_stream.next_ms for steps in self._steps], default=EVENT_TIME_END_MS)
        if next_ms <= self._stream.time_ms:
            return True
        self._stream.settled_ms = self._stream.time_ms
        return False

    def stop_messages(self) -> bool:
        """Whether no message may be processed now: stream timers may be due, or a commit comes first."""
        return self.are_due() or self._is_full()

    def fire_between(self, on_error: OnTimerError) -> bool:
        """Fires the due stream timers; False if a commit comes first, because of its limit for timers.

        Raises what ``on_error`` raises.
        """
        self._fire_stream(on_error)
        return not self.stop_messages()

    def fire(self, on_error: OnTimerError) -> None:
        """Fires the due timers of both clocks, up to the limit of this commit; raises as ``fire_between``."""
        self._fire_stream(on_error)
        for steps in self._steps:
            while self._has_room() and steps.timers.is_due("processing", self._now_ms):
                self._fire(steps, "processing", self._now_ms, on_error)

    @property
    def reached_ms(self) -> int:
        """Values up to this time may be deleted: no due timer needs them."""
        next_ms = min([steps.timers.on_stream.next_ms for steps in self._steps], default=EVENT_TIME_END_MS)
        return min(max(next_ms, self._stream.settled_ms), self._stream.time_ms)

    @property
    def more(self) -> bool:
        """Whether timers are due that the next commit fires."""
        return self.are_due() or any(steps.timers.is_due("processing", self._now_ms) for steps in self._steps)

    @property
    def fired(self) -> bool:
        """Whether a timer has fired, was set, or turned out to be deleted, since the last commit."""
        return self._fired > 0 or any(steps.timers.set_since for steps in self._steps)

    def begin(self) -> None:
        """Resets the counts after a commit, or after uncommitted work was dropped."""
        self._fired = 0
        for steps in self._steps:
            steps.timers.set_since = 0

    def look_again(self) -> None:
        """Read due timers from the stores again: an abort or a command has changed the stores."""
        self.begin()
        for steps in self._steps:
            steps.timers.look_again()

    def _is_full(self) -> bool:
        return max([steps.timers.set_since for steps in self._steps], default=0) >= SET_AT_ONCE

    def _has_room(self) -> bool:
        """Whether this commit allows one more timer."""
        return self._fired < FIRED_AT_ONCE and not self._is_full()

    def _fire_stream(self, on_error: OnTimerError) -> None:
        """Fires due stream timers.

        Those of the step with the earliest timer, up to the earliest timer of other steps.
        """
        while self._has_room() and self._steps:
            first = min(self._steps, key=lambda steps: steps.timers.on_stream.next_ms)
            if first.timers.on_stream.next_ms > self._stream.time_ms:
                return
            self._fire(first, "stream", min(self._stream.time_ms, self._first_upto_ms(first)), on_error)

    def _first_upto_ms(self, of: TimerSteps) -> int:
        """Stream timers of a step up to this time fire before other steps' timers.

        At equal times, declaration order decides.
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
        """Fires due timers in order, and returns the rest to the index.

        It stops before a timer if a call has set an earlier timer in any step, or if a commit must come first.
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
        """Undo a timer that raised; delete it unless the failure policy stops the worker."""
        for state in self._states.values():
            state.undo_message()
        if isinstance(error, (StateFailed, FormatUnknown)):
            raise error  # the state is at fault, not the timer
        on_error(steps.topic, failed, error)
        steps.timers.give_up(failed)
        for state in self._states.values():
            state.keep_message()
