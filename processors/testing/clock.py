"""Virtual time, which passes only in ``advance_to``. This method also runs the actions that become due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    """An action that is scheduled for a moment of virtual time."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancels the action, so that it does not run."""
        self.action = None


class VirtualClock:
    """A virtual clock for tests and simulations, with the interface of ``infra.clock.Clock``.

    Args:
        start: The wall-clock time at the creation, in seconds since 1970 UTC.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._now = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._number = itertools.count()
        #: Seconds that are added to the wall-clock time. A changed value makes the wall clock jump.
        self.skew_s = 0.0

    def monotonic(self) -> float:
        """Returns the seconds since the creation of the clock."""
        return self._now

    def time(self) -> float:
        """Returns the wall-clock time, in seconds since 1970 UTC."""
        return self._start + self._now + self.skew_s

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Schedules an action for a ``monotonic`` time. An action with a past time runs at the next advance."""
        timer = Timer(action)
        heapq.heappush(self._timers, (when, next(self._number), timer))
        return timer

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Schedules an action that runs after this many seconds."""
        return self.call_at(self._now + seconds, action)

    def advance_to(self, when: float) -> None:
        """Advances time to ``when``, and runs due actions in the order of their times.

        Actions with equal times run in the order in which they were scheduled.
        """
        while self._timers and self._timers[0][0] <= when:
            due, _, timer = heapq.heappop(self._timers)
            action = timer.action
            if action is not None:
                self._now = max(self._now, due)
                action()
        self._now = max(self._now, when)

    @property
    def next_at(self) -> float | None:
        """The time of the next scheduled action; None if no action is scheduled."""
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None
