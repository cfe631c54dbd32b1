"""The clock of a modelled life. Days pass in no time, and the commits of Iceberg are shown by it.

Iceberg stamps each commit with the machine's clock. ``shown`` says when that was by this one, and ``real`` the reverse.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

#: 2026-03-02, a moment that all machines' clocks are past.
BEGIN = 1_772_409_600.0
#: What a second of the machine's counts for; so no commit is later than the next mark.
_SLOWER = 1e-6


class Clock:
    """Seconds since 1970 that move by ``advance`` alone, a whole number of milliseconds each time."""

    def __init__(self) -> None:
        self._now = BEGIN
        self._marks = [(_real_now(), BEGIN)]

    def time(self) -> float:
        """Now."""
        return self._now

    def moment(self) -> datetime:
        """Now, with a zone."""
        return datetime.fromtimestamp(self._now, UTC)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is committed from now on is of later."""
        self._now = round(self._now + seconds, 3)
        self._marks.append((_real_now(), self._now))

    def shown(self, real: float) -> float:
        """The moment of a commit that the machine's clock stamped ``real``."""
        at, shown = next((mark for mark in reversed(self._marks) if mark[0] <= real), self._marks[0])
        return shown + max(0.0, real - at) * _SLOWER

    def real(self, shown: float) -> float:
        """The machine's time up to which commits are older than this moment."""
        if shown <= BEGIN:
            return 0.0
        at, begin = next(mark for mark in reversed(self._marks) if mark[1] < shown)
        later = next((mark[0] for mark in self._marks if mark[1] >= shown), _real_now() + 1)
        return min(later, at + (shown - begin) / _SLOWER)


def _real_now() -> float:
    """Iceberg's stamps are whole milliseconds, so marks are, too."""
    return int(time.time() * 1000) / 1000
