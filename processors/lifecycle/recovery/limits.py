"""The limits of recovery: time limits after which an observation is a failure, and maximum numbers of attempts.

Invariants:
    - Attempts are counted per incident, over all its recovery runs. Runs are counted per incident, too.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum recovery attempts for one incident; attempts that only waited do not count.
ATTEMPTS = 3
#: Maximum runs that end without closing their incident; after the last one the incident is closed as failed.
RUNS_PER_INCIDENT = 3
#: Seconds of pause before the next run after such a run; doubled for each further run.
NEXT_RUN_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits after which an observation counts as a failure; in seconds unless a comment says otherwise."""

    #: Maximum time without a heartbeat of the processing loop.
    stuck_after_s: float = 30.0
    #: Maximum time from the start of the process to its first answer.
    start_s: float = 60.0
    #: Maximum time from a requested stop to the start that follows it.
    stop_s: float = 60.0
    #: Time after a failed incident until the same processor may open a new one without a new deployment.
    retry_s: float = 900.0
    #: Maximum number of incidents of one processor within ``retry_s``.
    incidents: int = 5
