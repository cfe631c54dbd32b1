"""When the daemon starts a code server again, and when it replaces all of them: facts in, decision out.

Invariants:
    - A code server that ended is started again within seconds, alone: recovery waits for no import of the project. One
      that ends soon after each start is started again less and less often, down to once a minute.
    - An edit is noticed within seconds. Code servers that run, or that could not load their code, are replaced
      together: not within half a minute after their start, and without an edit not within a minute.
"""

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: A code server is replaced after this time also without a change, seconds: packages may have been installed.
AGE_MAX_S = 3600.0
#: No code server that runs is replaced within this time after its start without an edit, seconds: Dagster's own
#: interval.
AGE_MIN_S = 60.0
#: The same after an edit: an import that is broken now is told within a minute.
EDITED_MIN_S = 30.0
#: A code server that ended is started again at once. If the next one ends, too, it is started again at this age,
#: seconds, and the one after it at twice this age, up to `AGE_MIN_S`, until one lives that long.
ENDED_AGAIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """One code server as the daemon sees it.

    ``error`` is why it, or its definitions, could not be loaded, and ``ended`` is how it ended after it was loaded.
    """

    age_s: float
    error: str | None = None
    ended: str | None = None
    location: str = ""


def to_start(servers: Iterable[Server], early: Mapping[str, int]) -> list[Server]:
    """The code servers that ended and are started again now.

    Args:
        servers: All of them.
        early: Location -> how often it was started again since one lived for ``AGE_MIN_S``.
    """
    return [
        each for each in servers if each.ended is not None and each.age_s >= _patience_s(early.get(each.location, 0))
    ]


def settled(servers: Iterable[Server]) -> list[str]:
    """The locations whose code server has lived long enough that its end would be its first one."""
    return [each.location for each in servers if each.ended is None and each.age_s >= AGE_MIN_S]


def _patience_s(early: int) -> float:
    """The age at which a code server that ended is started again, seconds."""
    return min(AGE_MIN_S, ENDED_AGAIN_S * 2.0 ** (early - 1)) if early else 0.0


def outdated(servers: Iterable[Server], change: str | None) -> str | None:
    """Why all code servers must be replaced, as the end of a log line; None when they stay.

    ``change`` is what changed in the code since they were started.
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
    """How a process ended, by its exit code."""
    return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"exit code {code}"
