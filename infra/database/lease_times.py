"""Heartbeat interval and timeout of leases; separate from ``leases`` so that no database library is imported."""

from __future__ import annotations

#: Interval at which the holder of a lease writes a heartbeat, seconds.
BEAT_S = 5.0
#: A holder without a heartbeat for this time counts as dead, seconds.
SILENT_S = 60.0
