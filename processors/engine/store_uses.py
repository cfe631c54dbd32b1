"""What a store keeps about time: windows, values that end, timers. Lines of a definition and sentences are made of it.

A duration in a text is an ``Ms``: a line of a definition writes it in milliseconds, a sentence in a larger unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Ms(int):
    """A duration in milliseconds, as a part of a text."""


#: A text with durations in it.
Parts = tuple[str | Ms, ...]


def in_milliseconds(duration: int) -> str:
    """A duration as a line of a definition writes it."""
    return f"{duration} ms"


@dataclass(frozen=True, slots=True)
class WindowUse:
    """Windows.

    Attributes:
        kind: ``tumbling``, ``hopping``, ``session`` or ``sliding``.
        counted: Whether each has a number of messages, and not a span of time.
        parts: Their lengths and how they close.
        silence_ms: After so long without messages, stream time passes as time does; None for never.
    """

    kind: str
    counted: bool
    parts: Parts
    silence_ms: int | None = None

    @property
    def has_span(self) -> bool:
        """Whether each is stored with its start and end in event time."""
        return not self.counted and self.kind != "sliding"

    def text(self, duration: Callable[[int], str] = in_milliseconds) -> str:
        """Its parts, with durations as ``duration`` writes them."""
        return "".join(duration(part) if isinstance(part, Ms) else part for part in self.parts)


@dataclass(frozen=True, slots=True)
class TtlUse:
    """Values that end after ``ttl_ms``; None: each value says when."""

    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class TimerUse:
    """Timers; ``of_join`` for those that end messages without a match, which only stream time fires."""

    of_join: bool = False


TimeUse = WindowUse | TtlUse | TimerUse
