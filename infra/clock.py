"""The engine's clock. The simulation passes a clock of its own; everything else uses ``SystemClock``."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases."""

    def time(self) -> float:
        """Seconds since 1970 UTC; may jump in both directions."""


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """Seconds since the machine started, in most systems."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970 UTC by the machine's clock."""
        return time.time()
