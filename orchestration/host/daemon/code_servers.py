"""Decides when the daemon restarts a code server that ended, and when it replaces all code servers. Pure functions.

Invariants:
    - A code server that ended is restarted within seconds, without a restart of other code servers. So recovery never
      waits for an import of the project's code. If a code server ends soon after each start, the backoff grows up to
      one minute.
    - An edit of the code is noticed within seconds. Then all code servers are replaced together, at the earliest half a
      minute after their start. Without an edit, they are replaced only for two reasons. One code server could not load
      its definitions (at the earliest one minute after their start), or one code server is older than an hour.
"""

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Maximum age of a code server, seconds. It is replaced even without an edit, because packages may have changed.
AGE_MAX_S = 3600.0
#: Minimum age, in seconds, of code servers that are replaced because one of them could not load its definitions; the
#: same as in Dagster.
AGE_MIN_S = 60.0
#: Minimum age, in seconds, of a code server that is replaced after an edit. It is short, so that an import that the
#: edit has broken is reported within a minute.
EDITED_MIN_S = 30.0
#: Seconds from the start of a code server to its next restart, if it ends again. The first restart is immediate. The
#: second restart waits this long, and each further restart waits twice as long, up to `AGE_MIN_S`. After `AGE_MIN_S`
#: without an end, the backoff starts again.
ENDED_AGAIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """The facts about one code server.

    ``error`` is the error if it did not start or could not load its definitions. ``ended`` says how its process ended,
    for example ``exit code 1``; None while it runs. ``age_s`` is seconds since its start.
    """

    age_s: float
    error: str | None = None
    ended: str | None = None
    location: str = ""


def to_start(servers: Iterable[Server], early: Mapping[str, int]) -> list[Server]:
    """Code servers that have ended and whose backoff is over, so that they must be restarted now.

    Args:
        servers: All code servers.
        early: Location -> number of its restarts since a code server of this location lived for ``AGE_MIN_S``.
    """
    return [
        each for each in servers if each.ended is not None and each.age_s >= _patience_s(early.get(each.location, 0))
    ]


def settled(servers: Iterable[Server]) -> list[str]:
    """The locations whose code server has run for ``AGE_MIN_S`` seconds, so that their backoff is reset."""
    return [each.location for each in servers if each.ended is None and each.age_s >= AGE_MIN_S]


def _patience_s(early: int) -> float:
    """The minimum seconds between two starts of a code server (backoff).

    ``early`` is the number of restarts since the code server last ran for ``AGE_MIN_S``.
    """
    return min(AGE_MIN_S, ENDED_AGAIN_S * 2.0 ** (early - 1)) if early else 0.0


def outdated(servers: Iterable[Server], change: str | None) -> str | None:
    """The reason to replace all code servers now, as text for the log; None if all code servers are kept.

    ``change`` describes the change of the code since their start; None if the code did not change.
    """
    found = list(servers)
    ages_s = [each.age_s for each in found]
    if not found or min(ages_s) < EDITED_MIN_S:
        return None
    if change is not None:
        return change
    if min(ages_s) < AGE_MIN_S:
        return None
    failed = next((each.error for each in found if each.error is not None), None)
    if failed is not None:
        return f"it could not load its definitions: {failed}"
    return f"it is {max(ages_s):.0f} s old" if max(ages_s) > AGE_MAX_S else None


def end_of(code: int) -> str:
    """Text about the end of a process by its return code, for example ``killed by SIGKILL`` or ``exit code 1``."""
    return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"exit code {code}"
