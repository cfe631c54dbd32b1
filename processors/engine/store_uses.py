"""Describes how a store's content depends on time: windows, values that expire, timers.

Definition lines and sentences are made from these descriptions. A duration in a text is an ``Ms``: a definition line
shows it in milliseconds, a sentence in a larger unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Ms(int):
    """A duration in milliseconds that is a part of a text."""


#: The parts of a text that contains durations.
Parts = tuple[str | Ms, ...]


def in_milliseconds(duration: int) -> str:
    """Formats a duration for a definition line."""
    return f"{duration} ms"


@dataclass(frozen=True, slots=True)
class WindowUse:
    """The store has windows.

    Attributes:
        kind: ``tumbling``, ``hopping``, ``session`` or ``sliding``.
        counted: Whether windows are defined by a number of messages, not by a time span.
        parts: The text about the windows' lengths and how they close.
        silence_ms: After this time without messages, stream time advances with the clock, in milliseconds; None means
            never.
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
        """Returns ``parts`` as text. ``duration`` formats the durations."""
        return "".join(duration(part) if isinstance(part, Ms) else part for part in self.parts)


@dataclass(frozen=True, slots=True)
class TtlUse:
    """The store's values expire after ``ttl_ms`` milliseconds; None means that each value has its own TTL."""

    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class TimerUse:
    """The store has timers. ``of_join``: they send messages of a join that found no match, by stream time only."""

    of_join: bool = False


TimeUse = WindowUse | TtlUse | TimerUse
