"""The times of leases (``leases``), for readers that load no database library."""

from __future__ import annotations

#: Interval at which a holder records that it is alive, seconds.
BEAT_S = 5.0
#: A holder that records nothing for this time counts as dead, seconds.
SILENT_S = 60.0
