"""Notice: look at a processor, say what is wrong with it, and file an incident if it needs one: the sensor's part.

Invariants:
    - Looking changes nothing but the registry.
    - A processor has one open incident at most; one that comes up and dies again and again gets a last one, that asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from holdfast.infra.database.records import Incident
from holdfast.infra.deploy.programs import ProgramStatus
from holdfast.processors.lifecycle.deploy.deployment import look
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.stages import RunProcessor, StopProcessor
from holdfast.processors.lifecycle.ports import SILENT_S, ProcessorStatus, World
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.diagnosis import (
    Dead,
    Diagnosis,
    Failed,
    Healthy,
    Limits,
    NotDeployed,
    Starting,
    Stuck,
    Waiting,
    admits_incident,
    diagnose,
    flaps,
)
from holdfast.processors.lifecycle.recovery.faults import PASSING, kind_of
from holdfast.processors.lifecycle.recovery.remedies import Ask, Case, Wait, remedy_for

log = structlog.get_logger(__name__)

#: Which diagnosis names the incident when instances differ.
_GRAVITY: tuple[type[Diagnosis], ...] = (Failed, Dead, Stuck, Waiting, Starting, NotDeployed, Healthy)
#: An incident that ended longer ago than this tells nothing of the next, seconds.
BEFORE_S = 900.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One instance: what was seen, and what it means."""

    program: ProgramStatus | None
    status: ProcessorStatus | None
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Notice:
    """What a look at a processor led to."""

    #: By slot.
    observations: Mapping[str, Observation]
    #: The open incident, if the processor needs recovery and deserves one.
    incident: Incident | None
    #: Whether this look opened it.
    opened: bool
    #: When each slot last answered: to be passed to the next look.
    answered_at: Mapping[str, datetime]

    @property
    def diagnoses(self) -> dict[str, Diagnosis]:
        """By slot, what is wrong with it."""
        return {slot: seen.diagnosis for slot, seen in self.observations.items()}

    @property
    def worst(self) -> Diagnosis:
        """The gravest diagnosis."""
        return worst(self.diagnoses)


def observe(
    processor: str,
    world: World,
    limits: Limits,
    *,
    patience_s: float = 0.0,
    answered_at: Mapping[str, datetime] | None = None,
) -> dict[str, Observation]:
    """Look at every slot that the processor is meant to run in; empty when it was never deployed.

    Args:
        processor: Its name.
        world: Where it runs. A supervisor that doesn't run has no programs.
        limits: What may last how long.
        patience_s: How long to ask an instance again that has a process but doesn't answer.
        answered_at: When each slot last answered, as far as the caller remembers (see ``diagnose``).
    """
    desired = world.registry.deployment(processor)
    if desired is None:
        return {}
    up = world.deployer.running()
    found: dict[str, Observation] = {}
    for slot in desired.slots:
        program, status = look(slot, processor, world, patience_s=patience_s) if up else (None, None)
        moments = [(answered_at or {}).get(slot)]
        if program is not None and status is None:
            moments.append(world.statuses(processor, slot).last_heartbeat(program.pid))
        answered = max((moment for moment in moments if moment is not None), default=None)
        diagnosis = diagnose(program, status, desired, world.clock(), limits, answered_at=answered)
        found[slot] = Observation(program, status, diagnosis)
    return found


def notice(
    processor: str, world: World, limits: Limits, *, answered_at: Mapping[str, datetime] | None = None
) -> Notice:
    """Look at a processor and file an incident if it needs recovery: the body of a recovery sensor.

    While an incident is open, or when another isn't admitted (see ``admits_incident``), none is opened; nor while an
    apply is under way, or one that starts and stops workers itself was broken off and has to go on with its plan: a
    worker that is started in between would work on what is half changed. One that counts on workers that work, and
    never starts any, could not go on without recovery.
    """
    seen = observe(processor, world, limits, answered_at=answered_at)
    now = world.clock()
    fresh = {slot: now for slot, each in seen.items() if each.status is not None and _lives(each.program)}
    answered = {slot: moment for slot, moment in (answered_at or {}).items() if slot in seen} | fresh
    gravest = worst({slot: each.diagnosis for slot, each in seen.items()})
    if not gravest.needs_recovery or is_applied(processor, world, now):
        return Notice(seen, None, False, answered)
    recent = world.registry.incidents(limits.incidents, processor=processor)
    desired = world.registry.deployment(processor)
    detail = {slot: each.diagnosis.sentence for slot, each in seen.items()}
    if flaps(recent, desired, now, limits):
        return Notice(seen, _stop_trying(processor, world, detail, limits), True, answered)
    if not admits_incident(recent, desired, now, limits, said=frozenset({gravest.sentence})):
        return Notice(seen, None, False, answered)
    incident, opened = world.registry.open_incident(processor, gravest.kind, detail, now)
    if opened:
        log.warning("incident.opened", incident=incident.id, processor=processor, kind=gravest.kind, detail=detail)
    return Notice(seen, incident, opened, answered)


def _stop_trying(processor: str, world: World, detail: Mapping[str, str], limits: Limits) -> Incident:
    """File the incident of a processor that comes up and dies again and again; it is closed at once, and asks."""
    now = world.clock()
    incident, _ = world.registry.open_incident(processor, "crash-loop", detail, now)
    reason = (
        f"It came up and died again {limits.incidents} times within {limits.retry_s:.0f} s: restarts don't help. The "
        f"last time: {' '.join(detail.values())}"
    )
    action = f"see `holdfast logs {processor}`, mend the cause, then: holdfast incidents retry {incident.id}"
    world.registry.decide_incident(incident.id, "crash-loop", Ask.name, action)
    world.registry.note_incident(incident.id, "ask", f"{reason} What to do: {action}", now)
    world.registry.close_incident(incident.id, "failed", now, reason=reason)
    log.error("incident.crash_loop", incident=incident.id, processor=processor, reason=reason)
    return incident


def waits_for(incident: Incident, found: Diagnosis, conditions: Conditions) -> str:
    """Why no run is asked for yet, as a sentence; empty when one is due.

    Args:
        incident: The processor's open incident.
        found: What is wrong with it now.
        conditions: Whether what is waited for is there.
    """
    if isinstance(found, Waiting) or (incident.remedy == Wait.name and isinstance(found, Starting)):
        return found.sentence
    remedy = remedy_for(found, Case(incident.processor)) if found.needs_recovery else None
    if not isinstance(remedy, Wait) and incident.remedy == Wait.name:
        remedy = Wait(kind_of(incident.kind))
    return conditions.lasts(remedy) if isinstance(remedy, Wait) else ""


def wait_on(incident: Incident, found: Diagnosis, why: str, world: World) -> None:
    """Have it on the record, once, that an incident waits.

    Args:
        incident: The incident, as it was read just now.
        found: What is wrong with its processor.
        why: Why there is to be waited.
        world: Where the registry is.
    """
    kind = found.kind if found.kind in PASSING else kind_of(incident.kind)
    if (incident.remedy, incident.kind) == (Wait.name, kind):
        return
    world.registry.decide_incident(incident.id, kind, Wait.name, "")
    world.registry.note_incident(incident.id, "wait", f"{why} {Wait(kind).sentence}", world.clock())


def said_before(incident: Incident, recent: Sequence[Incident]) -> frozenset[str]:
    """What was wrong before restarts that did not mend it, in the sentences of then.

    Args:
        incident: The incident that is worked on.
        recent: The processor's newest incidents, newest first.
    """
    if incident.retried_at is not None:
        return frozenset()
    said = frozenset(incident.detail.values()) if incident.attempts else frozenset()
    for each in recent:
        if each.id >= incident.id or each.closed_at is None:
            continue
        if (incident.opened_at - each.closed_at).total_seconds() < BEFORE_S:
            return said | frozenset(each.detail.values())
        break
    return said


def is_applied(processor: str, world: World, now: datetime) -> bool:
    """Whether a plan is carried out on this processor, or was broken off and has to go on."""
    for begun in world.registry.journal.applies(1, processor=processor, open_only=True):
        if begun.holder is not None and (now - begun.beat_at).total_seconds() < SILENT_S:
            return True
        plan = plans.decode(begun.plan)
        starts_or_stops = any(isinstance(stage, RunProcessor | StopProcessor) for stage in plan.stages)
        return plan.after_kill == "go on" and starts_or_stops
    return False


def _lives(program: ProgramStatus | None) -> bool:
    return program is not None and program.alive


def worst(diagnoses: Mapping[str, Diagnosis]) -> Diagnosis:
    """The gravest of several instances' diagnoses; of none at all, that nothing is deployed."""
    return min(diagnoses.values(), key=lambda each: _GRAVITY.index(type(each)), default=NotDeployed())
