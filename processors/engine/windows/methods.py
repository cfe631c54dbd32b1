"""The methods of ``StreamingDataFrame`` that declare a window."""

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

#: The type of a declared window by time (not by count) that has no columns yet.
TimeWindow: TypeAlias = Window[AggregatedWindow[Stream]]
CountWindow: TypeAlias = Window[AggregatedCountWindow[Stream]]


class StreamWindows(Generic[Stream]):
    """The methods of a stream that declare windows: by time, by activity (sessions), or by number of messages."""

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
        """Declares consecutive windows of one length.

        Calls that add a column and choose when results are sent must follow, for example ``.count().final()``.

        Args:
            duration_ms: The length of a window, in milliseconds or as a timedelta.
            grace_ms: The time after its end for which a window still accepts messages. Default 0.
            name: The store's name; None means ``<topic>-tumbling``.
            on_late: ``drop`` (the default), ``dead-letter``, or a function. The function is called for each window for
                which a message is too late, with (value, key, timestamp, late_by_ms, start, end, name, topic,
                partition, offset). It returns True to log the message.
            retention: The time for which a window stays readable after its end and grace; None means one day.
            triggers: ``before_update`` and ``after_update``: functions of (aggregated, value, key, timestamp, headers).
                If a function returns a true value, the window is sent immediately and starts again. ``before_update``
                sends the window without the message, ``after_update`` with the message.

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
        """Declares overlapping windows of one length. A new window begins every ``step_ms``.

        The other arguments have the same meaning as in ``tumbling_window``.
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
        """Declares windows of one length; a window ends at the event time of each message of a key.

        A window contains the message at its end, and the key's messages that are at most ``duration_ms`` earlier. The
        arguments have the same meaning as in ``tumbling_window``.
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
        """Declares sessions. Messages of a key with gaps of at most ``inactivity_gap_ms`` form one session.

        Args:
            inactivity_gap_ms: The maximum gap between two messages of a session, in milliseconds or as a timedelta. A
                session is due when a gap has passed after its last message.
            grace_ms: The time for which a session still accepts messages after it is due. Default 0.
            name: The store's name; None means ``<topic>-session``.
            on_late: The same as in ``tumbling_window``. The function gets the start and end of a session that would
                contain only the late message.
            retention: The time for which a session stays readable after it is closed; None means one day.

        Raises:
            DurationInvalid: A duration is out of range.
            WindowInvalid: The arguments contradict each other.
        """
        return self._timed(session_times(inactivity_gap_ms, grace_ms, retention), Asked(on_late), name)

    def tumbling_count_window(self, count: int, name: str | None = None) -> CountWindow[Stream]:
        """Declares windows of ``count`` messages of a key. Each window begins after the previous one.

        Args:
            count: The number of messages in a window.
            name: The store's name; None means ``<topic>-tumbling-count``.

        Raises:
            WindowInvalid: ``count`` is out of range.
        """
        return self._counted("tumbling", count, count, name)

    def hopping_count_window(self, count: int, step: int, name: str | None = None) -> CountWindow[Stream]:
        """Declares overlapping windows of ``count`` messages of a key.

        A new window begins every ``step`` messages. ``step`` must not exceed ``count``.
        """
        return self._counted("hopping", count, step, name)

    def sliding_count_window(self, count: int, name: str | None = None) -> CountWindow[Stream]:
        """Declares overlapping windows of ``count`` messages of a key. A new window begins at each message."""
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
        # If the step is equal to the count, the windows do not overlap. They are then tumbling windows.
        described: CountKind = "tumbling" if step == count else kind

        def place(spec: CountSpec) -> Stream:
            return self._windowed(spec, f"{kind}-count", name)

        return Window(lambda columns: AggregatedCountWindow(CountSpec(described, *sizes, columns), place))

    @property
    def _regrouped(self) -> bool:
        """Whether messages of one key can come from several partitions of a source topic, as after ``group_by``."""
        raise NotImplementedError

    def _windowed(self, spec: WindowSpec | CountSpec, unnamed: str, name: str | None) -> Stream:
        """Adds a window to the stream and returns the stream of its results.

        ``unnamed`` is the suffix of the store's default name.
        """
        raise NotImplementedError
