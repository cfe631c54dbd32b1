"""Recovery, webhook and upkeep in a code location of their own: which of two copies works.

A project's own definitions contain Holdfast's. When such a module can't be imported, everything in its code location
stands still. So `holdfast up` gives a project two locations: its own one, and `recovery`, which imports no code of the
project. The copies in the project's location do nothing while those of `recovery` tick. Where a workspace has only the
project's module, they work.

Invariants:
    - A copy that is silent for ``FRESH_S`` is replaced by the other one. Two that work at once do no harm: the registry
      has one open incident for a processor, and one run that holds it.
"""

import time

import dagster as dg

#: Name of the code location.
LOCATION = "recovery"
#: The other copy works when this one did not tick for so long, seconds.
FRESH_S = 60.0
SKIPPED = f"The code location `{LOCATION}` does this."

_KEY = "holdfast/apart/"


def record_tick(instance: dg.DagsterInstance, name: str) -> None:
    """Record that the copy in the location of its own ticks."""
    instance.daemon_cursor_storage.set_cursor_values({f"{_KEY}{name}": f"{time.time():.3f}"})


def works_apart(instance: dg.DagsterInstance, name: str) -> bool:
    """Whether the copy in the location of its own has ticked lately."""
    told = instance.daemon_cursor_storage.get_cursor_values({f"{_KEY}{name}"}).get(f"{_KEY}{name}")
    try:
        return told is not None and abs(time.time() - float(told)) < FRESH_S
    except ValueError:
        return False


def must_skip(instance: dg.DagsterInstance, name: str, *, apart: bool) -> bool:
    """Whether a copy does nothing now; one that is ``apart`` records its tick."""
    if apart:
        record_tick(instance, name)
        return False
    return works_apart(instance, name)
