"""Decides which copy of a sensor is active: the copy in the project's code location, or the copy in `recovery`.

A project's own definitions contain Holdfast's sensors for recovery, webhook and upkeep. If the project's module can't
be imported, no sensor of its code location runs. So `holdfast up` gives Dagster two code locations: the project's, and
`recovery`, which imports no code of the project. While the copies in `recovery` tick, the copies in the project's
location do nothing. If a workspace has only the project's location, the copies in the project's location are active.

Invariants:
    - If the copy in `recovery` did not tick for ``FRESH_S``, the copy in the project's location becomes active.
    - Two active copies do no harm, because Holdfast's registry allows only one open incident for each processor, and
      only one recovery run for this incident.
"""

import time

import dagster as dg

#: Name of the code location that imports no code of the project.
LOCATION = "recovery"
#: Seconds without a tick of the copy in `recovery` after which the copy in the project's location becomes active.
FRESH_S = 60.0
SKIPPED = f"The code location `{LOCATION}` does this."

_KEY = "holdfast/apart/"


def record_tick(instance: dg.DagsterInstance, name: str) -> None:
    """Record in Dagster's storage that the copy of this sensor in the code location `recovery` ticks now."""
    instance.daemon_cursor_storage.set_cursor_values({f"{_KEY}{name}": f"{time.time():.3f}"})


def works_apart(instance: dg.DagsterInstance, name: str) -> bool:
    """Whether the copy of this sensor in the code location `recovery` has ticked in the last ``FRESH_S`` seconds."""
    told = instance.daemon_cursor_storage.get_cursor_values({f"{_KEY}{name}"}).get(f"{_KEY}{name}")
    try:
        return told is not None and abs(time.time() - float(told)) < FRESH_S
    except ValueError:
        return False


def must_skip(instance: dg.DagsterInstance, name: str, *, apart: bool) -> bool:
    """Whether this copy of a sensor must do nothing now.

    ``apart`` is True for the copy in the code location `recovery`; that copy records its tick and is always active.
    """
    if apart:
        record_tick(instance, name)
        return False
    return works_apart(instance, name)
