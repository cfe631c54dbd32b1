"""Virtual time: it moves only when it is told to, and runs what is due on the way."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    """Something to be done at a moment of virtual time."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Don't do it."""
        self.action = None


class VirtualClock:
    """A clock for tests and simulations (``infra.clock.Clock``).

    Args:
        start: The wall-clock time at its beginning, in seconds since 1970 UTC.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._now = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._number = itertools.count()
        #: Added to the wall-clock time: set it to let the wall clock jump.
        self.skew_s = 0.0

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def time(self) -> float:
        """Seconds since 1970 UTC."""
        return self._start + self._now + self.skew_s

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Do something at a moment of ``monotonic`` time; at once due when that is over."""
        timer = Timer(action)
        heapq.heappush(self._timers, (when, next(self._number), timer))
        return timer

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Do something after so many seconds."""
        return self.call_at(self._now + seconds, action)

    def advance_to(self, when: float) -> None:
        """Let time go on, and do what is due, in the order of time and then of being asked for."""
        while self._timers and self._timers[0][0] <= when:
            due, _, timer = heapq.heappop(self._timers)
            action = timer.action
            if action is not None:
                self._now = max(self._now, due)
                action()
        self._now = max(self._now, when)

    @property
    def next_at(self) -> float | None:
        """When something is due next; None when nothing is."""
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None
