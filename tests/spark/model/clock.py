"""The clock of a modelled store. Days pass at once, and Iceberg's commit times are converted to this clock.

Iceberg stamps each commit with the machine's clock. ``shown`` converts such a time to this clock, and ``real`` converts
it back.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

#: 2026-03-02, which is in the past on all machines.
BEGIN = 1_772_409_600.0
#: How far this clock moves per second of the machine's clock. The factor is so small that all commits between two calls
#: of ``advance`` get nearly the same time.
_SLOWER = 1e-6


class Clock:
    """A clock in seconds since the epoch. Only ``advance`` moves it, in whole milliseconds."""

    def __init__(self) -> None:
        self._now = BEGIN
        self._marks = [(_real_now(), BEGIN)]

    def time(self) -> float:
        """The current time, in seconds since the epoch."""
        return self._now

    def moment(self) -> datetime:
        """The current time, with a time zone."""
        return datetime.fromtimestamp(self._now, UTC)

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Later commits get later times."""
        self._now = round(self._now + seconds, 3)
        self._marks.append((_real_now(), self._now))

    def shown(self, real: float) -> float:
        """This clock's time for a commit that the machine's clock stamped ``real``."""
        at, shown = next((mark for mark in reversed(self._marks) if mark[0] <= real), self._marks[0])
        return shown + max(0.0, real - at) * _SLOWER

    def real(self, shown: float) -> float:
        """Return the machine's time that separates commits before this moment from later commits."""
        if shown <= BEGIN:
            return 0.0
        at, begin = next(mark for mark in reversed(self._marks) if mark[1] < shown)
        later = next((mark[0] for mark in self._marks if mark[1] >= shown), _real_now() + 1)
        return min(later, at + (shown - begin) / _SLOWER)


def _real_now() -> float:
    """The machine's time in whole milliseconds, as in Iceberg's commit times."""
    return int(time.time() * 1000) / 1000
