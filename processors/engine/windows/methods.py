"""The windows of a stream: the methods of ``StreamingDataFrame`` that declare one."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, TypeAlias, Unpack

from holdfast.processors.engine.windows.columns import Window
from holdfast.processors.engine.windows.counts import CountKind, CountSpec, checked_count
from holdfast.processors.engine.windows.results import (
    AggregatedCountWindow,
    AggregatedWindow,
    Asked,
    Stream,
    Triggers,
    WindowTimes,
    session_times,
    window_times,
)
from holdfast.processors.engine.windows.spec import OnLate, WindowSpec

#: What a method here returns: a window without columns.
TimeWindow: TypeAlias = Window[AggregatedWindow[Stream]]
CountWindow: TypeAlias = Window[AggregatedCountWindow[Stream]]


class StreamWindows(Generic[Stream]):
    """The methods of a stream that declare a window."""

    def tumbling_window(
        self,
        duration_ms: int | timedelta,
        grace_ms: int | timedelta = 0,
        name: str | None = None,
        on_late: OnLate | None = None,
        *,
        retention: int | timedelta | None = None,
        **triggers: Unpack[Triggers],
    ) -> TimeWindow[Stream]:
        """Consecutive windows of one length; a method of the result adds the computation: ``.count().final()``.

        Args:
            duration_ms: The length, in milliseconds or as a timedelta.
            grace_ms: How long after its end a window still takes messages.
            name: The store; None takes ``<topic>-tumbling``.
            on_late: ``drop`` (the default), ``dead-letter``, or a function that is called for each window that a
                message is too late for, with (value, key, timestamp, late_by_ms, start, end, name, topic, partition,
                offset); it returns True to log the message.
            retention: How long a window stays readable after its end and grace; None means a day.
            triggers: ``before_update`` and ``after_update``: functions of (aggregated, value, key, timestamp, headers).
                If one returns a true value, the window is sent at once, without or with the message, and starts again.

        Raises:
            DurationInvalid: A duration is out of range.
            WindowInvalid: The arguments contradict each other.
        """
        times = window_times("tumbling", duration_ms, duration_ms, grace_ms, retention)
        return self._timed(times, Asked(on_late, **triggers), name)

    def hopping_window(
        self,
        duration_ms: int | timedelta,
        step_ms: int | timedelta,
        grace_ms: int | timedelta = 0,
        name: str | None = None,
        on_late: OnLate | None = None,
        *,
        retention: int | timedelta | None = None,
        **triggers: Unpack[Triggers],
    ) -> TimeWindow[Stream]:
        """Overlapping windows of one length: one begins every ``step_ms``.

        Other arguments are as in ``tumbling_window``.
        """
        times = window_times("hopping", duration_ms, step_ms, grace_ms, retention)
        return self._timed(times, Asked(on_late, **triggers), name)

    def sliding_window(
        self,
        duration_ms: int | timedelta,
        grace_ms: int | timedelta = 0,
        name: str | None = None,
        on_late: OnLate | None = None,
    ) -> TimeWindow[Stream]:
        """Windows of one length that end at each message of a key. The arguments are those of ``tumbling_window``.

        The window contains the message, and messages that are at most ``duration_ms`` older.
        """
        times = window_times("sliding", duration_ms, duration_ms, grace_ms, None)
        return self._timed(times, Asked(on_late), name)

    def session_window(
        self,
        inactivity_gap_ms: int | timedelta,
        grace_ms: int | timedelta = 0,
        name: str | None = None,
        on_late: OnLate | None = None,
        *,
        retention: int | timedelta | None = None,
    ) -> TimeWindow[Stream]:
        """Windows of activity: messages of a key with no gap longer than ``inactivity_gap_ms`` form one session.

        Args:
            inactivity_gap_ms: The gap. A session is due this long after its last message.
            grace_ms: How long a session that is due still takes messages.
            name: The store; None takes ``<topic>-session``.
            on_late: As in ``tumbling_window``; start and end are those of a session with only this message.
            retention: How long a session stays readable after it is closed; None means a day.

        Raises:
            DurationInvalid: A duration is out of range.
            WindowInvalid: The arguments contradict each other.
        """
        return self._timed(session_times(inactivity_gap_ms, grace_ms, retention), Asked(on_late), name)

    def tumbling_count_window(self, count: int, name: str | None = None) -> CountWindow[Stream]:
        """Windows of ``count`` messages of a key, one after the other.

        Args:
            count: The number of messages.
            name: The store; None takes ``<topic>-tumbling-count``.

        Raises:
            WindowInvalid: ``count`` is out of range.
        """
        return self._counted("tumbling", count, count, name)

    def hopping_count_window(self, count: int, step: int, name: str | None = None) -> CountWindow[Stream]:
        """Windows of ``count`` messages of a key.

        One begins every ``step`` messages; ``step`` may not exceed ``count``.
        """
        return self._counted("hopping", count, step, name)

    def sliding_count_window(self, count: int, name: str | None = None) -> CountWindow[Stream]:
        """Windows of ``count`` messages of a key; one begins at each message."""
        return self._counted("sliding", count, 1, name)

    def _timed(self, times: WindowTimes, asked: Asked, name: str | None) -> TimeWindow[Stream]:
        asked.check()
        if self._regrouped and times.kind != "sliding":
            asked = asked._replace(closing="partition")

        def place(spec: WindowSpec) -> Stream:
            return self._windowed(spec, spec.kind, name)

        return Window(lambda columns: AggregatedWindow(times, columns, asked, place))

    def _counted(self, kind: CountKind, count: int, step: int, name: str | None) -> CountWindow[Stream]:
        sizes = checked_count(count, step)
        # these do not overlap, so they are tumbling whatever the method
        described: CountKind = "tumbling" if step == count else kind

        def place(spec: CountSpec) -> Stream:
            return self._windowed(spec, f"{kind}-count", name)

        return Window(lambda columns: AggregatedCountWindow(CountSpec(described, *sizes, columns), place))

    @property
    def _regrouped(self) -> bool:
        """Whether the messages of a key come from several partitions of a source."""
        raise NotImplementedError

    def _windowed(self, spec: WindowSpec | CountSpec, unnamed: str, name: str | None) -> Stream:
        """The stream after a window; ``unnamed`` is its default name after the topic's name."""
        raise NotImplementedError
