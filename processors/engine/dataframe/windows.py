"""What the windows of a stream return: choose the columns, then when results are sent.

sdf.tumbling_window(60_000).agg(orders=Count(), total=Sum("amount")).final(closing_strategy="partition")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from holdfast.processors.engine.dataframe.aggregation import Aggregator, Count, Field, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.dataframe.durations import milliseconds
from holdfast.processors.engine.dataframe.window_aggregates import (
    Collect,
    Earliest,
    First,
    Latest,
    Reduce,
    WindowAggregation,
)
from holdfast.processors.engine.dataframe.window_spec import (
    ClosingStrategy,
    OnLate,
    WindowInvalid,
    WindowKind,
    WindowSpec,
    checked_gap,
    checked_times,
)

#: The stream behind a window.
Stream = TypeVar("Stream")


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """The times of a window, checked, in milliseconds."""

    kind: WindowKind
    duration_ms: int
    step_ms: int
    grace_ms: int
    retention_ms: int


def window_times(
    kind: WindowKind,
    duration: int | timedelta,
    step: int | timedelta,
    grace: int | timedelta,
    retention: int | timedelta | None,
) -> WindowTimes:
    """The times of a window as a user gave them.

    Raises:
        DurationInvalid: A duration is out of range.
        WindowInvalid: They contradict each other.
    """
    return WindowTimes(
        kind,
        *checked_times(
            milliseconds("duration_ms", duration, least=1),
            milliseconds("step_ms", step, least=1),
            milliseconds("grace_ms", grace, least=0),
            None if retention is None else milliseconds("retention", retention, least=0),
        ),
    )


def session_times(gap: int | timedelta, grace: int | timedelta, retention: int | timedelta | None) -> WindowTimes:
    """The times of sessions as a user gave them; raises as ``window_times``."""
    gap_ms = milliseconds("inactivity_gap_ms", gap, least=1)
    grace_ms = milliseconds("grace_ms", grace, least=0)
    retention_ms = None if retention is None else milliseconds("retention", retention, least=0)
    checked_gap(gap_ms, retention_ms)
    return WindowTimes("session", *checked_times(gap_ms, gap_ms, grace_ms, retention_ms))


class Window(Generic[Stream]):
    """A window without columns; each method gives it one column with the name ``value``, ``agg`` several by name.

    ``of`` is a field's name, a function of the message's value, or None for the whole value.
    """

    def __init__(self, times: WindowTimes, on_late: OnLate | None, place: Callable[[WindowSpec], Stream]) -> None:
        self._times = times
        self._on_late: OnLate = "drop" if on_late is None else on_late
        if not callable(self._on_late) and self._on_late not in ("drop", "dead-letter"):
            raise WindowInvalid(
                f"`on_late` is {on_late!r}, expected `drop`, `dead-letter` or a function.",
                action='Write, for example, `on_late="dead-letter"`.',
                seen=repr(on_late),
            )
        self._place = place

    def count(self) -> AggregatedWindow[Stream]:
        """The number of messages."""
        return self._one(Count())

    def sum(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The total of numbers."""
        return self._one(Sum(of))

    def mean(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The mean of numbers."""
        return self._one(Mean(of))

    def min(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The least number or text."""
        return self._one(Min(of))

    def max(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The greatest number or text."""
        return self._one(Max(of))

    def first(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The value that was processed first."""
        return self._one(First(of))

    def last(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The value that was processed last."""
        return self._one(Last(of))

    def earliest(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The value with the least event time."""
        return self._one(Earliest(of))

    def latest(self, of: Field = None) -> AggregatedWindow[Stream]:
        """The value with the greatest event time."""
        return self._one(Latest(of))

    def collect(self, of: Field = None) -> AggregatedWindow[Stream]:
        """All values, in a list."""
        return self._one(Collect(of))

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        initializer: Callable[[Any], Any],
        merger: Callable[[Any, Any], Any] | None = None,
    ) -> AggregatedWindow[Stream]:
        """A value that ``initializer`` makes of the first message, and ``reducer`` of the value and the next one.

        ``merger`` makes one value of those of two sessions; only sessions need it.
        """
        return self._one(Reduce(reducer, initializer, merger))

    def agg(self, **columns: Aggregator) -> AggregatedWindow[Stream]:
        """Several columns by name, for example ``agg(orders=Count(), total=Sum("amount"))``.

        Raises:
            AggregationInvalid: There are no columns, one is no aggregator, or a name is taken.
        """
        return self._with(WindowAggregation(columns))

    def _one(self, column: Aggregator) -> AggregatedWindow[Stream]:
        return self._with(WindowAggregation({"value": column}))

    def _with(self, aggregation: WindowAggregation) -> AggregatedWindow[Stream]:
        if self._times.kind == "session":
            aggregation.check_merges()
        return AggregatedWindow(self._times, aggregation, self._on_late, self._place)


class AggregatedWindow(Generic[Stream]):
    """A window with its columns. ``current`` or ``final`` places it into the stream; its results are dicts::

        {"start": 1700000000000, "end": 1700000060000, "value": 3}

    A result has the key of its messages, no headers, and the start of its window as its timestamp.
    """

    def __init__(
        self,
        times: WindowTimes,
        aggregation: WindowAggregation,
        on_late: OnLate,
        place: Callable[[WindowSpec], Stream],
    ) -> None:
        self._times, self._aggregation, self._on_late, self._place = times, aggregation, on_late, place

    def current(self, closing_strategy: ClosingStrategy = "key") -> Stream:
        """A result for each message and each of its windows; ``closing_strategy`` says which messages are late."""
        return self._placed(closing_strategy, final=False)

    def final(
        self, closing_strategy: ClosingStrategy = "key", *, close_when_idle: int | timedelta | None = None
    ) -> Stream:
        """One result for each window, when it closes.

        Args:
            closing_strategy: ``key`` closes a window when a message of its key has an event time at or after its end
                and grace; ``partition`` when stream time is there, so that a quiet key closes, too.
            close_when_idle: With ``partition``: after so long without a message on any input of the task, stream time
                passes as time does, and windows close without a next message. Milliseconds or a timedelta; None for
                never.

        Raises:
            DurationInvalid: ``close_when_idle`` is out of range.
            WindowInvalid: There is no such strategy, or ``close_when_idle`` does not fit it.
        """
        idle_ms = None if close_when_idle is None else milliseconds("close_when_idle", close_when_idle, least=1)
        if idle_ms is not None and closing_strategy == "key":
            raise WindowInvalid(
                f"`close_when_idle` is {close_when_idle!r}, but `closing_strategy` is `key`: only messages of a key "
                "move its time.",
                action='Write `final(closing_strategy="partition", close_when_idle=...)`.',
                seen=repr(close_when_idle),
            )
        return self._placed(closing_strategy, final=True, idle_ms=idle_ms)

    def _placed(self, closing: ClosingStrategy, *, final: bool, idle_ms: int | None = None) -> Stream:
        if closing not in ("key", "partition"):
            raise WindowInvalid(
                f"`closing_strategy` is {closing!r}, expected `key` or `partition`.",
                action='Write, for example, `final(closing_strategy="partition")`.',
                seen=repr(closing),
            )
        times = self._times
        if times.kind == "sliding" and closing != "key":
            raise WindowInvalid(
                f"`closing_strategy` is {closing!r}, but sliding windows close with messages of their key only.",
                action='Write `final()`, or take a hopping window and `final(closing_strategy="partition")`.',
                seen=closing,
            )
        return self._place(
            WindowSpec(
                times.kind,
                times.duration_ms,
                times.step_ms,
                times.grace_ms,
                times.retention_ms,
                self._aggregation,
                self._on_late,
                closing,
                final,
                idle_ms,
            )
        )
