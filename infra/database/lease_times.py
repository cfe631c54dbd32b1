"""Heartbeat interval and timeout of leases; separate from ``leases`` so that no database library is imported."""

from __future__ import annotations

#: Interval, in seconds, at which the holder of a lease (the process that may change a processor) writes a heartbeat.
BEAT_S = 5.0
#: A holder that wrote no heartbeat for this time counts as dead, seconds. Then another process may take the lease.
SILENT_S = 60.0
