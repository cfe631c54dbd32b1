"""The time of one task: its stream time, and the windows and timers that are due before each commit.

    before_commit ──► outputs of closed windows ──► commit (places in the index, with the offsets) ──► committed
          ▲                                           └──────── failed ──► restore: as at the last commit
          └── more: the next commit is due at once

Invariants:
    - A commit closes and removes a bounded number of windows, so it stays within the commit interval.
    - A window whose result can't be processed goes by the failure policy. Windows before it are closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import length_hint

from holdfast.processors.engine.aggregates.window_aggregates import FailedResult
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.dataframe.generated_loop import RunFunction
from holdfast.processors.engine.formats.serialization import Deserializer
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.reading.grouped_stream_time import Upstream
from holdfast.processors.engine.runtime.reading.watermark_writer import WatermarkWriter
from holdfast.processors.engine.runtime.task.store_time import StoreTime
from holdfast.processors.engine.runtime.task.task_timers import OnTimerError, TaskTimers
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import NO_TIME, Remembered, StreamTime
from holdfast.processors.engine.state.time.window_keys import clock_key
from holdfast.processors.engine.windows.fewer_results import FewerResults
from holdfast.processors.engine.windows.keys_ahead import KeysAhead
from holdfast.processors.engine.windows.stored import Closes, Closing, MessagePlace, StoredWindows, Taker

#: Maximum windows of a store that one commit closes, and that it removes.
CLOSED_AT_ONCE = 5_000
REMOVED_AT_ONCE = 10_000

#: Decides about a window whose result raised in later steps: called with the window's topic and the error.
OnWindowError = Callable[[str, Closing, BaseException], None]


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """A window of a stream, and its later steps as a function of results."""

    topic: str
    windows: Closes
    run: RunFunction
    deserialize_key: Deserializer
    #: If results meet messages in a later step: whether one is due at a stream time. Such results come between the
    #: messages, so that they do not depend on when commits are; others come with the commit, which is cheaper.
    due_at: Callable[[int], bool] | None = None


@contextmanager
def as_far_as_timers(stream: StreamTime, timers: TaskTimers | None) -> Iterator[None]:
    """Limits windows and values to the time of the fired timers.

    The timers' outputs and reads belong to that time.
    """
    stream.call_ms = None if timers is None else timers.reached_ms
    try:
        yield
    finally:
        stream.call_ms = None


class TaskTime:
    """The stream time of a task with windows, timers, or values that end."""

    def __init__(self, states: Mapping[str, StoreState], times: RecordTimes) -> None:
        self._states, self._times = states, times
        self.stream = StreamTime()
        #: Where the current message is.
        self.place = MessagePlace()
        self.windows: dict[str, StoredWindows] = {}
        #: Stores of functions in which values end, or which have timers.
        self.stores: dict[str, StoreTime] = {}
        #: None for a task without timers.
        self.timers: TaskTimers | None = None
        #: By store, the steps that send fewer results than messages.
        self.held: dict[str, FewerResults] = {}
        #: For windows that close by key: closes them when the clock reaches a time that was ahead of it.
        self.ahead: list[KeysAhead] = []
        #: The watermarks of the tasks before; None for a task that reads no repartition topic.
        self.upstream: Upstream | None = None
        #: Write watermarks for downstream tasks; empty if no task waits for this one.
        self.watermark_writers: tuple[WatermarkWriter, ...] = ()
        #: Grows with each run of messages and each rewind; while it is constant, the task is silent.
        self.work = 0
        #: The time at the last commit, for a task without a store that keeps it.
        self._then = Remembered()
        self.closings = Closings(self, states)
        #: Whether windows are due that the next commit closes or removes.
        self.more = False
        #: Whether there is something to commit, even if no input moved.
        self.dirty = False
        self._reached_ms = NO_TIME

    @property
    def takers(self) -> Mapping[str, Taker]:
        """By store, the object that adds messages to its window."""
        return {**self.windows, **self.held}

    def load(self, *, anew: bool = True) -> None:
        """Reads the time from the stores, at the start and after a command changed them.

        If ``anew``, a time that no store keeps is discarded.
        """
        if anew:
            self._then = Remembered()
        self._go_to([each.load() for each in self._clocks] or [self._then])
        for writer in self.watermark_writers:
            writer.begin()

    def recall(self, then: Remembered) -> None:
        """Sets the time of the last commit, after ``load``, if no store keeps it."""
        if not self.is_kept:
            self._then = then
            self._go_to([then])

    def restore(self) -> None:
        """Goes back to the last commit."""
        self._go_to([each.restore() for each in self._clocks] or [self._then])
        for writer in self.watermark_writers:
            writer.restore()

    def _go_to(self, found: list[Remembered]) -> None:
        # Stores of one task are at the same input offsets, but a store that was cleared meanwhile has no time.
        then = max(found, key=lambda each: (each.time_ms, each.ahead), default=Remembered())
        self.stream.set(then.time_ms, then.ahead, then.told)
        if self.timers is not None:
            self.stream.settled_ms = then.time_ms if then.settled_ms is None else then.settled_ms
        self.work += 1
        if self.upstream is not None:
            self.upstream.begin()
        for held in self.held.values():
            held.restart()
        # Windows that were due when the previous worker ended are due now: the next commit checks for them, without a
        # message.
        self.more, self.dirty = True, False
        self._reached_ms = NO_TIME
        self.closings.begin()
        if self.timers is not None:
            self.timers.look_again()
        self.look()

    @property
    def clock_keys(self) -> dict[str, bytes]:
        """By store, the changelog key of the record that holds the stream time."""
        return {
            **dict.fromkeys(self.windows, clock_key()),
            **{name: each.clock_key for name, each in self.stores.items()},
        }

    @property
    def _clocks(self) -> list[StoredWindows | StoreTime]:
        return [*self.windows.values(), *self.stores.values()]

    @property
    def idle_ms(self) -> int | None:
        """After this time without messages, stream time advances with the clock; None for never."""
        asked = [windows.spec.idle_ms for windows in self.windows.values()]
        return min((idle_ms for idle_ms in asked if idle_ms is not None), default=None)

    def ahead_is_due(self, now_ms: int) -> bool:
        """Whether a time that was ahead of the worker's clock is now reached."""
        return self.stream.ahead_is_due(now_ms) or any(each.is_due(now_ms) for each in self.ahead)

    def due_at(self, time_ms: int) -> bool:
        """Whether a window would close at this time, which is no message's time; not beyond the worker's clock."""
        self.look()
        reached_ms = min(time_ms, self.stream.cap_ms)
        return self.stream.time_ms != NO_TIME and any(each.due_at(reached_ms) for each in self.windows.values())

    @property
    def is_kept(self) -> bool:
        """Whether a store keeps the stream time, with each commit."""
        return bool(self._clocks)

    def watermark_ms(self, writer: WatermarkWriter) -> int:
        """The time of a writer's watermarks: for sources, their progress, regardless of upstream watermarks."""
        if self.timers is not None and self.timers.are_due():
            return self.timers.reached_ms  # the timers' outputs are not late downstream of the topic
        if writer.hears and writer.own and self.upstream is not None:
            return max(self.stream.time_ms, min(self.upstream.time_ms(writer.inputs), self.stream.cap_ms))
        if writer.hears:
            return self.stream.time_ms
        in_order_ms = self.stream.come_ms if self.upstream is None else self.upstream.in_hand.order_ms
        return max(self.stream.time_ms, min(self.stream.come_ms, in_order_ms))

    @property
    def late(self) -> dict[str, int]:
        """By store, the windows that messages were too late for, or the messages that were dropped as too old."""
        late = {name: windows.late for name, windows in self.windows.items()}
        return late | {name: store.late for name, store in self.stores.items() if store.late is not None}

    @property
    def waits(self) -> bool:
        """Whether a newer time waits: for upstream watermarks, or to be written to downstream tasks."""
        if self.upstream is not None and self.upstream.waits:
            return True
        return any(writer.owes(self.watermark_ms(writer)) for writer in self.watermark_writers)

    def go_on(self, time_ms: int) -> None:
        """Moves the stream time without a message."""
        self.stream.go_on(time_ms)

    def stand_at(self, time_ms: int) -> None:
        """Sets the committed stream time to another run's time, until ``load`` or the next message.

        All open work is committed.
        """
        held = max((each.restore() for each in self._clocks), key=lambda each: each.time_ms)
        self.stream.set(max(held.time_ms, time_ms), told=held.told)
        self.more = True

    def look(self) -> None:
        """Reads the worker's clock, before messages are processed."""
        self.stream.look(self._times.now_ms())

    def before_commit(self, on_error: OnWindowError, on_timer_error: OnTimerError) -> None:
        """Fires due timers, closes due windows, and removes expired entries, up to the limits of one commit.

        Raises the errors of ``on_error``; the windows closed before are part of the next commit.
        """
        self.look()
        removes = self.more or self.stream.time_ms != self._reached_ms or self.ahead_is_due(self.stream.cap_ms)
        if self.timers is not None:  # before windows close, because a row that a timer sends counts at the timer's time
            self.timers.fire(on_timer_error)
        if removes:
            self.more = False
            with as_far_as_timers(self.stream, self.timers):
                self.more |= self.closings.close(on_error)
                self._remove()
            self._reached_ms = self.stream.time_ms
        if self.timers is not None:
            self.more |= self.timers.more
        self.keep()

    def _remove(self) -> None:
        for each in self._clocks:
            removed = each.remove(REMOVED_AT_ONCE)
            self.more |= removed == REMOVED_AT_ONCE
            self.dirty |= removed > 0

    def keep(self) -> None:
        """Writes the time and the places into the stores, for the next commit."""
        with as_far_as_timers(self.stream, self.timers):
            for each in self._clocks:
                self.dirty |= each.save()
        self.dirty |= self.timers is not None and self.timers.fired

    def committed(self) -> None:
        """The commit is done."""
        self.dirty = False
        self.closings.committed()
        if not self.is_kept:
            self._then = Remembered(self.stream.time_ms, self.stream.ahead, dict(self.stream.told))
        for each in self._clocks:
            each.committed()
        if self.timers is not None:
            self.timers.begin()
        for writer in self.watermark_writers:
            writer.committed()

    def hear(self) -> bool:
        """Applies the stream time that upstream tasks have reached; True if it moved."""
        before = self.stream.time_ms
        if self.upstream is None:
            return False
        self.stream.let_go_to(self.upstream.limit_ms())
        reached = self.upstream.time_ms()
        if reached > self.stream.time_ms:
            self.stream.advance(reached)
        return self.stream.time_ms > before


class Closings:
    """Closes the windows of a task: with each commit, and between messages those whose results meet messages.

    Between messages, as timers fire: a window closes behind the message that makes it due, and before the next one. So
    what a join or a shared store has of it does not depend on when commits are.
    """

    def __init__(self, time: TaskTime, states: Mapping[str, StoreState]) -> None:
        self._time, self._states = time, states
        #: The stores of windows whose results meet messages in a later step (``timed_steps.meeting_windows``).
        self.meeting: frozenset[str] = frozenset()
        self._steps: list[WindowSteps] = []
        #: Of the steps, those whose windows close between messages; and how many have, since the last commit.
        self._between: list[tuple[WindowSteps, Callable[[int], bool]]] = []
        self._since = 0
        #: The stream time up to which none of their windows is due.
        self._looked_ms = NO_TIME

    def add(self, steps: WindowSteps) -> None:
        """Closes the windows of a step from now on."""
        self._steps.append(steps)
        if steps.due_at is not None:
            self._between.append((steps, steps.due_at))

    def begin(self) -> None:
        """Called when uncommitted work is dropped, or a command has changed the stores."""
        self._since, self._looked_ms = 0, NO_TIME

    def committed(self) -> None:
        """The commit is done."""
        self._since = 0

    def close(self, on_error: OnWindowError) -> bool:
        """Closes the windows that are due, up to the limit of a commit; True if more may be due."""
        closed = [self._close(steps, on_error) for steps in self._steps]
        return CLOSED_AT_ONCE in closed

    @property
    def act_between(self) -> bool:
        """Whether timers fire, or windows close, between messages."""
        return self._time.timers is not None or bool(self.meeting)

    def stop_messages(self) -> bool:
        """Whether no message may be processed now: timers or windows may be due, or a commit comes first."""
        timers, time_ms = self._time.timers, self._time.stream.time_ms
        if timers is not None and timers.stop_messages():
            return True
        if self._since >= CLOSED_AT_ONCE:
            return True
        if not self._between or time_ms == self._looked_ms:
            return False
        if any(due_at(time_ms) for _, due_at in self._between):
            return True
        self._looked_ms = time_ms
        return False

    def act(self, on_error: OnWindowError, on_timer_error: OnTimerError) -> bool:
        """Fires due timers, and closes due windows whose results meet messages.

        False if a commit comes first, because of its limits. Raises what ``on_error`` and ``on_timer_error`` raise.
        """
        time = self._time
        if time.timers is not None and not time.timers.fire_between(on_timer_error):
            return False
        with as_far_as_timers(time.stream, time.timers):
            for steps, _ in self._between:
                self._since += self._close(steps, on_error)
        return not self.stop_messages()

    def _close(self, steps: WindowSteps, on_error: OnWindowError) -> int:
        found = steps.windows.closing(CLOSED_AT_ONCE)
        begin = 0
        for at, closing in enumerate(found):
            if isinstance(closing.result, FailedResult):
                self._send(steps, found[begin:at], on_error)
                on_error(steps.topic, closing, closing.result.error)
                begin = at + 1
        self._send(steps, found[begin:], on_error)
        if found:
            steps.windows.closed(found[-1])
            self._time.dirty = True
        return len(found)

    def _send(self, steps: WindowSteps, found: Sequence[Closing], on_error: OnWindowError) -> None:
        """Runs the later steps of closing windows.

        If an error stops the worker, earlier windows count as closed.
        """
        live = [closing for closing in found if closing.result is not None]
        values, raw_keys = iter([closing.result for closing in live]), iter([closing.message_key for closing in live])
        keys = iter([steps.deserialize_key(closing.message_key) for closing in live])
        starts, headers = iter([closing.start for closing in live]), iter([None] * len(live))
        while True:
            try:
                steps.run(values, raw_keys, starts, keys, headers)
            except BaseException as error:
                for state in self._states.values():
                    state.undo_message()
                failed = len(live) - length_hint(values) - 1
                if failed > 0:
                    steps.windows.closed(live[failed - 1])
                if isinstance(error, (StateFailed, FormatUnknown)):
                    raise  # the state is at fault, not the window
                on_error(steps.topic, live[failed], error)
            else:
                break
        if found:
            steps.windows.closed(found[-1])
