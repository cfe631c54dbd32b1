"""The limits of recovery: when an observation is a failure, and how often recovery is tried.

Invariants:
    - Attempts are counted within a run of recovery, and runs within an incident.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum recovery attempts for one incident; attempts that only waited do not count.
ATTEMPTS = 3
#: Runs that may end without closing their incident; after the last one the incident is closed as failed.
RUNS_PER_INCIDENT = 3
#: Pause after such a run before the next one, seconds; doubled for each further run.
NEXT_RUN_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits after which an observation counts as a failure; seconds unless a comment says otherwise."""

    #: Time without a heartbeat of the processing loop.
    stuck_after_s: float = 30.0
    #: From the start of the process to its first answer.
    start_s: float = 60.0
    #: From a requested stop to the start that follows it.
    stop_s: float = 60.0
    #: Pause after a failed incident before a new one is opened for the same processor without a new deployment.
    retry_s: float = 900.0
    #: Maximum number of incidents of one processor within ``retry_s``.
    incidents: int = 5
