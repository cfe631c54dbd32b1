"""Computes windows of one partition in plain Python, by the rules of ``docs/windows.md`` alone.

The oracle shares no code with the engine, and keeps all windows of all keys in dicts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A message: its key, its event time in milliseconds, and the number that windows add up."""

    key: bytes
    time_ms: int
    amount: int


class Shape(NamedTuple):
    """A window's declaration; times are milliseconds."""

    duration: int
    step: int
    grace: int
    closing: str
    final: bool
    retention: int = 86_400_000


@dataclass(slots=True)
class Windows:
    """A window step in plain Python: the windows it keeps and the results it sends.

    Attributes:
        open: The amounts in each open window, in order of arrival, by key, start and end.
        closed: The amounts in each closed window, by key, start and end.
        results: (key, start, end, count, total), in the order of the messages; the results of one message are sorted.
        late: The number of windows that refused a message because it came too late.
        time: The stream time: the greatest event time that is not after ``now``, the time of the worker's clock.
    """

    shape: Shape
    now: int
    open: dict[tuple[bytes, int, int], list[int]] = field(default_factory=dict)
    closed: dict[tuple[bytes, int, int], list[int]] = field(default_factory=dict)
    results: list[tuple[Any, ...]] = field(default_factory=list)
    late: int = 0
    time: int = -1
    times: dict[bytes, int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Adds one message to its windows, and closes all windows that are due afterwards."""
        by_key = self.shape.closing == "key"
        clock = self.times.get(event.key, -1) if by_key else self.time
        shape = self.shape
        start = max(0, event.time_ms - shape.duration - shape.step) // shape.step * shape.step
        while start <= event.time_ms:
            end = start + shape.duration
            if event.time_ms < end:
                # With closing by key, the key's own time decides first. But a window whose retention has ended refuses
                # messages, too; the partition's stream time decides this.
                if clock >= end + shape.grace or self.time >= end + shape.grace + shape.retention:
                    self.late += 1
                else:
                    amounts = self.open.setdefault((event.key, start, end), [])
                    amounts.append(event.amount)
                    if not shape.final:
                        self.results.append((event.key, start, end, len(amounts), sum(amounts)))
            start += shape.step
        if event.time_ms <= self.now:
            self.time = max(self.time, event.time_ms)
            self.times[event.key] = max(self.times.get(event.key, -1), event.time_ms)
        self._close()

    def go_on(self, time: int) -> None:
        """Moves stream time forward without a message, and closes the windows that are due."""
        if self.time >= 0:
            self.time = time
        self._close()

    def _close(self) -> None:
        for key, start, end in sorted(self.open):
            clock = self.times.get(key, -1) if self.shape.closing == "key" else self.time
            # With closing by key, a later message of the key closes the window. If none comes, the window closes when
            # its retention ends.
            if clock >= end + self.shape.grace or self.time >= end + self.shape.grace + self.shape.retention:
                amounts = self.open.pop((key, start, end))
                self.closed[key, start, end] = amounts
                if self.shape.final:
                    self.results.append((key, start, end, len(amounts), sum(amounts)))


def expect(shape: Shape, events: list[Event], now: int) -> Windows:
    """The window step after all messages of a partition, taken in order."""
    made = Windows(shape, now)
    for event in events:
        made.take(event)
    return made
