"""How one worker runs: the values that ``Application`` was given, frozen."""

from __future__ import annotations

from dataclasses import dataclass

#: Uncommitted writes above this commit early, in bytes.
OVERLAY_BYTES_MAX = 64 << 20
#: Records asked for in one poll.
RECORDS_PER_POLL = 2_000
#: The commit trigger is looked at after so many records.
RECORDS_PER_SLICE = 500


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Times are seconds. ``commit_every`` 0 means: by time only."""

    group: str
    exactly_once: bool
    offset_reset: str
    commit_interval_s: float
    commit_every: int
    broker_timeout_s: float
