"""Diagnoses one instance (worker) of a processor: is it healthy, or what is wrong?

Invariants:
    - The functions are pure: they read no clock, no process and no database.
    - ``Diagnosis`` is the union of all cases. Each case has the ``kind`` of the fault (a fixed word, such as
      ``disk-full``), a ``sentence`` about the instance, and ``needs_recovery``.
    - An instance that was stopped on request, or is being deployed, never needs recovery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, ClassVar

from holdfast.infra.database.records import Deployment, Incident
from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE, EXIT_DISK_FAILURE
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.recovery.ages import age_s, is_ahead
from holdfast.processors.lifecycle.recovery.faults import Kind, kind_of_end, kind_of_error
from holdfast.processors.lifecycle.recovery.limits import Limits

_EXIT_MEANINGS = {
    0: "it stopped cleanly without a request",
    1: "processing failed",
    EXIT_BAD_CONFIGURATION: "bad configuration",
    EXIT_BROKER_UNAVAILABLE: "the broker could not be reached",
    EXIT_DISK_FAILURE: "the disk failed",
}


@dataclass(frozen=True, slots=True)
class Healthy:
    """The instance processes input."""

    phase: str
    kind: ClassVar[Kind] = "healthy"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        return f"It is {self.phase}."


@dataclass(frozen=True, slots=True)
class NotDeployed:
    """The instance (worker) should not run; ``alive`` is true if it nevertheless has a process.

    ``hangs`` is the operator's action if the supervisor does not answer; empty while the supervisor answers.
    """

    alive: bool = False
    hangs: str = ""
    kind: ClassVar[Kind] = "not-deployed"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        return "It should not run" + (", but it does." if self.alive else ".")


@dataclass(frozen=True, slots=True)
class Starting:
    """The instance is starting, and has not yet used all the time that a start may take."""

    what: str
    kind: ClassVar[Kind] = "starting"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        return f"It is {self.what}."


@dataclass(frozen=True, slots=True)
class Waiting:
    """The process is alive and waits for its broker or its schema registry; then it continues by itself."""

    kind: ClassVar[Kind] = "broker-away"
    needs_recovery: ClassVar[bool] = False
    sentence: ClassVar[str] = "It is waiting for its broker, or for its schema registry."


@dataclass(frozen=True, slots=True)
class Dead:
    """The instance (worker) should run but has no process."""

    exit_status: int | None
    signal: str | None
    needs_recovery: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        """The kind of fault, derived from the exit status of the process."""
        return kind_of_end(self.exit_status)

    @property
    def sentence(self) -> str:
        if self.signal is not None:
            return f"Its process was killed by {self.signal}."
        if self.exit_status is not None:
            meaning = _EXIT_MEANINGS.get(self.exit_status, "unexpected")
            return f"Its process ended with status {self.exit_status} ({meaning})."
        return "It has no process."


@dataclass(frozen=True, slots=True)
class Stuck:
    """The process is alive but sends no heartbeats."""

    silent_s: float
    kind: ClassVar[Kind] = "stuck"
    needs_recovery: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        since = f"for {self.silent_s:.0f} s" if isfinite(self.silent_s) else "since it was started"
        return f"Its process has sent no heartbeat {since}."


@dataclass(frozen=True, slots=True)
class Failed:
    """The instance stopped with an error; its process may still be alive."""

    error: Mapping[str, Any] = field(default_factory=dict)
    needs_recovery: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        """The kind of fault, derived from the cause in the error."""
        return kind_of_error(self.error)

    @property
    def sentence(self) -> str:
        said = self.error.get("message", "no message")
        return f"It stopped with {self.error.get('type', 'an error')}: {said}"


@dataclass(frozen=True, slots=True)
class Differs:
    """The instance works, but differs from the recorded deployment; ``action`` is the command to correct this.

    Recovery does not restart such an instance, because it processes input.
    """

    kind: Kind
    sentence: str
    action: str
    #: Whether the difference may be intended (for example a paused worker), so that a warning is enough.
    warns: bool = False
    needs_recovery: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Unsupervised:
    """The supervisor runs but does not answer, so only the worker's own answers are known.

    ``phase`` is the worker's phase, None if the worker does not answer. ``action`` says how to make the supervisor
    answer again.
    """

    phase: str | None
    action: str
    kind: ClassVar[Kind] = "supervisor-silent"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        worker = "nor does the worker" if self.phase is None else f"but the worker does: it is {self.phase}"
        return f"The supervisor does not answer, {worker}."


@dataclass(frozen=True, slots=True)
class Outdated:
    """Holdfast's registry lacks the newest deployment, so the desired state is unknown; a person must correct it."""

    behind: Behind
    #: The action that makes the supervisor answer again; empty if it answers.
    hangs: str = ""
    kind: ClassVar[Kind] = "registry-behind"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        return self.behind.sentence


Diagnosis = Healthy | NotDeployed | Starting | Waiting | Dead | Stuck | Failed | Differs | Unsupervised | Outdated
#: Diagnoses by severity, the most serious first.
_GRAVITY: tuple[type[Diagnosis], ...] = (
    Outdated,
    Failed,
    Dead,
    Stuck,
    Unsupervised,
    Waiting,
    Differs,
    Starting,
    NotDeployed,
    Healthy,
)


def worst(diagnoses: Mapping[str, Diagnosis]) -> Diagnosis:
    """The most serious diagnosis of all instances (workers), after which an incident of the processor is named.

    The result is ``NotDeployed`` if there are no instances.
    """
    return min(diagnoses.values(), key=_gravity, default=NotDeployed())


def _gravity(each: Diagnosis) -> tuple[int, bool]:
    return _GRAVITY.index(type(each)), isinstance(each, Differs) and each.warns


def in_words(diagnoses: Mapping[str, Diagnosis]) -> str:
    """Returns one text with the sentence of each worker's diagnosis."""
    return " ".join(f"Slot {slot}: {each.sentence}" for slot, each in diagnoses.items())


def diagnose(
    program: ProgramStatus | None,
    status: ProcessorStatus | None,
    desired: Deployment | None,
    now: datetime,
    limits: Limits,
    *,
    answered_at: datetime | None = None,
    slot: str | None = None,
) -> Diagnosis:
    """The diagnosis of one instance.

    Args:
        program: The supervisor's state of the program; None if the supervisor does not know the program.
        status: The answer of the process, or its last status if it ended with an error; None without an answer.
        desired: The recorded deployment; its state is "deploying" only while an apply (execution of a plan) is live
            (``incidents.wanted``).
        now: The time at which the facts were read.
        limits: Time limits after which an observation counts as a fault.
        answered_at: Time of the last heartbeat, from an answer or from the modification time of the heartbeat file. A
            silent process counts as stuck only if its last heartbeat is longer ago than ``limits.stuck_after_s``. None
            if it never answered; it then counts as stuck after ``limits.start_s``.
        slot: The instance's slot (place of one worker); needed if the recorded deployment may lack this slot.
    """
    alive = program is not None and program.alive
    if desired is None or desired.desired == "stopped":
        if desired is None or not alive or age_s(desired.updated_at, now) < limits.stop_s:
            return NotDeployed(alive=alive)
        return _unwanted(f"holdfast apply stop {desired.processor}")
    if desired.desired == "deploying":
        since_s = age_s(desired.updated_at, now)
        return Starting("being deployed" + (f" for {since_s:.0f} s" if isfinite(since_s) else ""))
    if program is None:
        return Dead(exit_status=None, signal=None)
    if not program.alive:
        stopped = program.state == "STOPPED" and program.since is not None
        if stopped and age_s(program.since, now) < limits.stop_s:
            return Starting(f"stopped on request for {age_s(program.since, now):.0f} s")
        if status is not None and status.error:
            return Failed(error=dict(status.error))
        return Dead(exit_status=program.exit_status, signal=program.signal)
    if program.state == "STOPPING":
        return Starting("stopping on request")
    if slot is not None and slot not in desired.slots:
        return _unwanted(f"holdfast apply scale {desired.processor} {len(desired.slots)}")
    if status is None or status.pid != program.pid:
        return _silent(program, now, limits, answered_at)
    found = _of_answer(status, now, limits)
    return _compared(status, desired) or found if isinstance(found, Healthy) else found


def admits_incident(
    recent: Sequence[Incident],
    desired: Deployment | None,
    now: datetime,
    limits: Limits,
    *,
    sick: Mapping[str, str] | None = None,
) -> bool:
    """Whether a new failure of a processor opens a new incident.

    A failed incident leaves slots (places of workers) to a person, because restarts did not help. These slots are
    restarted again only after another deployment, or after ``limits.retry_s`` seconds. If the incident asked a person,
    the same fault of these slots opens no second incident. A slot that the failed incident did not leave to a person
    opens an incident when it fails. A processor that crashes after each restart opens a limited number of incidents.

    ``recent`` are the processor's newest incidents, newest first; at least ``limits.incidents`` of them. ``sick`` has
    the present sentence of each failed slot.
    """
    if not recent or recent[0].closed_at is None:
        return True
    last, closed_at = recent[0], recent[0].closed_at
    deployed_since = desired is not None and _is_later(desired.updated_at, closed_at, now)
    faults = dict(sick or {})
    only_left = not last.asks or faults.keys() <= last.asks.keys()
    if last.outcome == "failed" and not deployed_since and only_left and not is_ahead(closed_at, now):
        if age_s(closed_at, now) < limits.retry_s:
            return False
        said = {*map(str, last.detail.values()), *last.asks.values()}
        if last.remedy == "ask" and faults and said.issuperset(faults.values()):
            return False
    return _within(recent, desired, now, limits) < limits.incidents


def flaps(recent: Sequence[Incident], desired: Deployment | None, now: datetime, limits: Limits) -> bool:
    """Whether restarts must stop, because too many incidents were opened in the last ``limits.retry_s`` seconds.

    ``recent`` are the processor's newest incidents, newest first. ``desired`` is its recorded deployment.
    """
    if not recent or recent[0].is_open or recent[0].outcome == "failed":
        return False
    return _within(recent, desired, now, limits) >= limits.incidents


def _within(recent: Sequence[Incident], desired: Deployment | None, now: datetime, limits: Limits) -> int:
    """Number of incidents since the present deployment that were opened in the last ``limits.retry_s`` seconds."""
    since = now - timedelta(seconds=limits.retry_s)
    if desired is not None and not is_ahead(desired.updated_at, now):
        since = max(since, desired.updated_at)
    return sum(incident.opened_at > since and not is_ahead(incident.opened_at, now) for incident in recent)


def _is_later(moment: datetime, than: datetime, now: datetime) -> bool:
    """Whether the time ``moment`` is later than the time ``than``.

    Also False if only ``moment`` is in the future, because a wrong clock recorded it.
    """
    return moment > than and (is_ahead(than, now) or not is_ahead(moment, now))


def _silent(program: ProgramStatus, now: datetime, limits: Limits, answered_at: datetime | None) -> Diagnosis:
    since = now if program.since is None else program.since
    if answered_at is None or answered_at < since:
        running_s = age_s(since, now)
        if running_s < limits.start_s:
            return Starting(f"starting for {running_s:.0f} s")
        return Stuck(silent_s=running_s)
    silent_s = age_s(answered_at, now)
    if silent_s < limits.stuck_after_s:
        return Starting(f"not answering for {silent_s:.0f} s")
    return Stuck(silent_s=silent_s)


def _of_answer(status: ProcessorStatus, now: datetime, limits: Limits) -> Diagnosis:
    if status.phase == "failed":
        return Failed(error=dict(status.error or {}))
    # The worker's own measurement of its silence is preferred. After a change of the clock, the difference of two
    # recorded times is wrong, and a live worker would count as stuck.
    silent_s = now.timestamp() - status.heartbeat_at if status.silent_s is None else status.silent_s
    if silent_s >= limits.stuck_after_s:
        return Stuck(silent_s=silent_s)
    if status.phase == "running":
        return Healthy(phase=status.phase)
    if status.phase == "waiting":
        return Waiting()
    return Starting(status.phase)


def _compared(status: ProcessorStatus, desired: Deployment) -> Differs | None:
    """A difference between a running instance and its recorded deployment, such as another version; otherwise None."""
    # Workers of earlier Holdfast versions report an empty code version, which is no difference.
    if status.code_version not in ("", desired.code_version):
        said = f"It runs version {status.code_version}, but version {desired.code_version} is deployed."
        return Differs("other-version", said, f"holdfast apply deploy {desired.processor}")
    if status.paused:
        waits = "an unknown number of records waits" if status.lag is None else f"{status.lag:,} records wait"
        said = f"It is paused and reads no input; {waits}."
        return Differs("paused", said, f"holdfast apply restart {desired.processor}", warns=True)
    return None


def _unwanted(action: str) -> Differs:
    said = "It runs, but it is not recorded as a worker that should run: an apply was broken off."
    return Differs("unwanted-worker", said, action)
