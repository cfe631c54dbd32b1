"""Computes session results of one partition in plain Python, by the rules of ``docs/sessions.md`` alone.

The oracle shares no code with the engine. A session is the list of its messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.oracles.window_rules import Event


class Shape(NamedTuple):
    """The declaration of sessions; times are milliseconds."""

    gap: int
    grace: int
    closing: str
    final: bool
    retention: int = 86_400_000


@dataclass(slots=True)
class Session:
    """One session: its messages, in the order in which the engine's aggregates see them."""

    events: list[Event]
    open: bool = True

    @property
    def start(self) -> int:
        """The time of the first message."""
        return min(event.time_ms for event in self.events)

    @property
    def end(self) -> int:
        """The time of the last message plus 1 ms."""
        return max(event.time_ms for event in self.events) + 1

    def result(self, key: bytes) -> tuple[Any, ...]:
        """The result that is sent for this session."""
        amounts = [event.amount for event in self.events]
        return (key, self.start, self.end, len(amounts), sum(amounts), amounts, amounts[0], amounts[-1])


@dataclass(slots=True)
class Sessions:
    """A session step in plain Python.

    It has its sessions by key, the results that it sends, and the number of late messages.
    """

    shape: Shape
    now: int
    by_key: dict[bytes, list[Session]] = field(default_factory=dict)
    results: list[tuple[Any, ...]] = field(default_factory=list)
    late: int = 0
    merged: int = 0
    time: int = -1
    times: dict[bytes, int] = field(default_factory=dict)

    def _clock(self, key: bytes) -> int:
        return self.times.get(key, -1) if self.shape.closing == "key" else self.time

    def take(self, event: Event) -> None:
        """Adds one message to its session, and closes all sessions that are due afterwards."""
        shape, clock = self.shape, self._clock(event.key)
        sessions = self.by_key.setdefault(event.key, [])
        near = [
            each
            for each in sessions
            if each.open
            and max(clock, self.time - shape.retention) < each.end + shape.gap + shape.grace
            and any(abs(event.time_ms - other.time_ms) <= shape.gap for other in each.events)
        ]
        due = event.time_ms + 1 + shape.gap + shape.grace
        gone = shape.closing == "key" and self.time >= due + shape.retention
        if not near and (clock >= due or gone):
            self.late += 1
        else:
            near.sort(key=lambda each: each.start)
            self.merged += len(near) > 1
            before = [each for each in near if each.start <= event.time_ms]
            events: list[Event] = []
            for each in near:
                events += each.events
                if each is (before[-1] if before else near[0]):
                    events.append(event)
            made = Session(events or [event])
            self.by_key[event.key] = [each for each in sessions if each not in near] + [made]
            if not shape.final:
                self.results.append(made.result(event.key))
        if event.time_ms <= self.now:
            self.time = max(self.time, event.time_ms)
            self.times[event.key] = max(self.times.get(event.key, -1), event.time_ms)
        self._close()

    def go_on(self, time: int) -> None:
        """Moves stream time forward without a message, and closes the sessions that are due."""
        if self.time >= 0:
            self.time = time
        self._close()

    def _close(self) -> None:
        for key, sessions in sorted(self.by_key.items()):
            for each in sorted(sessions, key=lambda each: each.start):
                due = each.end + self.shape.gap + self.shape.grace
                # With closing by key, a later message of the key closes the session. If none comes, the session closes
                # when its retention ends.
                if each.open and (self._clock(key) >= due or self.time >= due + self.shape.retention):
                    each.open = False
                    if self.shape.final:
                        self.results.append(each.result(key))


def expect(shape: Shape, events: Iterable[Event], now: int) -> Sessions:
    """The session step after all messages of a partition, taken in order."""
    made = Sessions(shape, now)
    for event in events:
        made.take(event)
    return made
