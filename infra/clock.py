"""The engine's clock. Production code uses ``SystemClock``; the simulation replaces it by a simulated clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The interface through which the engine reads the time."""

    def monotonic(self) -> float:
        """Seconds since an unspecified start; never decreases, even if the time of day is changed."""

    def time(self) -> float:
        """Seconds since 1970 UTC; may jump forward or backward if the clock is set."""


class SystemClock:
    """The real clock of this machine."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; on most systems, the start of the machine."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970 UTC by the machine's clock."""
        return time.time()
