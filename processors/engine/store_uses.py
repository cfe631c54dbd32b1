"""A store's content about time: windows, values that expire, timers. Definition lines and sentences are made from it.

A duration in a text is an ``Ms``: a line of a definition writes it in milliseconds, a sentence in a larger unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Ms(int):
    """A duration in milliseconds, as a part of a text."""


#: A text that contains durations.
Parts = tuple[str | Ms, ...]


def in_milliseconds(duration: int) -> str:
    """A duration as a line of a definition writes it."""
    return f"{duration} ms"


@dataclass(frozen=True, slots=True)
class WindowUse:
    """Windows.

    Attributes:
        kind: ``tumbling``, ``hopping``, ``session`` or ``sliding``.
        counted: Whether each window has a number of messages, instead of a span of time.
        parts: Their lengths and how they close.
        silence_ms: After this time without messages, stream time advances with the clock; None for never.
    """

    kind: str
    counted: bool
    parts: Parts
    silence_ms: int | None = None

    @property
    def has_span(self) -> bool:
        """Whether each window is stored with its start and end in event time."""
        return not self.counted and self.kind != "sliding"

    def text(self, duration: Callable[[int], str] = in_milliseconds) -> str:
        """The parts as text, with durations written by ``duration``."""
        return "".join(duration(part) if isinstance(part, Ms) else part for part in self.parts)


@dataclass(frozen=True, slots=True)
class TtlUse:
    """Values that expire after ``ttl_ms``; None: each value has its own time."""

    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class TimerUse:
    """Timers; ``of_join`` for timers that end messages without a match, which only stream time fires."""

    of_join: bool = False


TimeUse = WindowUse | TtlUse | TimerUse
