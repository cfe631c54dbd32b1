"""Heartbeat interval and timeout of leases; separate from ``leases`` so that no database library is imported."""

from __future__ import annotations

#: Interval, in seconds, at which the holder of a lease (the process that may change a processor) writes a heartbeat.
BEAT_S = 5.0
#: Seconds without a heartbeat after which the holder of a lease counts as dead. Another process may then take the lease
#: (the right to change a processor).
SILENT_S = 60.0
