"""Computes sliding windows of one partition in plain Python, by the rules of ``docs/sliding.md`` alone.

The oracle shares no code with the engine, and never drops a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.oracles.window_rules import Event


class Shape(NamedTuple):
    """The declaration of sliding windows; times are milliseconds."""

    length: int
    grace: int
    final: bool


@dataclass(slots=True)
class Sliding:
    """A step of sliding windows in plain Python.

    The object has the messages by key, the results to send, and the number of late messages.
    """

    shape: Shape
    now: int
    messages: dict[bytes, list[Event]] = field(default_factory=dict)
    results: list[tuple[Any, ...]] = field(default_factory=list)
    late: int = 0
    times: dict[bytes, int] = field(default_factory=dict)

    def _window(self, key: bytes, end: int) -> tuple[Any, ...]:
        start = max(0, end - self.shape.length)
        # Sorting is stable. Messages with the same time stay in the order in which they arrived.
        inside = sorted((each for each in self.messages[key] if start <= each.time_ms <= end), key=lambda each: each[1])
        amounts = [each.amount for each in inside]
        return (key, start, end, len(amounts), sum(amounts), amounts)

    def take(self, event: Event) -> None:
        """Adds one message to its windows, and closes all windows that are due afterwards."""
        key, length, grace = event.key, self.shape.length, self.shape.grace
        clock = self.times.get(key, -1)
        self.late += clock >= event.time_ms + 1 + grace
        if clock < event.time_ms + length + 1 + grace:
            kept = self.messages.setdefault(key, [])
            kept.append(event)
            ends = sorted({each.time_ms for each in kept if event.time_ms <= each.time_ms <= event.time_ms + length})
            if not self.shape.final:
                self.results += [self._window(key, end) for end in ends if clock < end + 1 + grace]
        if event.time_ms <= self.now and event.time_ms > clock:
            self.times[key] = event.time_ms
            if self.shape.final:
                ends = sorted({each.time_ms for each in self.messages[key]})
                closes = [end for end in ends if clock < end + 1 + grace <= event.time_ms]
                self.results += [self._window(key, end) for end in closes]


def expect(shape: Shape, events: Iterable[Event], now: int) -> Sliding:
    """The step of sliding windows after all messages of a partition, taken in order."""
    made = Sliding(shape, now)
    for event in events:
        made.take(event)
    return made
