"""The stream time of one task. Before each commit, due windows close and due timers fire.

    before_commit ──► outputs of closed windows ──► commit (stream time and offsets together) ──► committed
          ▲                                           └──────── aborted ──► restore: back to the last commit
          └── more: further windows are due, so the next commit follows at once

Invariants:
    - A commit closes and removes a limited number of windows, so that it does not take longer than the commit interval.
    - If a later step fails for a window's result, the failure policy decides. Windows that closed before stay closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import length_hint

from holdfast.processors.engine.aggregates.window_aggregates import FailedResult
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.dataframe.plain_loop import RunFunction
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

#: Limits for one commit and one store: maximum number of windows to close, and of expired entries to remove.
CLOSED_AT_ONCE = 5_000
REMOVED_AT_ONCE = 10_000

#: The failure policy for windows: stop the worker, write a dead letter, or skip the result. Its arguments are the input
#: topic, the window, and the error that a later step raised.
OnWindowError = Callable[[str, Closing, BaseException], None]


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """A window step of a stream, with the compiled function that passes the window's results to the later steps."""

    topic: str
    windows: Closes
    run: RunFunction
    deserialize_key: Deserializer
    #: A function that returns whether a window is due at a stream time. It is set only if a later step, such as a join,
    #: also gets messages. The windows then close between messages, so that the join's results do not depend on the
    #: moment of a commit. If it is None, the windows close at the commit, which is cheaper.
    due_at: Callable[[int], bool] | None = None


@contextmanager
def as_far_as_timers(stream: StreamTime, timers: TaskTimers | None) -> Iterator[None]:
    """A context in which windows close and values expire only up to the time for which all timers have fired.

    Otherwise, a timer that has not fired yet could no longer read a value of its own time.
    """
    stream.call_ms = None if timers is None else timers.reached_ms
    try:
        yield
    finally:
        stream.call_ms = None


class TaskTime:
    """The stream time of a task that has windows, timers, or values that expire."""

    def __init__(self, states: Mapping[str, StoreState], times: RecordTimes) -> None:
        self._states, self._times = states, times
        self.stream = StreamTime()
        #: Topic, partition and offset of the current message, for log lines and errors.
        self.place = MessagePlace()
        self.windows: dict[str, StoredWindows] = {}
        #: The stores of user functions whose values expire or that have timers, by name.
        self.stores: dict[str, StoreTime] = {}
        #: The timers of the task; None for a task without timers.
        self.timers: TaskTimers | None = None
        #: For steps with ``suppress``: maps the window's store to the object that limits how often results are sent.
        self.held: dict[str, FewerResults] = {}
        #: For windows that close by the event times of their key alone. If an event time was in the future, the object
        #: closes the window when the worker's clock reaches this time.
        self.ahead: list[KeysAhead] = []
        #: The watermarks of the upstream tasks; None for a task that reads no repartition topic.
        self.upstream: Upstream | None = None
        #: Objects that write watermarks for downstream tasks; empty if no task needs this task's watermarks.
        self.watermark_writers: tuple[WatermarkWriter, ...] = ()
        #: A number that grows when messages are processed or positions are set back. While it is constant, the task is
        #: idle.
        self.work = 0
        #: The stream time at the last commit; used only if no store contains the stream time.
        self._then = Remembered()
        self.closings = Closings(self, states)
        #: Whether more windows are due than the last commit could close.
        self.more = False
        #: Whether a commit is needed even if no input position has moved.
        self.dirty = False
        self._reached_ms = NO_TIME

    @property
    def takers(self) -> Mapping[str, Taker]:
        """Maps each store to the object to which its window step passes messages."""
        return {**self.windows, **self.held}

    def load(self, *, anew: bool = True) -> None:
        """Reads the stream time from the stores.

        Must be called when the task starts, and after a command has changed the stores. If ``anew`` is True, a stream
        time that no store contains is reset.
        """
        if anew:
            self._then = Remembered()
        self._go_to([each.load() for each in self._clocks] or [self._then])
        for writer in self.watermark_writers:
            writer.begin()

    def recall(self, then: Remembered) -> None:
        """Sets the stream time to ``then``, unless a store contains stream time. Must be called after ``load``."""
        if not self.is_kept:
            self._then = then
            self._go_to([then])

    def restore(self) -> None:
        """Sets the stream time back to the last commit. Must be called after an aborted transaction."""
        self._go_to([each.restore() for each in self._clocks] or [self._then])
        for writer in self.watermark_writers:
            writer.restore()

    def _go_to(self, found: list[Remembered]) -> None:
        # All stores of a task are at the same input offsets, but a store that a command has cleared has no stream time.
        # So the latest stored time counts.
        then = max(found, key=lambda each: (each.time_ms, each.ahead), default=Remembered())
        self.stream.set(then.time_ms, then.ahead, then.told)
        if self.timers is not None:
            self.stream.settled_ms = then.time_ms if then.settled_ms is None else then.settled_ms
        self.work += 1
        if self.upstream is not None:
            self.upstream.begin()
        for held in self.held.values():
            held.restart()
        # When the previous worker ended, some windows may have been due. The next commit therefore checks for due
        # windows, even if no message arrives.
        self.more, self.dirty = True, False
        self._reached_ms = NO_TIME
        self.closings.begin()
        if self.timers is not None:
            self.timers.look_again()
        self.look()

    @property
    def clock_keys(self) -> dict[str, bytes]:
        """Maps each store to the changelog key of the record that contains its stream time."""
        return {
            **dict.fromkeys(self.windows, clock_key()),
            **{name: each.clock_key for name, each in self.stores.items()},
        }

    @property
    def _clocks(self) -> list[StoredWindows | StoreTime]:
        return [*self.windows.values(), *self.stores.values()]

    @property
    def idle_ms(self) -> int | None:
        """Milliseconds without messages after which stream time advances with the worker's clock; None means never."""
        asked = [windows.spec.idle_ms for windows in self.windows.values()]
        return min((idle_ms for idle_ms in asked if idle_ms is not None), default=None)

    def ahead_is_due(self, now_ms: int) -> bool:
        """Whether the worker's clock has reached a future event time of an earlier message."""
        return self.stream.ahead_is_due(now_ms) or any(each.is_due(now_ms) for each in self.ahead)

    def due_at(self, time_ms: int) -> bool:
        """Whether a window would close if stream time advanced to ``time_ms``, at most to the worker's clock."""
        self.look()
        reached_ms = min(time_ms, self.stream.cap_ms)
        return self.stream.time_ms != NO_TIME and any(each.due_at(reached_ms) for each in self.windows.values())

    @property
    def is_kept(self) -> bool:
        """Whether a store contains the stream time. Otherwise, the metadata of the committed offsets contains it."""
        return bool(self._clocks)

    def watermark_ms(self, writer: WatermarkWriter) -> int:
        """Returns the stream time that ``writer`` must put into its next watermark.

        If no input of the writer is a repartition topic, the result is not limited by watermarks of upstream tasks.
        """
        if self.timers is not None and self.timers.are_due():
            return self.timers.reached_ms  # a later watermark would make the outputs of the due timers late downstream
        if writer.hears and writer.own and self.upstream is not None:
            return max(self.stream.time_ms, min(self.upstream.time_ms(writer.inputs), self.stream.cap_ms))
        if writer.hears:
            return self.stream.time_ms
        in_order_ms = self.stream.come_ms if self.upstream is None else self.upstream.in_hand.order_ms
        return max(self.stream.time_ms, min(self.stream.come_ms, in_order_ms))

    @property
    def late(self) -> dict[str, int]:
        """Maps each store to its number of late messages.

        A window store counts a message once for each window for which the message was too late.
        """
        late = {name: windows.late for name, windows in self.windows.items()}
        return late | {name: store.late for name, store in self.stores.items() if store.late is not None}

    @property
    def waits(self) -> bool:
        """Whether stream time waits for watermarks of upstream tasks, or this task must write a later watermark."""
        if self.upstream is not None and self.upstream.waits:
            return True
        return any(writer.owes(self.watermark_ms(writer)) for writer in self.watermark_writers)

    def go_on(self, time_ms: int) -> None:
        """Moves the stream time to ``time_ms`` without a message."""
        self.stream.go_on(time_ms)

    def stand_at(self, time_ms: int) -> None:
        """Advances the committed stream time to ``time_ms``, which another worker has reached. Never sets it back.

        The change is only in memory, until ``load`` or the next commit. The task must have no uncommitted work.
        """
        held = max((each.restore() for each in self._clocks), key=lambda each: each.time_ms)
        self.stream.set(max(held.time_ms, time_ms), told=held.told)
        self.more = True

    def look(self) -> None:
        """Reads the worker's clock, which limits stream time. Must be called before messages are processed."""
        self.stream.look(self._times.now_ms())

    def before_commit(self, on_error: OnWindowError, on_timer_error: OnTimerError) -> None:
        """Fires due timers, closes due windows, and removes expired entries, up to the limits of one commit.

        Raises the errors of ``on_error``. Windows that were closed before the error stay closed.
        """
        self.look()
        removes = self.more or self.stream.time_ms != self._reached_ms or self.ahead_is_due(self.stream.cap_ms)
        # timers fire before windows close, because a row that a timer emits may belong to a due window
        if self.timers is not None:
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
        """Writes the stream time and the progress of closing windows into the stores, before the commit."""
        with as_far_as_timers(self.stream, self.timers):
            for each in self._clocks:
                self.dirty |= each.save()
        self.dirty |= self.timers is not None and self.timers.fired

    def committed(self) -> None:
        """Marks the stream time and the progress of windows and timers as committed.

        Must be called after each commit.
        """
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
        """Advances the stream time to the time that all upstream tasks have reached.

        Returns True if the stream time has changed.
        """
        before = self.stream.time_ms
        if self.upstream is None:
            return False
        self.stream.let_go_to(self.upstream.limit_ms())
        reached = self.upstream.time_ms()
        if reached > self.stream.time_ms:
            self.stream.advance(reached)
        return self.stream.time_ms > before


class Closings:
    """Closes the due windows of a task: most windows at a commit, and some windows between two messages.

    If a later step, for example a join, also gets messages, a window closes directly after the message that makes it
    due. The result of the join then does not depend on the moment of the commit.
    """

    def __init__(self, time: TaskTime, states: Mapping[str, StoreState]) -> None:
        self._time, self._states = time, states
        #: The stores of the windows that close between messages. ``timed_steps.meeting_windows`` finds them.
        self.meeting: frozenset[str] = frozenset()
        self._steps: list[WindowSteps] = []
        #: The steps whose windows close between messages. ``_since`` is the number of windows that these steps have
        #: closed since the last commit.
        self._between: list[tuple[WindowSteps, Callable[[int], bool]]] = []
        self._since = 0
        #: The last stream time at which a check found no due window in ``_between``.
        self._looked_ms = NO_TIME

    def add(self, steps: WindowSteps) -> None:
        """Adds a window step whose windows this object must close."""
        self._steps.append(steps)
        if steps.due_at is not None:
            self._between.append((steps, steps.due_at))

    def begin(self) -> None:
        """Resets the counts.

        Must be called after an aborted transaction, and after a command has changed the stores.
        """
        self._since, self._looked_ms = 0, NO_TIME

    def committed(self) -> None:
        """Resets the count of windows that closed since the last commit. Must be called after each commit."""
        self._since = 0

    def close(self, on_error: OnWindowError) -> bool:
        """Closes the due windows, up to the limit of a commit.

        Returns True if the limit was reached, so that more windows may be due.
        """
        closed = [self._close(steps, on_error) for steps in self._steps]
        return CLOSED_AT_ONCE in closed

    @property
    def act_between(self) -> bool:
        """Whether timers may fire or windows may close between two messages."""
        return self._time.timers is not None or bool(self.meeting)

    def stop_messages(self) -> bool:
        """Whether the next message must wait, because timers or windows may be due, or a commit must come first."""
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
        """Fires due timers, and closes the due windows that must close between messages. Called between two messages.

        Returns False if the limits of one commit are reached, so that a commit must come before the next message.
        Raises the errors of ``on_error`` and ``on_timer_error``.
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
        """Passes the results of closing windows to the later steps.

        If an error stops the worker, only the windows before the failed window are closed.
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
                    raise  # an unreadable state is not an error of the window, so the failure policy does not decide
                on_error(steps.topic, live[failed], error)
            else:
                break
        if found:
            steps.windows.closed(found[-1])
