"""The age of a recorded moment, even if the clock may have been set since.

Invariants:
    - An age never comes from a moment that lies ahead: a clock that was hours ahead and is right again would keep
      recovery waiting for hours. Such a moment counts as long ago.
"""

from __future__ import annotations

import math
from datetime import datetime

#: Clocks of two machines may differ by this, seconds; a later moment was recorded by a wrong clock.
AHEAD_S = 60.0


def is_ahead(moment: datetime | None, now: datetime) -> bool:
    """Whether a moment was recorded by a clock that was ahead of ``now``'s clock."""
    return moment is not None and (moment - now).total_seconds() > AHEAD_S


def age_s(moment: datetime | None, now: datetime) -> float:
    """Seconds since a moment; 0 for no moment, and infinite for a moment in the future."""
    if moment is None:
        return 0.0
    return math.inf if is_ahead(moment, now) else max(0.0, (now - moment).total_seconds())
