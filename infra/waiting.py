"""Waiting outside of the engine: one deadline class, one loop for conditions, one loop for retries.

The engine never sleeps; it uses its ``Clock``. All other code that waits for a process, a topic or a lock uses this
module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

#: Pause between two checks of a condition, seconds.
CHECK_EVERY_S = 0.05
#: Pause between two attempts of a retried call, seconds.
RETRY_EVERY_S = 0.1


class Deadline:
    """A moment on the monotonic clock, ``within_s`` seconds from now, at which the caller stops waiting."""

    def __init__(self, within_s: float) -> None:
        self._at = time.monotonic() + within_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        return max(0.0, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._at


def wait_until(condition: Callable[[], Answer], within: float | Deadline, *, every_s: float = CHECK_EVERY_S) -> Answer:
    """Check a condition until it is true; returns its first true value, or its last value at the deadline.

    The condition is checked at least once, and its errors end the wait. ``within`` is in seconds, or a deadline that
    several waits share.
    """
    deadline = within if isinstance(within, Deadline) else Deadline(within)
    while not (answer := condition()) and not deadline.passed:
        time.sleep(every_s)
    return answer


def retry(
    call: Callable[[], Answer],
    retriable: Callable[[Exception], bool],
    within: float | Deadline,
    *,
    every_s: float = RETRY_EVERY_S,
) -> Answer:
    """Make a call until it succeeds; raises its last error when the deadline has passed.

    The call is made at least once, and again only after errors that are ``retriable``.
    """
    deadline = within if isinstance(within, Deadline) else Deadline(within)
    while True:
        try:
            return call()
        except Exception as failure:
            if deadline.passed or not retriable(failure):
                raise
        time.sleep(every_s)
