"""The sensor's part of recovery: observes a processor, diagnoses it, and opens an incident if it needs recovery.

Invariants:
    - An observation changes nothing but Holdfast's registry.
    - A processor has at most one open incident. A crash loop opens one last incident, which asks a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.infra.database.records import ApplyRecord, Deployment, Incident
from holdfast.infra.deploy.program_files import ProgramStatus, SupervisorSilent
from holdfast.infra.log import get_logger
from holdfast.infra.settings.of_workers import differences
from holdfast.infra.system.holders import is_gone
from holdfast.infra.system.process import running_for_s
from holdfast.infra.waiting import wait_until
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.keep_or_replace import look
from holdfast.processors.lifecycle.deploy.marking import behind, judged
from holdfast.processors.lifecycle.deploy.present import slots_beyond
from holdfast.processors.lifecycle.plans import way_on
from holdfast.processors.lifecycle.plans.apply import Holder, is_free
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.ages import age_s, is_ahead
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.diagnosis import (
    Diagnosis,
    Differs,
    Healthy,
    NotDeployed,
    Outdated,
    Starting,
    Unsupervised,
    Waiting,
    admits_incident,
    diagnose,
    flaps,
    worst,
)
from holdfast.processors.lifecycle.recovery.faults import PASSING, kind_of
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.remedies import Ask, Case, Wait, asked_by, decide_slots, retry_of

if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry

log = get_logger(__name__)

#: Maximum seconds between the end of an incident and the start of the next incident of the same processor. Within this
#: time, the next incident takes over the list of faults that restarts did not repair.
BEFORE_S = 900.0
#: Before a run changes a processor, it waits at most this many seconds until a recovery of the processor has ended.
RECOVERED_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Observation:
    """The facts that were observed about one instance (worker), and the diagnosis that follows from them."""

    program: ProgramStatus | None
    status: ProcessorStatus | None
    diagnosis: Diagnosis

    @property
    def living(self) -> ProcessorStatus | None:
        """The status if the instance's process still runs; otherwise None."""
        alive = (self.program is not None and self.program.alive) or isinstance(self.diagnosis, Unsupervised)
        return self.status if alive else None


@dataclass(frozen=True, slots=True)
class Notice:
    """The result of one observation of a processor."""

    #: Slot (place of one worker) -> observation.
    observations: Mapping[str, Observation]
    #: The open incident if the processor needs recovery; otherwise None.
    incident: Incident | None
    #: Whether this observation opened the incident.
    opened: bool
    #: Slot (place of one worker) -> time of the worker's last answer; the next observation needs it.
    answered_at: Mapping[str, datetime]

    @property
    def diagnoses(self) -> dict[str, Diagnosis]:
        """Slot (place of one worker) -> diagnosis of the worker."""
        return {slot: seen.diagnosis for slot, seen in self.observations.items()}

    @property
    def worst(self) -> Diagnosis:
        """The most serious diagnosis of all workers."""
        return worst(self.diagnoses)


def observe(
    processor: str,
    world: World,
    limits: Limits,
    *,
    patience_s: float = 0.0,
    answered_at: Mapping[str, datetime] | None = None,
) -> dict[str, Observation]:
    """The observation of each recorded slot, and of other slots with a process; empty without a deployment.

    A slot is the place of one worker. If a live worker does not answer, the request is repeated for at most
    ``patience_s`` seconds. ``answered_at`` has the time of each slot's last answer, from the previous observation. If
    the supervisor does not run, no slot has a program. If the supervisor runs but does not answer, only the workers'
    own answers are known.
    """
    recorded = world.registry.deployment(processor)
    if recorded is None:
        return {}
    desired = wanted(recorded, world)
    old = judged(processor, desired, world)
    try:
        up = world.deployer.running()
    except SupervisorSilent as hangs:
        return {slot: _unsupervised(slot, desired, world, hangs, old, limits) for slot in desired.slots}
    found: dict[str, Observation] = {}
    now = world.clock()
    for slot in (*desired.slots, *slots_beyond(processor, desired.slots, world)):
        program, status = look(slot, processor, world, patience_s=patience_s) if up else (None, None)
        program = None if program is None else _since_its_start(program, now)
        moments = [(answered_at or {}).get(slot)]
        if program is not None and status is None:
            moments.append(world.statuses(processor, slot).last_heartbeat(program.pid))
        answered = max((moment for moment in moments if moment and not is_ahead(moment, now)), default=None)
        diagnosis: Diagnosis = (
            Outdated(old)
            if old is not None
            else diagnose(program, status, desired, now, limits, answered_at=answered, slot=slot)
        )
        found[slot] = Observation(program, status, diagnosis)
    works = {slot: _pid(each) for slot, each in found.items() if isinstance(each.diagnosis, Healthy)}
    others = _other_programs(desired, works, world) if works else {}
    return found | {slot: replace(found[slot], diagnosis=other) for slot, other in others.items()}


def silence_of(world: World) -> str:
    """The action that makes the supervisor answer again; empty if the supervisor answers or does not run."""
    try:
        world.deployer.running()
    except SupervisorSilent as hangs:
        return hangs.action or ""
    return ""


def _since_its_start(program: ProgramStatus, now: datetime) -> ProgramStatus:
    """Returns ``program``; a start time in the future (by a wrong clock) is replaced by the kernel's start time."""
    if program.pid is None or not is_ahead(program.since, now):
        return program
    running_s = running_for_s(program.pid)
    return program if running_s is None else replace(program, since=now - timedelta(seconds=running_s))


def _unsupervised(
    slot: str, desired: Deployment, world: World, hangs: SupervisorSilent, old: Behind | None, limits: Limits
) -> Observation:
    """The observation of one worker while the supervisor does not answer, so that only the worker's answer is known."""
    status = world.statuses(desired.processor, slot).status()
    if old is not None:
        return Observation(None, status, Outdated(old, hangs.action or ""))
    may_end = status is None or age_s(desired.updated_at, world.clock()) < limits.stop_s
    if desired.desired == "stopped" and may_end:
        return Observation(None, status, NotDeployed(status is not None, hangs.action or ""))
    phase = None if status is None else status.phase
    return Observation(None, status, Unsupervised(phase, hangs.action or ""))


def _pid(seen: Observation) -> int | None:
    return None if seen.program is None else seen.program.pid


def _other_programs(desired: Deployment, works: Mapping[str, int | None], world: World) -> dict[str, Differs]:
    """Finds working instances (workers) whose code or settings differ from the recorded release.

    ``works`` maps slots (places of workers) to process ids. The result maps a slot to the difference.
    """
    name, book = desired.processor, DeployedSettings(world.paths)
    release = world.registry.releases.of_version(name, desired.code_version)
    if release is None:
        return {}
    recorded, found = book.read(name, release.release_id), dict[str, Differs]()
    action = f"holdfast apply deploy {name}"
    for slot, pid in works.items():
        own = book.of_worker(name, slot, pid)
        if not book.imports(name, slot, release):
            said = f"It runs another release of version {desired.code_version} than {release.release_id}, "
            found[slot] = Differs("other-version", f"{said}which is deployed.", action)
        elif recorded is not None and own is not None and (texts := differences(own, recorded)):
            said = f"It runs with other settings than the deployed ones: {'; '.join(texts)}."
            found[slot] = Differs("other-settings", said.replace(", now ", ", deployed is "), action)
    return found


def notice(
    processor: str, world: World, limits: Limits, *, answered_at: Mapping[str, datetime] | None = None
) -> Notice:
    """Observe a processor and open an incident if it needs recovery; called by the recovery sensor.

    No incident is opened in these cases: another incident is open, ``admits_incident`` returns False, or an apply
    (execution of a plan) runs. An interrupted apply also prevents an incident if its plan itself starts and stops
    workers and must be resumed. Otherwise recovery could start a worker that processes half-changed state. An
    interrupted apply that never starts workers prevents no incident.
    """
    seen = observe(processor, world, limits, answered_at=answered_at)
    now = world.clock()
    answering = [slot for slot, each in seen.items() if each.status and each.program and each.program.alive]
    known = (answered_at or {}).items()
    # Each time is limited to ``now``, because a wrong clock may have recorded a time in the future.
    answered = {slot: min(moment, now) for slot, moment in known if slot in seen}
    answered |= dict.fromkeys(answering, now)
    gravest = worst({slot: each.diagnosis for slot, each in seen.items()})
    if not gravest.needs_recovery or is_left_alone(processor, world):
        return Notice(seen, None, False, answered)
    recent = world.registry.incidents(limits.incidents, processor=processor)
    desired = world.registry.deployment(processor)
    detail = {slot: each.diagnosis.sentence for slot, each in seen.items()}
    sick = {slot: each.diagnosis.sentence for slot, each in seen.items() if each.diagnosis.needs_recovery}
    if flaps(recent, desired, now, limits):
        return Notice(seen, _stop_trying(processor, world, detail, sick, limits), True, answered)
    if not admits_incident(recent, desired, now, limits, sick=sick):
        return Notice(seen, None, False, answered)
    incident, opened = world.registry.open_incident(processor, gravest.kind, detail, now)
    if opened:
        log.warning("incident.opened", incident=incident.id, processor=processor, kind=gravest.kind, detail=detail)
    return Notice(seen, incident, opened, answered)


def _stop_trying(
    processor: str, world: World, detail: Mapping[str, str], sick: Mapping[str, str], limits: Limits
) -> Incident:
    """Open the incident of a crash loop, and close it at once as failed, with a question to a person."""
    now = world.clock()
    incident, _ = world.registry.open_incident(processor, "crash-loop", detail, now)
    reason = (
        f"It crashed {limits.incidents} times within {limits.retry_s:.0f} s: restarts don't help. Last time: "
        f"{' '.join(detail.values())}"
    )
    action = f"read `holdfast logs {processor}`, repair the cause, then: {retry_of(incident.id)}"
    world.registry.decide_incident(incident.id, "crash-loop", Ask.name, action)
    world.registry.ask_about(incident.id, sick)
    world.registry.note_incident(incident.id, "ask", f"{reason} What to do: {action}", now)
    world.registry.close_incident(incident.id, "failed", now, reason=reason)
    log.error("incident.crash_loop", incident=incident.id, processor=processor, reason=reason)
    return incident


def waits_for(incident: Incident, found: Mapping[str, Diagnosis], conditions: Conditions) -> str:
    """The reason why an open incident must wait for its next run, as a sentence; empty if a run is due.

    ``found`` has the diagnosis of each slot (place of one worker). A run is due as soon as recovery can repair at least
    one slot.
    """
    gravest = worst(found)
    if isinstance(gravest, Waiting | Unsupervised) or (incident.remedy == Wait.name and isinstance(gravest, Starting)):
        return gravest.sentence
    waits_for_broker = incident.remedy == Wait.name and incident.kind == "broker-away"
    if waits_for_broker and (lasting := conditions.lasts(Wait("broker-away"))):
        return lasting  # The incident must wait, because no worker can start without a broker.
    asked = {slot: Ask(sentence, incident.action) for slot, sentence in incident.asks.items()}
    chosen = decide_slots(found, lambda each: Case(incident.processor), conditions.lasts, asked)
    if chosen.due or any(slot not in incident.asks for slot in chosen.asks):
        return ""
    return next((lasting for _, lasting in chosen.waits.values()), "")


def wait_on(incident: Incident, found: Diagnosis, why: str, world: World) -> None:
    """Record that an incident waits, unless the same wait is recorded already; ``why`` is the reason as a sentence.

    ``incident`` must have just been read from Holdfast's registry.
    """
    action = found.action if isinstance(found, Unsupervised) else ""
    kind = found.kind if found.kind in PASSING or action else kind_of(incident.kind)
    if (incident.remedy, incident.kind) == (Wait.name, kind):
        return
    if world.registry.decide_incident(incident.id, kind, Wait.name, action):
        world.registry.note_incident(incident.id, "wait", f"{why} {Wait(kind).sentence}", world.clock())


def await_recovery(
    processor: str, registry: Registry, tell: Callable[[str], object], timeout_s: float = RECOVERED_WITHIN_S
) -> None:
    """Wait for the end of a live recovery run of a processor, at most ``timeout_s`` seconds.

    A command or run that will change a processor calls this function before it makes its plan, because recovery never
    waits for it. If recovery still runs after the timeout, the function returns. The apply (execution of a plan) is
    then refused, with an error that names the next action.
    """

    def at_work() -> Incident | None:
        return next(
            (each for each in registry.open_incidents() if each.processor == processor and each.is_worked_on), None
        )

    found = at_work()
    if found is not None:
        now = f"Recovery repairs {processor} now, incident {found.id}."
        tell(f"{now} The change waits for it, {timeout_s:.0f} s at most.")
        wait_until(lambda: at_work() is None, timeout_s, every_s=1.0)


def said_before(incident: Incident, recent: Sequence[Incident]) -> frozenset[str]:
    """The sentences of faults that restarts did not repair earlier; ``recent`` are incidents, newest first."""
    if incident.retried_at is not None:
        return frozenset()
    said = frozenset(incident.detail.values()) if incident.attempts else frozenset()
    for each in recent:
        if each.id >= incident.id or each.closed_at is None:
            continue
        if abs((incident.opened_at - each.closed_at).total_seconds()) < BEFORE_S:
            return said | frozenset(each.detail.values())
        break
    return said


def left_to_person(incident: Incident, recent: Sequence[Incident], deployed_at: datetime | None) -> dict[str, Ask]:
    """The slots that the previous incident left to a person, unless a deployment or a retry followed.

    A slot is the place of one worker. ``recent`` incidents are newest first; ``deployed_at`` is the time of the last
    deployment.
    """
    before = next((each for each in recent if each.id < incident.id), None)
    if before is None or before.closed_at is None or before.outcome != "failed" or incident.retried_at is not None:
        return {}
    late = abs((incident.opened_at - before.closed_at).total_seconds()) >= BEFORE_S
    if late or (deployed_at is not None and deployed_at > before.closed_at):
        return {}
    action = asked_by(before.action, before.id, incident.id)
    return {slot: Ask(sentence, action) for slot, sentence in before.asks.items()}


def is_left_alone(processor: str, world: World) -> bool:
    """Whether recovery must not touch a processor: an apply changes it, or its newest deployment is not registered.

    An apply is the execution of a plan.

    Raises:
        HoldfastError: Holdfast's registry does not answer.
    """
    return behind(processor, world) is not None or is_applied(processor, world)


def is_applied(processor: str, world: World) -> bool:
    """Whether an apply (execution of a plan) of this processor runs, or was interrupted and must be resumed."""
    begun = open_apply(processor, world)
    if begun is None:
        return False
    if not is_broken_off(begun):
        return True
    return way_on.keeps_recovery_away(begun)


def wanted(recorded: Deployment, world: World) -> Deployment:
    """The recorded deployment, but with the desired state "deployed" instead of "deploying" if no apply is live.

    An apply is the execution of a plan.

    Raises:
        HoldfastError: Holdfast's registry does not answer.
    """
    if recorded.desired != "deploying":
        return recorded
    return meant(recorded, open_apply(recorded.processor, world))


def meant(recorded: Deployment, begun: ApplyRecord | None) -> Deployment:
    """The recorded deployment, with the state "deployed" instead of "deploying" if no live apply changes the processor.

    An apply (execution of a plan) records the state "deploying". A killed apply cannot reset this state.
    """
    is_live = begun is not None and not is_broken_off(begun)
    return recorded if is_live or recorded.desired != "deploying" else replace(recorded, desired="deployed")


def open_apply(processor: str, world: World) -> ApplyRecord | None:
    """The open apply (execution of a plan) of a processor, whether live or interrupted; None if there is none."""
    return next(iter(world.registry.journal.applies(1, processor=processor, open_only=True)), None)


def is_broken_off(record: ApplyRecord) -> bool:
    """Whether an open apply (execution of a plan) was interrupted, so that no live process executes it now."""
    return is_free(record, Holder("", is_gone))


def is_known_dead(record: ApplyRecord) -> bool:
    """Whether it is certain that the process of an apply (execution of a plan) has ended.

    A silent process does not count as ended, because it may still answer later.
    """
    return record.holder is not None and is_gone(record.holder)
