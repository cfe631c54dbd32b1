"""The limits of recovery: time limits after which an observation is a failure, and maximum numbers of attempts.

Invariants:
    - Attempts are counted per incident, over all its recovery runs. Runs are counted per incident.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum number of recovery attempts for one incident; attempts that only waited do not count.
ATTEMPTS = 3
#: Maximum number of failed runs that leave their incident open; then the incident is closed as failed.
RUNS_PER_INCIDENT = 3
#: Seconds of pause between a failed run and the next run of an incident; the pause doubles after each failed run.
NEXT_RUN_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits after which an observation counts as a failure. Times are in seconds."""

    #: Maximum time without a heartbeat of the processing loop.
    stuck_after_s: float = 30.0
    #: Maximum time from the start of the process to its first answer.
    start_s: float = 60.0
    #: Maximum time that a requested stop may take. Also the maximum time between the end of a stopped process and its
    #: next start.
    stop_s: float = 60.0
    #: Time after a failed incident before the processor may open another incident, unless it is deployed again earlier.
    retry_s: float = 900.0
    #: Maximum number of incidents of one processor within ``retry_s``. The only limit that is not a time.
    incidents: int = 5
