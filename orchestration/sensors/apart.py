"""Recovery, webhook and upkeep in a separate code location: decides which of two copies is active.

A project's own definitions contain Holdfast's definitions. When such a module can't be imported, nothing in its code
location runs. So `holdfast up` gives a project two locations: its own location, and `recovery`, which imports no code
of the project. The copies in the project's location do nothing while the copies in `recovery` tick. If a workspace has
only the project's module, the copies there are active.

Invariants:
    - A copy that is silent for ``FRESH_S`` is replaced by the other one. Two that work at once do no harm: the registry
      has one open incident for a processor, and one run that holds it.
"""

import time

import dagster as dg

#: Name of the code location.
LOCATION = "recovery"
#: The copy in the project's location becomes active when the other copy did not tick for this time, seconds.
FRESH_S = 60.0
SKIPPED = f"The code location `{LOCATION}` does this."

_KEY = "holdfast/apart/"


def record_tick(instance: dg.DagsterInstance, name: str) -> None:
    """Record a tick of the copy in the separate location."""
    instance.daemon_cursor_storage.set_cursor_values({f"{_KEY}{name}": f"{time.time():.3f}"})


def works_apart(instance: dg.DagsterInstance, name: str) -> bool:
    """Whether the copy in the separate location has ticked recently."""
    told = instance.daemon_cursor_storage.get_cursor_values({f"{_KEY}{name}"}).get(f"{_KEY}{name}")
    try:
        return told is not None and abs(time.time() - float(told)) < FRESH_S
    except ValueError:
        return False


def must_skip(instance: dg.DagsterInstance, name: str, *, apart: bool) -> bool:
    """Whether a copy must do nothing now; a copy that is ``apart`` records its tick."""
    if apart:
        record_tick(instance, name)
        return False
    return works_apart(instance, name)
