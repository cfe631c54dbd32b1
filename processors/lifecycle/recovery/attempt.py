"""Recovers a processor from one incident: diagnose → decide → fence → act → restart → verify. Each step is recorded.

Invariants:
    - Nothing is started in a slot while its old process may still be alive.
    - Only failed instances are changed, each with its own remedy. An instance that must wait, or needs a person's
      decision, does not delay recovery of other instances.
    - At most one run (process) has the claim of an incident (``infra.database.leases``). During a live apply of the
      processor, no run has it. A run that lost its claim stops: its ports verify the claim before each change.
    - The registry counts attempts, also those of killed runs. A fault that ends by itself uses no attempt.
    - A fault that no restart repairs is not retried: recovery stops and names the one action that repairs it.
    - A second run does no harm: it leaves a closed incident alone and only verifies a processor that recovered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import structlog

from holdfast.infra.database.errors import HoldLost
from holdfast.infra.database.leases import Fence
from holdfast.infra.database.records import Incident, Outcome
from holdfast.infra.deploy.program_files import SupervisorSilent
from holdfast.infra.errors import HoldfastError, in_one_line
from holdfast.infra.kafka.errors import BrokerUnreachable, CoordinatorMoving
from holdfast.processors.lifecycle.deploy.deployment import OnProgress, wait_ready
from holdfast.processors.lifecycle.deploy.keep_or_replace import PATIENCE_S
from holdfast.processors.lifecycle.deploy.present import remove_others, slots_beyond
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.plans.holding import DEPLOYER, Hold, fenced
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.diagnosis import (
    Diagnosis,
    Failed,
    NotDeployed,
    Outdated,
    Starting,
    Unsupervised,
    Waiting,
    in_words,
    worst,
)
from holdfast.processors.lifecycle.recovery.faults import PASSING, kind_of_error
from holdfast.processors.lifecycle.recovery.incidents import (
    is_applied,
    is_known_dead,
    left_to_person,
    observe,
    open_apply,
    said_before,
)
from holdfast.processors.lifecycle.recovery.limits import ATTEMPTS, Limits
from holdfast.processors.lifecycle.recovery.remedies import (
    Ask,
    Case,
    PerSlot,
    Rebuild,
    Remedy,
    Restart,
    Wait,
    action_for,
    decide_slots,
    retry_of,
)
from holdfast.processors.lifecycle.verbs.refusals import shared_with
from holdfast.processors.lifecycle.world.setting_aside import set_aside

log = structlog.get_logger(__name__)

T = TypeVar("T")


class HeldElsewhere(HoldfastError):
    """The processor's group has workers of another installation, so no worker was changed. Field: ``members``."""


class IncidentUnknown(HoldfastError):
    """No incident has this id."""


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """Limits of one recovery: maximum attempts, timeouts and pauses."""

    limits: Limits = field(default_factory=Limits)
    #: Maximum number of attempts for one incident.
    attempts: int = ATTEMPTS
    #: Maximum seconds until a restarted processor processes every partition.
    ready_s: float = 120.0
    #: Seconds of pause before the second attempt; the pause doubles before each further attempt.
    pause_s: float = 2.0
    #: The test whether recovery still has to wait, for example because the disk is full.
    conditions: Conditions = field(default_factory=Conditions)
    #: Whether every store has a changelog, so that broken local state can be renamed (set aside) and restored.
    restorable: bool = True
    #: Names of the processor's stores, for the commands in texts about the next action.
    stores: tuple[str, ...] = ()
    #: Returns the members of the processor's group that are workers of another installation, as texts.
    strangers: Callable[[], tuple[str, ...]] = lambda: ()
    #: The finding that Holdfast's registry lacks a deployment that the changelogs record; otherwise None.
    behind: Behind | None = None


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The result of a recovery: ``elsewhere`` if another run recovers the incident, ``waiting`` if it stays open."""

    outcome: Outcome | Literal["elsewhere", "waiting"]
    reason: str
    attempts: int
    seconds: float


def recover(
    incident_id: int,
    rollout: Rollout,
    world: World,
    *,
    run_id: str,
    policy: RecoveryPolicy | None = None,
    progress: OnProgress | None = None,
) -> RecoveryResult:
    """Recover the processor of an open incident, and close the incident as resolved or failed.

    If recovery has to wait until the cause ends, the incident stays open for a later run.

    Args:
        incident_id: Id of the incident.
        rollout: The wanted deployment of the processor.
        world: Access to the supervisor, Holdfast's registry and the workers.
        run_id: The run that recovers the incident; the same run may call again after an interruption.
        policy: Maximum attempts, and timeouts.
        progress: Called at each poll while the processor starts.

    Raises:
        IncidentUnknown: No incident has this id.
    """
    began = time.monotonic()
    incident = _incident(incident_id, world)
    if incident.outcome is not None:
        return RecoveryResult(incident.outcome, incident.reason, incident.attempts, time.monotonic() - began)
    elsewhere = partial(RecoveryResult, "elsewhere", attempts=incident.attempts)
    token = None
    if not is_applied(incident.processor, world):
        left = open_apply(incident.processor, world)
        gone = left.token if left is not None and is_known_dead(left) else None
        token = world.registry.claim_incident(incident_id, run_id, world.clock(), gone=gone)
    if token is None:
        return elsewhere(_who_has(incident, world), seconds=time.monotonic() - began)
    hold = Hold()
    hold.take(Fence("incident", incident_id, token), lambda: world.registry.beat_incident(incident_id, token))
    held = replace(
        world,
        registry=world.registry.fenced(lambda: hold.fence),
        deployer=fenced(world.deployer, DEPLOYER, hold),
    )
    work = _Recovery(incident, rollout, held, policy or RecoveryPolicy(), progress)
    try:
        # Check again: an apply may have begun, and been interrupted, before the claim. With the claim, no apply can
        # begin.
        if is_applied(incident.processor, world):
            world.registry.release_incident(incident_id, run_id)
            return elsewhere(_who_has(incident, world), seconds=time.monotonic() - began)
        with hold.beating():
            outcome, reason = work.run(hold)
        if outcome == "waiting":
            world.registry.release_incident(incident_id, run_id)
        else:
            held.registry.close_incident(incident_id, outcome, world.clock(), reason=reason)
    except HoldLost as lost:
        log.warning("incident.lost", incident=incident_id, processor=rollout.processor, run=run_id)
        return elsewhere(lost.message, seconds=time.monotonic() - began)
    except (Exception, KeyboardInterrupt):
        with suppress(HoldfastError):
            world.registry.release_incident(incident_id, run_id)
        raise
    seconds = time.monotonic() - began
    log.info("incident.left", incident=incident_id, processor=rollout.processor, outcome=outcome, reason=reason)
    return RecoveryResult(outcome, reason, work.attempts, seconds)


def _who_has(incident: Incident, world: World) -> str:
    """A sentence, without a full stop, about the run that works on the processor instead of this run."""
    if is_applied(incident.processor, world):
        return f"an apply of {incident.processor} is open, see `holdfast apply list`"
    return "another run works on it"


def wait_for_broker(incident_id: int, world: World, run_id: str, away: HoldfastError) -> RecoveryResult:
    """The result of a run that could not reach a broker. The incident stays open, and a later run tries again.

    Raises:
        IncidentUnknown: No incident has this id.
    """
    began, wait = time.monotonic(), Wait("broker-away")
    incident = _incident(incident_id, world)
    said = f"{away.message} {wait.sentence}"
    if world.registry.decide_incident(incident_id, wait.kind, wait.name, ""):
        _note_wait(incident, said, world)
    log.info("incident.left", incident=incident_id, processor=incident.processor, outcome="waiting", run=run_id)
    return RecoveryResult("waiting", said, incident.attempts, time.monotonic() - began)


def file_by_hand(processor: str, world: World, run_id: str) -> int:
    """The incident of a recovery that a user requests: the newest one if it is open or failed, otherwise a new one."""
    last = next(iter(world.registry.incidents(1, processor=processor)), None)
    if last is not None and world.registry.retry_incident(last.id, world.clock()):
        world.registry.note_incident(last.id, "retry", f"run {run_id} was launched by hand", world.clock())
        return last.id
    seen = observe(processor, world, Limits())
    found = {slot: each.diagnosis for slot, each in seen.items()}
    detail = {slot: each.sentence for slot, each in found.items()}
    incident, opened = world.registry.open_incident(processor, worst(found).kind, detail, world.clock())
    if opened:
        world.registry.note_incident(incident.id, "by hand", f"run {run_id} was launched by hand", world.clock())
    return incident.id


def _incident(incident_id: int, world: World) -> Incident:
    incident = world.registry.incident(incident_id)
    if incident is None:
        raise IncidentUnknown(
            f"No incident has the number {incident_id}.",
            action="Choose a number from `holdfast incidents list`.",
            incident=incident_id,
        )
    return incident


def _note_wait(incident: Incident, said: str, world: World) -> None:
    """Record the wait on the incident's timeline, unless the last entry already records the same wait."""
    told = [note for note in incident.timeline if note.step != "diagnose"]
    if not told or (told[-1].step, told[-1].text) != ("wait", said):
        world.registry.note_incident(incident.id, "wait", said, world.clock())


class _Recovery:
    """The work of one recovery run on one incident."""

    def __init__(
        self,
        incident: Incident,
        rollout: Rollout,
        world: World,
        policy: RecoveryPolicy,
        progress: OnProgress | None,
    ) -> None:
        self._incident = incident
        self._rollout = rollout
        self._world = world
        self._policy = policy
        self._progress = progress
        self._registry = world.registry
        #: Sentences about faults that no restart repaired, in earlier runs or in the processor's previous incident.
        recent = self._registry.incidents(2, processor=incident.processor)
        self._said = said_before(incident, recent)
        deployment = self._registry.deployment(incident.processor)
        #: The slots (workers) that the previous incident left to a person, each with the question to the person.
        self._left = left_to_person(incident, recent, None if deployment is None else deployment.updated_at)
        self.attempts = incident.attempts

    def run(self, hold: Hold) -> tuple[Literal["resolved", "failed", "waiting"], str]:
        """Repeat attempts until the processor works, must wait or needs a person, or no attempts are left."""
        made, reason = 0, f"all {self._policy.attempts} attempts are used"
        while self.attempts < self._policy.attempts:
            found = self._step("diagnose", self._diagnose, in_words)
            gravest = worst(found)
            if isinstance(gravest, Outdated):
                ask = Ask(gravest.sentence, gravest.behind.action, gravest.kind)
                self._registry.decide_incident(self._incident.id, gravest.kind, ask.name, ask.action)
                self._note("ask", ask.sentence, 0.0)
                return "failed", ask.sentence
            if isinstance(gravest, NotDeployed):
                return "resolved", "it was stopped on request meanwhile"
            if isinstance(gravest, Waiting):
                return self._wait(Wait("broker-away"), gravest.sentence)
            if isinstance(gravest, Unsupervised):
                return self._wait(Wait("supervisor-silent"), gravest.sentence, Ask(gravest.sentence, gravest.action))
            if made and isinstance(gravest, Starting):  # a large restore may outlast an attempt: wait, do not restart
                return self._wait(Wait("starting"), gravest.sentence)
            chosen = decide_slots(found, self._case, self._policy.conditions.lasts, self._left)
            if not chosen.due and (chosen.waits or chosen.asks):
                return self._leave(found, chosen, ())
            self._decide(found, chosen.due)
            if made:
                time.sleep(self._policy.pause_s * 2 ** (made - 1))
            made, self.attempts = made + 1, self._registry.begin_attempt(self._incident.id)
            try:
                self._attempt(chosen, hold)
            except HoldLost:
                raise
            except HeldElsewhere as held:
                self._uncount()
                ask = Ask(held.message, held.action or "", "held-elsewhere")
                asks = {**chosen.asks, **dict.fromkeys(chosen.due, ask)}
                return self._leave(found, PerSlot({}, chosen.waits, asks), ())
            except SupervisorSilent as hangs:
                self._uncount()
                return self._wait(Wait("supervisor-silent"), hangs.message, Ask(hangs.message, hangs.action or ""))
            except (BrokerUnreachable, CoordinatorMoving) as away:
                self._uncount()
                return self._wait(Wait("broker-away"), away.message)
            except HoldfastError as failed:
                reason = f"attempt {self.attempts} of {self._policy.attempts} failed: {failed}"
                self._said |= frozenset(each.sentence for each in found.values())
                self._forgive(failed)
                continue
            if chosen.waits or chosen.asks:
                return self._leave(found, chosen, tuple(chosen.due))
            return "resolved", in_words(found) if chosen.due else "it recovered without an action"
        self._give_up(reason)
        return "failed", reason

    def _decide(self, found: Mapping[str, Diagnosis], due: Mapping[str, Remedy]) -> None:
        """Record the remedy for the most serious fault among the workers that are repaired now."""
        slot = _gravest(found, due)
        if slot is not None:
            self._registry.decide_incident(self._incident.id, found[slot].kind, due[slot].name, "")

    def _leave(
        self, found: Mapping[str, Diagnosis], chosen: PerSlot, repaired: tuple[str, ...]
    ) -> tuple[Literal["failed", "waiting"], str]:
        """End the run: the ``repaired`` slots run again, but a restart cannot repair the other failed slots now.

        If one of these failed slots must wait, the incident stays open. Otherwise it fails, and asks a person.
        """
        asked = _gravest(found, chosen.asks)
        ask = None if asked is None else chosen.asks[asked]
        if chosen.asks:
            self._registry.ask_about(self._incident.id, {slot: found[slot].sentence for slot in chosen.asks})
        first = next(iter(chosen.waits.values()), None)
        if first is not None:
            return self._wait(*first, ask)
        assert asked is not None
        assert ask is not None
        self._registry.decide_incident(self._incident.id, ask.kind or found[asked].kind, ask.name, ask.action)
        self._note("ask", ask.sentence, 0.0)
        again = f"slot {', '.join(repaired)} runs again; " if repaired else ""
        about = "this" if len(chosen.asks) == 1 and not repaired else f"slot {', '.join(chosen.asks)}"
        return "failed", f"{again}a restart cannot repair {about}: {ask.sentence}"

    def _forgive(self, failed: HoldfastError) -> None:
        """Do not count an attempt that failed because of a lasting fault that ends by itself, such as a full disk."""
        error = failed.fields.get("error") or {}
        kind = kind_of_error(error)
        if kind in PASSING and self._policy.conditions.lasts(
            Wait(kind, str((error.get("fields") or {}).get("path", "")))
        ):
            self._uncount()

    def _uncount(self) -> None:
        """Do not count the present attempt against the maximum number of attempts."""
        self._registry.forgive_attempt(self._incident.id)
        self.attempts -= 1

    def _attempt(self, chosen: PerSlot, hold: Hold) -> None:
        """Make one attempt: kill and restart the workers that a restart can repair now, then verify them."""
        due = chosen.due
        if due:
            self._refuse_strangers()
            self._step("fence", lambda: self._fence(due), str)
            if any(isinstance(remedy, Rebuild) for remedy in due.values()):
                self._step("set aside", lambda: self._set_aside(due, hold), str)
            self._step("restart", lambda: self._restart(list(due)), str)
        # Workers that Holdfast's registry does not list are removed, because they own partitions.
        if slots_beyond(self._rollout.processor, self._rollout.slots, self._world):
            self._step("remove", self._remove_others, str)
        down = {*chosen.waits, *chosen.asks}
        self._step("verify", lambda: self._verify(down), str)

    def _wait(self, wait: Wait, why: str, ask: Ask | None = None) -> tuple[Literal["waiting"], str]:
        """Record that the incident waits and stays open; the sensor launches a new run after the cause has ended.

        ``ask`` is a question to a person about another slot (worker); None without a question.
        """
        self._registry.decide_incident(self._incident.id, wait.kind, wait.name, "" if ask is None else ask.action)
        said = f"{why} {wait.sentence}"
        _note_wait(self._incident, said, self._world)
        return "waiting", said

    def _give_up(self, reason: str) -> None:
        """Close an incident that has no attempts left as failed; record its fault and the action for a person."""
        found = self._diagnose()
        gravest = worst(found)
        name = self._rollout.processor
        action = action_for(gravest.kind, self._case(gravest), gravest.error if isinstance(gravest, Failed) else {})
        asked = action or f"see `holdfast logs {name}`; then {retry_of(self._incident.id)}"
        kind = gravest.kind if gravest.needs_recovery else self._incident.kind
        self._registry.decide_incident(self._incident.id, kind, Restart.name, asked)
        sick = {slot: each.sentence for slot, each in found.items() if each.needs_recovery}
        self._registry.ask_about(self._incident.id, sick)
        self._note("ask", f"{in_one_line(reason)} What to do: {asked}", 0.0)

    def _case(self, found: Diagnosis) -> Case:
        name, releases = self._rollout.processor, self._registry.releases
        present, working = releases.of_version(name, self._rollout.code_version), releases.working(name)
        never_worked = present is not None and present.worked_at is None and working is not None
        return Case(
            processor=name,
            repeated=found.sentence in self._said,
            restorable=self._policy.restorable,
            former=working.code_version if never_worked and working is not None else None,
            stores=self._policy.stores,
            mended=self._incident.retried_at is not None and self.attempts == 0,
        )

    def _diagnose(self) -> dict[str, Diagnosis]:
        found = observe(self._rollout.processor, self._world, self._policy.limits, patience_s=PATIENCE_S)
        if (old := self._policy.behind) is not None:
            return dict.fromkeys(self._rollout.slots, Outdated(old))
        return {slot: found[slot].diagnosis for slot in self._rollout.slots if slot in found}

    def _refuse_strangers(self) -> None:
        """Raises HeldElsewhere if another installation has workers, because they would compete for partitions."""
        name, others = self._rollout.processor, self._policy.strangers()
        if others:
            there = f"stop {name} there (`holdfast apply stop {name}` in that installation), or stop it here"
            action = f"{there}; then: {retry_of(self._incident.id)}"
            raise HeldElsewhere(shared_with(name, others), action=action, members="; ".join(others))

    def _fence(self, sick: Iterable[str]) -> str:
        """Kill the old processes in these slots (places of workers); returns a text about what was done."""
        deployer, said = self._world.deployer, []
        if not deployer.running():
            deployer.start()
            said.append("the supervisor was not running and was started")
        for slot in sick:
            name = self._world.paths.program(self._rollout.processor, slot)
            program = deployer.programs().get(name)
            if program is None or not program.alive:
                said.append(f"slot {slot} has no process")
                continue
            deployer.kill_program(name)
            said.append(f"slot {slot}: process {program.pid} was killed")
        return "; ".join(said)

    def _set_aside(self, due: Mapping[str, Remedy], hold: Hold) -> str:
        """Set aside (rename) the local state of each worker whose remedy is a rebuild; returns the result as text."""
        name, now = self._rollout.processor, self._world.clock()
        said = []
        for slot, remedy in due.items():
            if isinstance(remedy, Rebuild):
                hold.check()
                said.append(set_aside(self._world.paths.state, name, slot, remedy.path, now))
        return "; ".join(said)

    def _restart(self, sick: list[str]) -> str:
        for slot in sick:
            spec = self._rollout.program(slot, self._world)
            self._world.deployer.apply(spec)
            self._world.deployer.start_program(spec.name)
        return "started slot " + ", ".join(sick)

    def _remove_others(self) -> str:
        gone = remove_others(self._rollout.processor, self._rollout.slots, self._world)
        return f"slot {', '.join(gone)} is not recorded: stopped and removed"

    def _verify(self, down: Collection[str]) -> str:
        """Wait until every slot (worker) not in ``down`` works. If ``down`` is empty, also wait for all partitions."""
        rollout, partitions = self._rollout, sum(self._rollout.inputs.values())
        said = f"all {partitions} input partitions are processed"
        # With slots in ``down``, partitions are not checked, because no running worker may own their partitions.
        if down:
            rollout = replace(rollout, slots=tuple(each for each in rollout.slots if each not in down), inputs={})
            said = f"slot {', '.join(sorted(down))} is left as it is"
        statuses = wait_ready(rollout, self._world, timeout_s=self._policy.ready_s, progress=self._progress)
        return f"{len(statuses)} instance(s) running; {said}"

    def _step(self, name: str, act: Callable[[], T], say: Callable[[T], str]) -> T:
        """Run one step and record it on the timeline with its duration, even if it fails."""
        began = time.monotonic()
        try:
            result = act()
        except HoldLost:
            raise
        except HoldfastError as failed:
            self._note(name, f"failed: {failed}", time.monotonic() - began)
            raise
        self._note(name, say(result), time.monotonic() - began)
        return result

    def _note(self, step: str, text: str, seconds: float) -> None:
        now = self._world.clock()
        self._world.registry.note_incident(self._incident.id, step, text, now, seconds=seconds)
        log.info("incident.step", incident=self._incident.id, step=step, seconds=round(seconds, 3), text=text)


def _gravest(found: Mapping[str, Diagnosis], slots: Collection[str]) -> str | None:
    """The slot (worker) with the most serious diagnosis among ``slots``; None if ``slots`` is empty."""
    some = {slot: found[slot] for slot in slots}
    return next((slot for slot, each in some.items() if each is worst(some)), None)
