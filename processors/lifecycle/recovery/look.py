"""One look of the recovery sensor at one processor: what it saw, and the incident for which a run is due.

Invariants:
    - The sensor in Dagster and the model of operation both decide here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from holdfast.infra.database.records import Deployment, Incident
from holdfast.processors.lifecycle.deploy.marking import judged
from holdfast.processors.lifecycle.plans.behind import Behind
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.diagnosis import Limits
from holdfast.processors.lifecycle.recovery.incidents import Notice, is_applied, notice, wait_on, waits_for, wanted


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a tick."""

    #: The tick's sentences about the processor.
    sentences: tuple[str, ...]
    #: How the registry is older than the processor; then the tick observes nothing else.
    old: Behind | None = None
    #: The observation; None while the processor is deployed, and with an older registry.
    seen: Notice | None = None
    #: The open incident, if a run for it is due.
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

    ``waiting`` is its open incident, read before; ``answered_at`` comes from the previous tick (``Notice``).

    Raises:
        HoldfastError: The supervisor or the registry did not answer.
    """
    name = deployment.processor
    old = judged(name, deployment, world)
    if old is not None:
        return Look((old.sentence,), old=old)
    if wanted(deployment, world).desired == "deploying":
        return Look((f"{name}: deploying",))
    seen = notice(name, world, limits, answered_at=answered_at)
    said = f"{name}: {seen.worst.sentence}"
    # a healthy processor may still have an open incident, when the run that should have closed it was killed
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
