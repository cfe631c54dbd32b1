"""Time as the engine asks for it, so that a simulation can give it its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds since any moment; never goes back."""
        ...

    def time(self) -> float:
        """Seconds since 1970 UTC; may jump, also backwards."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return time.monotonic()

    def time(self) -> float:
        """See ``Clock.time``."""
        return time.time()
