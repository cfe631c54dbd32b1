"""One tick of the recovery sensor: observes a processor, and decides whether Dagster must start a recovery run now.

Each run has a key (Dagster's run key), because Dagster ignores a second request with the same key.

Invariants:
    - The Dagster sensor and the simulation in tests both use these functions.
    - An incident has one run at a time. If a run fails without closing its incident, for example because it was killed,
      the next run starts after a pause. After ``RUNS_PER_INCIDENT`` such runs, the incident is closed as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.infra.database.records import Deployment, Incident
from holdfast.processors.lifecycle.deploy.marking import judged
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.incidents import Notice, is_applied, notice, wait_on, waits_for, wanted
from holdfast.processors.lifecycle.recovery.limits import NEXT_RUN_AFTER_S, RUNS_PER_INCIDENT, Limits


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a tick for one processor."""

    #: Sentences about the processor, for the tick's log.
    sentences: tuple[str, ...]
    #: The finding that Holdfast's registry lacks the processor's newest deployment; if set, the tick observes nothing.
    old: Behind | None = None
    #: The observation; None while the processor is being deployed, or if Holdfast's registry lacks its newest
    #: deployment.
    seen: Notice | None = None
    #: The open incident, if a recovery run is due; otherwise None.
    due: Incident | None = None


def take_look(
    deployment: Deployment,
    waiting: Incident | None,
    world: World,
    *,
    limits: Limits,
    conditions: Conditions,
    answered_at: Mapping[str, datetime],
) -> Look:
    """Observe one processor, open its incident if needed, and decide whether a run is due.

    ``waiting`` is the processor's open incident, which the caller has read. ``answered_at`` is from the ``Notice`` of
    the previous tick.

    Raises:
        HoldfastError: The supervisor or Holdfast's registry did not answer.
    """
    name = deployment.processor
    old = judged(name, deployment, world)
    if old is not None:
        return Look((old.sentence,), old=old)
    if wanted(deployment, world).desired == "deploying":
        return Look((f"{name}: deploying",))
    seen = notice(name, world, limits, answered_at=answered_at)
    said = f"{name}: {seen.worst.sentence}"
    # The processor is healthy, but its incident can still be open if the run that should close it was killed.
    incident = seen.incident or waiting
    if incident is None or not incident.is_open:
        return Look((said,), seen=seen)
    if is_applied(name, world):
        return Look((said, f"Incident {incident.id} waits: an apply of {name} is open."), seen=seen)
    lasting = waits_for(incident, seen.diagnoses, conditions)
    if lasting:
        wait_on(incident, seen.worst, lasting, world)
        return Look((said, f"Incident {incident.id} waits: {lasting}"), seen=seen)
    return Look((said,), seen=seen, due=incident)


@dataclass(frozen=True, slots=True)
class Run:
    """A recovery run in Dagster that was requested for an incident."""

    id: str
    key: str
    created_at: datetime
    #: The time at which the run's incident was opened or retried; None for a run of an earlier Holdfast version.
    since: str | None
    is_finished: bool
    succeeded: bool
    #: End of the run, seconds since 1970; not valid for an unfinished run.
    ended_at: float


def next_run(incident_id: int, known: Sequence[Run], world: World, warn: Callable[[str], object]) -> str | None:
    """The key of the next run of an incident; None if no run is due, for example because a run is queued or running.

    Args:
        incident_id: Id of the incident. The incident is read after the runs were read, because a run closes its
            incident before it ends.
        known: The runs with the incident's number, newest first.
        world: Access to Holdfast's registry and the clock.
        warn: Called with warnings about earlier runs.
    """
    registry, now = world.registry, world.clock()
    incident = registry.incident(incident_id)
    if incident is None or not incident.is_open:
        return None
    runs = [run for run in known if is_of(run.since, run.created_at, incident)]
    if any(not run.is_finished for run in runs):
        return None
    name, holder = incident.processor, incident.claimed_by
    if holder is not None:
        if holder not in {run.id for run in runs} and incident.is_worked_on:
            return None  # A run of another Dagster instance works on the incident, so no run is due here.
        registry.release_incident(incident.id, holder)
        warn(f"Incident {incident.id} of {name} is still open after run {holder} ended.")
    # A successful run that left the incident open is no failure: the incident must wait for its cause to end.
    tried = [run for run in runs if not run.succeeded]
    if len(tried) >= RUNS_PER_INCIDENT:
        reason = f"{len(tried)} runs ended without closing the incident; the last is {tried[0].id}"
        registry.close_incident(incident.id, "failed", now, reason=reason)
        warn(f"Incident {incident.id} of {name} failed: {reason}")
        return None
    pause_s = NEXT_RUN_AFTER_S * 2 ** (len(tried) - 1)
    if tried and abs(now.timestamp() - max(run.ended_at for run in tried)) < pause_s:
        return None
    return next_key(incident, [run.key for run in runs])


def is_of(since: str | None, created_at: datetime, incident: Incident) -> bool:
    """Whether a run belongs to this incident, and was requested since the incident was opened or last retried.

    The incident's number is not enough: after a loss of Holdfast's registry, numbers start from 1 again. ``since`` is a
    tag of the run: the time at which its incident was opened or retried. A run of an earlier Holdfast version has no
    such tag (None), so the run's creation time ``created_at`` is compared.
    """
    opened_at = incident.retried_at or incident.opened_at
    return created_at >= opened_at if since is None else since == opened_at.isoformat()


def next_key(incident: Incident, keys_of_runs: Iterable[str]) -> str:
    """A run key that no earlier run has. Repeated calls return the same key until a run with this key exists.

    Dagster ignores a request with the key of an existing run. The key is not made from the number of runs, because runs
    can be deleted.
    """
    prefix = f"incident-{incident.id}-{incident.retried_at or incident.opened_at:%Y%m%dT%H%M%S.%f}-"
    numbers = [key.removeprefix(prefix) for key in keys_of_runs if key.startswith(prefix)]
    return f"{prefix}{max((int(each) for each in numbers if each.isdecimal()), default=0) + 1}"
