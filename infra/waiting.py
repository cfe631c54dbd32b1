"""Deadlines, waits for a condition, and retries, for all code except the engine.

The engine uses its own ``Clock`` and never sleeps. All other code that waits for a process, a topic or a lock uses this
module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

#: Default pause between two checks of a condition, seconds.
CHECK_EVERY_S = 0.05
#: Default pause between two attempts of a retried call, seconds.
RETRY_EVERY_S = 0.1


class Deadline:
    """The time at which a caller stops waiting: ``within_s`` seconds from now, on the monotonic clock."""

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
    """Call ``condition`` until its value is true; returns the first true value, or the last value at the deadline.

    ``condition`` is called at least once; an error in it ends the wait. ``within`` is seconds, or a ``Deadline`` that
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
    """Repeat ``call`` until it succeeds; returns its result, or raises its last error after the deadline.

    ``call`` is made at least once, and repeated only if ``retriable`` returns True for its error.
    """
    deadline = within if isinstance(within, Deadline) else Deadline(within)
    while True:
        try:
            return call()
        except Exception as failure:
            if deadline.passed or not retriable(failure):
                raise
        time.sleep(every_s)
