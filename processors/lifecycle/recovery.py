"""Recover: diagnose → fence → restart → verify, once per incident, with every step on the incident's timeline.

Invariants:
    - Nothing is started in a slot before its old process is gone.
    - Only sick instances are touched.
    - One run works on an incident; the attempts at it are counted in the registry, so that a run that died in
      the middle used one up, and a run that takes over can't go on for ever.
    - Running it again does no harm: a closed incident is left alone, a processor that came back is only verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeVar

import structlog

from infra.database.records import Incident, Outcome
from infra.deploy.programs import ProgramStatus
from infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from processors.lifecycle.deployment import (
    PATIENCE_S,
    OnProgress,
    Rollout,
    look,
    wait_ready,
)
from processors.lifecycle.diagnosis import (
    Dead,
    Diagnosis,
    Failed,
    Healthy,
    Limits,
    NotDeployed,
    Starting,
    Stuck,
    admits_incident,
    diagnose,
)
from processors.lifecycle.ports import ProcessorStatus, World

__all__ = [
    "Dead",
    "Diagnosis",
    "Failed",
    "Healthy",
    "IncidentUnknown",
    "Limits",
    "NotDeployed",
    "Notice",
    "Observation",
    "RecoveryPolicy",
    "RecoveryResult",
    "Starting",
    "Stuck",
    "admits_incident",
    "diagnose",
    "notice",
    "observe",
    "recover",
    "worst",
]

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Which diagnosis names the incident when instances differ.
_GRAVITY: tuple[type[Diagnosis], ...] = (Failed, Dead, Stuck, Starting, NotDeployed, Healthy)


class IncidentUnknown(HoldfastError):
    """There is no incident of that id."""


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """How hard to try."""

    limits: Limits = field(default_factory=Limits)
    #: Attempts an incident.
    attempts: int = 3
    #: How long a restarted processor may take until it works on every partition, seconds.
    ready_s: float = 120.0
    #: Before the second attempt, seconds; doubled before each further one.
    pause_s: float = 2.0


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """How a recovery ended; ``elsewhere`` means that another run works on the incident."""

    outcome: Outcome | Literal["elsewhere"]
    reason: str
    attempts: int
    seconds: float


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
    def worst(self) -> Diagnosis:
        """The gravest diagnosis."""
        return worst({slot: seen.diagnosis for slot, seen in self.observations.items()})


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

    While an incident is open, or when another isn't admitted (see ``admits_incident``), none is opened.
    """
    seen = observe(processor, world, limits, answered_at=answered_at)
    now = world.clock()
    fresh = {slot: now for slot, each in seen.items() if each.status is not None and _lives(each.program)}
    answered = {slot: moment for slot, moment in (answered_at or {}).items() if slot in seen} | fresh
    gravest = worst({slot: each.diagnosis for slot, each in seen.items()})
    if not gravest.needs_recovery:
        return Notice(seen, None, False, answered)
    recent = world.registry.incidents(limits.incidents, processor=processor)
    if not admits_incident(recent, world.registry.deployment(processor), now, limits):
        return Notice(seen, None, False, answered)
    detail = {slot: each.diagnosis.sentence for slot, each in seen.items()}
    incident, opened = world.registry.open_incident(processor, gravest.kind, detail, now)
    if opened:
        log.warning("incident.opened", incident=incident.id, processor=processor, kind=gravest.kind, detail=detail)
    return Notice(seen, incident, opened, answered)


def _lives(program: ProgramStatus | None) -> bool:
    return program is not None and program.alive


def worst(diagnoses: Mapping[str, Diagnosis]) -> Diagnosis:
    """The gravest of several instances' diagnoses; of none at all, that nothing is deployed."""
    return min(diagnoses.values(), key=lambda each: _GRAVITY.index(type(each)), default=NotDeployed())


def recover(
    incident_id: int,
    rollout: Rollout,
    world: World,
    *,
    run_id: str,
    policy: RecoveryPolicy | None = None,
    progress: OnProgress | None = None,
) -> RecoveryResult:
    """Bring the processor of an open incident back and close the incident, resolved or failed.

    Args:
        incident_id: The incident.
        rollout: How the processor is meant to run.
        world: What to act through.
        run_id: Who works on it; the same run may call again after an interruption.
        policy: How hard to try.
        progress: Called at each look while it is waited for.

    Raises:
        IncidentUnknown: There is no such incident.
    """
    began = time.monotonic()
    incident = world.registry.incident(incident_id)
    if incident is None:
        raise IncidentUnknown(
            f"There is no incident {incident_id}.", action="List the incidents and name one.", incident=incident_id
        )
    if incident.outcome is not None:
        return RecoveryResult(incident.outcome, incident.reason, incident.attempts, time.monotonic() - began)
    if not world.registry.claim_incident(incident_id, run_id, world.clock()):
        return RecoveryResult("elsewhere", "another run works on it", incident.attempts, time.monotonic() - began)
    work = _Recovery(incident_id, rollout, world, policy or RecoveryPolicy(), progress)
    outcome, reason = work.run(incident.attempts)
    world.registry.close_incident(incident_id, outcome, world.clock(), reason=reason)
    seconds = time.monotonic() - began
    log.info("incident.closed", incident=incident_id, processor=rollout.processor, outcome=outcome, reason=reason)
    return RecoveryResult(outcome, reason, work.attempts, seconds)


class _Recovery:
    """One run's work on one incident."""

    def __init__(
        self,
        incident_id: int,
        rollout: Rollout,
        world: World,
        policy: RecoveryPolicy,
        progress: OnProgress | None,
    ) -> None:
        self._incident_id = incident_id
        self._rollout = rollout
        self._world = world
        self._policy = policy
        self._progress = progress
        self.attempts = 0

    def run(self, attempts: int) -> tuple[Outcome, str]:
        """Try until it works or the attempts are used up."""
        self.attempts = attempts
        reason = f"all {self._policy.attempts} attempts were used up"
        while self.attempts < self._policy.attempts:
            if self.attempts > attempts:
                time.sleep(self._policy.pause_s * 2 ** (self.attempts - attempts - 1))
            self.attempts = self._world.registry.begin_attempt(self._incident_id)
            try:
                return "resolved", self._attempt()
            except HoldfastError as failed:
                reason = f"attempt {self.attempts} of {self._policy.attempts} failed: {failed}"
                if failed.fields.get("exit_status") == EXIT_BAD_CONFIGURATION:
                    return "failed", f"a restart can't mend bad configuration: {failed}"
        return "failed", reason

    def _attempt(self) -> str:
        """One attempt; what was wrong."""
        found = self._step("diagnose", self._diagnose, _said)
        if isinstance(worst(found), NotDeployed):
            return "it is not meant to run any more"
        sick = [slot for slot, each in found.items() if each.needs_recovery]
        if sick:
            self._step("fence", lambda: self._fence(sick), str)
            self._step("restart", lambda: self._restart(sick), str)
        self._step("verify", self._verify, str)
        return _said(found) if sick else "it came back by itself"

    def _diagnose(self) -> dict[str, Diagnosis]:
        found = observe(self._rollout.processor, self._world, self._policy.limits, patience_s=PATIENCE_S)
        return {slot: found[slot].diagnosis for slot in self._rollout.slots if slot in found}

    def _fence(self, sick: list[str]) -> str:
        """Make sure that no old process works in the sick slots."""
        deployer, said = self._world.deployer, []
        if not deployer.running():
            deployer.start()
            said.append("the supervisor did not run and was started")
        for slot in sick:
            name = self._world.paths.program(self._rollout.processor, slot)
            program = deployer.programs().get(name)
            if program is None or not program.alive:
                said.append(f"slot {slot} has no process")
                continue
            deployer.kill_program(name)
            said.append(f"slot {slot}: process {program.pid} was killed and is gone")
        return "; ".join(said)

    def _restart(self, sick: list[str]) -> str:
        for slot in sick:
            spec = self._rollout.program(slot, self._world)
            self._world.deployer.apply(spec)
            self._world.deployer.start_program(spec.name)
        return "started slot " + ", ".join(sick)

    def _verify(self) -> str:
        statuses = wait_ready(self._rollout, self._world, timeout_s=self._policy.ready_s, progress=self._progress)
        partitions = sum(self._rollout.inputs.values())
        return f"{len(statuses)} instance(s) running, all {partitions} input partitions are worked on"

    def _step(self, name: str, act: Callable[[], T], say: Callable[[T], str]) -> T:
        """Do one step and put it on the timeline with its duration, whichever way it ends."""
        began = time.monotonic()
        try:
            result = act()
        except HoldfastError as failed:
            self._note(name, f"failed: {failed}", time.monotonic() - began)
            raise
        self._note(name, say(result), time.monotonic() - began)
        return result

    def _note(self, step: str, text: str, seconds: float) -> None:
        now = self._world.clock()
        self._world.registry.note_incident(self._incident_id, step, text, now, seconds=seconds)
        log.info("incident.step", incident=self._incident_id, step=step, seconds=round(seconds, 3), text=text)


def _said(found: Mapping[str, Diagnosis]) -> str:
    return " ".join(f"Slot {slot}: {each.sentence}" for slot, each in found.items())
