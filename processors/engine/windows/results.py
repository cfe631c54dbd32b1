"""The last two calls that declare a window: the first adds the columns, the second decides when results are sent.

Example::

    sdf.tumbling_window(60_000).agg(orders=Count(), total=Sum("amount")).final(closing_strategy="partition")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Generic, NamedTuple, TypedDict, TypeVar

from holdfast.processors.engine.aggregates.window_aggregates import WindowAggregation
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.signatures import refuses, written
from holdfast.processors.engine.windows.counts import CountSpec
from holdfast.processors.engine.windows.spec import (
    ClosingStrategy,
    OnLate,
    Trigger,
    Unplaced,
    WindowInvalid,
    WindowKind,
    WindowSpec,
    checked_gap,
    checked_times,
)

#: The type of the stream of a window's results.
Stream = TypeVar("Stream")


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """The times of a window after validation, in milliseconds."""

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
    """Returns the times of a tumbling, hopping or sliding window, converted from the user's arguments and checked.

    Raises:
        DurationInvalid: A duration is out of range.
        WindowInvalid: The arguments contradict each other.
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
    """Returns the times of a session window, converted and checked. Raises the same errors as ``window_times``."""
    gap_ms = milliseconds("inactivity_gap_ms", gap, least=1)
    grace_ms = milliseconds("grace_ms", grace, least=0)
    retention_ms = None if retention is None else milliseconds("retention", retention, least=0)
    checked_gap(gap_ms, retention_ms)
    return WindowTimes("session", *checked_times(gap_ms, gap_ms, grace_ms, retention_ms))


class Triggers(TypedDict, total=False):
    """User functions that send a window early. Each is called with (aggregated, value, key, timestamp, headers)."""

    before_update: Trigger | None
    after_update: Trigger | None


class Asked(NamedTuple):
    """The user functions among a window's arguments.

    ``on_late`` is called for late messages. ``before_update`` and ``after_update`` can send the window early.
    """

    on_late: OnLate | None = None
    before_update: Trigger | None = None
    after_update: Trigger | None = None
    #: The closing strategy that is used if the user gives none.
    closing: ClosingStrategy = "key"

    def check(self) -> None:
        """Raises WindowInvalid if ``on_late`` is unknown, or if a function can't take the arguments that it gets."""
        if self.on_late is not None and not callable(self.on_late) and self.on_late not in ("drop", "dead-letter"):
            raise WindowInvalid(
                f"`on_late` is {self.on_late!r}, expected `drop`, `dead-letter` or a function.",
                action='Write, for example, `on_late="dead-letter"`.',
                seen=repr(self.on_late),
            )
        if callable(self.on_late):
            _check_arguments("on_late", self.on_late, _LATE_ARGUMENTS)
        for name, made in (("before_update", self.before_update), ("after_update", self.after_update)):
            if made is not None and not callable(made):
                raise WindowInvalid(
                    f"`{name}` is {made!r}, expected a function.",
                    action=f"Write, for example, `{name}=lambda aggregated, value, key, timestamp, headers: "
                    "aggregated > 1_000`.",
                    seen=repr(made),
                )
            if made is not None:
                _check_arguments(name, made, _TRIGGER_ARGUMENTS)


#: The names of the arguments with which the ``on_late`` function is called.
_LATE_ARGUMENTS = (
    *("value", "key", "timestamp", "late_by_ms", "start", "end"),
    *("name", "topic", "partition", "offset"),
)
_TRIGGER_ARGUMENTS = ("aggregated", "value", "key", "timestamp", "headers")


def _check_arguments(argument: str, func: Callable[..., object], expected: tuple[str, ...]) -> None:
    if refuses(func, len(expected)):
        raise WindowInvalid(
            f"`{argument}` is {written(func)}, which can't be called with ({', '.join(expected)}).",
            action=f"Give the function these {len(expected)} arguments, also those that it does not need.",
            seen=written(func),
        )


class AggregatedWindow(Unplaced, Generic[Stream]):
    """A window with its columns. ``current`` or ``final`` adds the window to the stream. Its results are dicts::

        {"start": 1700000000000, "end": 1700000060000, "value": 3}

    A result has the message key of the window. It has no headers, and its timestamp is the start of the window.
    """

    _missing = "`.final()` or `.current()`"

    def __init__(
        self,
        times: WindowTimes,
        aggregation: WindowAggregation,
        asked: Asked,
        place: Callable[[WindowSpec], Stream],
    ) -> None:
        self._times, self._aggregation, self._asked, self._place = times, aggregation, asked, place
        if times.kind == "session":
            aggregation.check_merges()

    def current(self, closing_strategy: ClosingStrategy | None = None) -> Stream:
        """Sends a result for each message and each of its windows.

        ``closing_strategy`` decides when a window accepts no more messages, as in ``final``.
        """
        return self._placed(closing_strategy, final=False)

    def final(
        self, closing_strategy: ClosingStrategy | None = None, *, close_when_idle: int | timedelta | None = None
    ) -> Stream:
        """Sends one result for each window, when the window closes.

        Args:
            closing_strategy: ``key`` closes a window when a message of the same key reaches the window's end plus
                grace, or when the retention ends. ``partition`` closes a window when stream time reaches its end and
                grace, even if its key gets no more messages. None means ``key``; after ``group_by`` it means
                ``partition``, because messages of a key come from several partitions.
            close_when_idle: Only with ``partition``. After this time without a message on any input of the task, stream
                time advances with the clock, so that windows close without another message. Milliseconds or a
                timedelta; None means never.

        Raises:
            DurationInvalid: ``close_when_idle`` is out of range.
            WindowInvalid: The strategy does not exist, or it does not allow ``close_when_idle``.
        """
        idle_ms = None if close_when_idle is None else milliseconds("close_when_idle", close_when_idle, least=1)
        if idle_ms is not None and (closing_strategy or self._asked.closing) == "key":
            raise WindowInvalid(
                f"`close_when_idle` is {close_when_idle!r}, but `closing_strategy` is `key`: only messages of a key "
                "move its time.",
                action='Write `final(closing_strategy="partition", close_when_idle=...)`.',
                seen=repr(close_when_idle),
            )
        return self._placed(closing_strategy, final=True, idle_ms=idle_ms)

    def _placed(self, asked: ClosingStrategy | None, *, final: bool, idle_ms: int | None = None) -> Stream:
        closing = asked or self._asked.closing
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
                "drop" if self._asked.on_late is None else self._asked.on_late,
                closing,
                final,
                idle_ms,
                self._asked.before_update,
                self._asked.after_update,
            )
        )


class AggregatedCountWindow(Unplaced, Generic[Stream]):
    """A count window with its columns. ``current`` or ``final`` adds it to the stream. Its results are dicts::

        {"start": 1700000000000, "end": 1700000060000, "value": 3}

    Start and end are the smallest and the largest event time of the window's messages. A result has the message key of
    the window and no headers. Its timestamp is the start of the window.
    """

    _missing = "`.final()` or `.current()`"

    def __init__(self, spec: CountSpec, place: Callable[[CountSpec], Stream]) -> None:
        self._spec, self._place = spec, place

    def current(self) -> Stream:
        """Sends a result for each message and each of its windows."""
        return self._place(self._spec)

    def final(self) -> Stream:
        """Sends one result for each window, when the window is full."""
        return self._place(replace(self._spec, final=True))
