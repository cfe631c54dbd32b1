"""Computes the age of a recorded time, also if the machine's clock was changed after the recording.

Invariants:
    - A recorded time in the future has an infinite age, because it was written while the clock was wrong. So recovery
      does not wait until the clock reaches this time.
"""

from __future__ import annotations

import math
from datetime import datetime

#: Maximum difference between the clocks of two machines, seconds.
#: A time that is further in the future was recorded by a wrong clock.
AHEAD_S = 60.0


def is_ahead(moment: datetime | None, now: datetime) -> bool:
    """Whether a time is more than ``AHEAD_S`` seconds in the future, so that a wrong clock recorded it."""
    return moment is not None and (moment - now).total_seconds() > AHEAD_S


def age_s(moment: datetime | None, now: datetime) -> float:
    """Seconds since a time; 0 for None, and infinite for a time in the future."""
    if moment is None:
        return 0.0
    return math.inf if is_ahead(moment, now) else max(0.0, (now - moment).total_seconds())
