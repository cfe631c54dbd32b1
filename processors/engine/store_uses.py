"""Describes how a store's content depends on time: windows, values that expire, timers, schedules, sources, calls.

Two kinds of text are made from these descriptions: the lines of a store's definition, and sentences for users. A
duration in a text is an ``Ms`` object. Definitions show it in milliseconds, and sentences show it in a larger unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Ms(int):
    """A duration in milliseconds that is a part of a text."""


#: A text with durations, as a tuple. Its items are strings and ``Ms`` durations, in the order of the text.
Parts = tuple[str | Ms, ...]


def in_milliseconds(duration: int) -> str:
    """Formats a duration for a line of a store's definition."""
    return f"{duration} ms"


@dataclass(frozen=True, slots=True)
class WindowUse:
    """The store has windows.

    Attributes:
        kind: ``tumbling``, ``hopping``, ``session`` or ``sliding``.
        counted: Whether windows are defined by a number of messages, not by a time span.
        parts: A text about the windows' lengths and about how windows close. It is split into a tuple of strings and
            ``Ms`` durations.
        silence_ms: Milliseconds without messages after which stream time advances with the wall clock; None means that
            only messages advance it.
    """

    kind: str
    counted: bool
    parts: Parts
    silence_ms: int | None = None

    @property
    def has_span(self) -> bool:
        """Whether windows are stored with their start and end in event time."""
        return not self.counted and self.kind != "sliding"

    def text(self, duration: Callable[[int], str] = in_milliseconds) -> str:
        """Returns ``parts`` as one text. ``duration`` formats the durations in the text."""
        return "".join(duration(part) if isinstance(part, Ms) else part for part in self.parts)


@dataclass(frozen=True, slots=True)
class TtlUse:
    """The store's values expire after ``ttl_ms`` milliseconds; None means that each value has its own TTL."""

    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class TimerUse:
    """The store has timers.

    ``of_join`` is True if the timers belong to a join, which uses them to send messages without a match. Only stream
    time fires such timers.
    """

    of_join: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleUse:
    """The store has the progress of a schedule.

    Attributes:
        name: The name of the schedule.
        parts: A text that is split into a tuple of strings and ``Ms`` durations. It describes the slots (the times at
            which the schedule fires), how often each slot fires, and the rule for missed slots.
    """

    name: str
    parts: Parts

    def text(self, duration: Callable[[int], str] = in_milliseconds) -> str:
        """Returns name and ``parts`` as one text. ``duration`` formats the durations in the text."""
        return (
            f"schedule {self.name}: {''.join(duration(part) if isinstance(part, Ms) else part for part in self.parts)}"
        )


@dataclass(frozen=True, slots=True)
class SourceUse:
    """The store has the progress of a source, and the source's own state if ``keeps_state`` is True."""

    name: str
    keeps_state: bool

    def text(self) -> str:
        """Returns a text with the source's name, and whether the source keeps state."""
        kind = "resumes from its state" if self.keeps_state else "keeps no state"
        return f"source {self.name}: {kind}"


@dataclass(frozen=True, slots=True)
class CallUse:
    """The store has answers of calls to another system, each until its message is committed.

    An answer that is older than ``ttl_ms`` milliseconds of the worker's clock is not used.
    """

    ttl_ms: int

    def text(self, duration: Callable[[int], str] = in_milliseconds) -> str:
        """Returns a text with the maximum age of an answer. ``duration`` formats it."""
        return f"answers of calls that are not used after {duration(self.ttl_ms)}"


TimeUse = WindowUse | TtlUse | TimerUse | ScheduleUse | SourceUse | CallUse
