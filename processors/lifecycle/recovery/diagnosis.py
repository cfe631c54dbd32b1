"""What is wrong with a processor instance, if anything: a pure decision over what was seen.

Invariants:
    - The same facts give the same diagnosis; nothing here reads a clock, a process or a database.
    - The union is closed: every case is one of ``Diagnosis``, and each says itself in one sentence.
    - An instance that is meant to be down, or that is being deployed, never needs recovery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from holdfast.infra.database.records import Deployment, Incident
from holdfast.infra.deploy.programs import ProgramStatus
from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE, EXIT_DISK_FAILURE
from holdfast.processors.lifecycle.ports import ProcessorStatus
from holdfast.processors.lifecycle.recovery.faults import Kind, kind_of_end, kind_of_error

_EXIT_MEANINGS = {
    0: "it stopped cleanly, though nobody here asked it to",
    1: "processing failed",
    EXIT_BAD_CONFIGURATION: "bad configuration",
    EXIT_BROKER_UNAVAILABLE: "the broker could not be reached",
    EXIT_DISK_FAILURE: "the disk failed",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How long what may last before it counts as a failure, seconds."""

    #: Silence of the processing loop.
    stuck_after_s: float = 30.0
    #: From the start of the process to its first answer.
    start_s: float = 60.0
    #: From a requested stop to the start that follows it.
    stop_s: float = 60.0
    #: A deployment; one that is older was interrupted.
    deploy_s: float = 600.0
    #: After a failed incident, until the next is opened for the same processor without a new deployment.
    retry_s: float = 900.0
    #: At most so many incidents of one processor within ``retry_s``.
    incidents: int = 5


@dataclass(frozen=True, slots=True)
class Healthy:
    """It works."""

    phase: str
    kind: ClassVar[Kind] = "healthy"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        """For people."""
        return f"It is {self.phase}."


@dataclass(frozen=True, slots=True)
class NotDeployed:
    """It is not meant to be up."""

    #: It has a process all the same.
    alive: bool = False
    kind: ClassVar[Kind] = "not-deployed"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        """For people."""
        return "It is not meant to run" + (", but it does." if self.alive else ".")


@dataclass(frozen=True, slots=True)
class Starting:
    """It is on its way, and has time left."""

    what: str
    kind: ClassVar[Kind] = "starting"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        """For people."""
        return f"It is {self.what}."


@dataclass(frozen=True, slots=True)
class Waiting:
    """It lives, and waits for its broker; it goes on by itself."""

    kind: ClassVar[Kind] = "broker-away"
    needs_recovery: ClassVar[bool] = False

    @property
    def sentence(self) -> str:
        """For people."""
        return "It is waiting for its broker."


@dataclass(frozen=True, slots=True)
class Dead:
    """It has no process, though it is meant to."""

    exit_status: int | None
    signal: str | None
    needs_recovery: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        """What the end alone tells."""
        return kind_of_end(self.exit_status)

    @property
    def sentence(self) -> str:
        """For people."""
        if self.signal is not None:
            return f"Its process was killed by {self.signal}."
        if self.exit_status is not None:
            meaning = _EXIT_MEANINGS.get(self.exit_status, "unexpected")
            return f"Its process ended with status {self.exit_status} ({meaning})."
        return "It has no process."


@dataclass(frozen=True, slots=True)
class Stuck:
    """It has a process that doesn't get on."""

    silent_s: float
    kind: ClassVar[Kind] = "stuck"
    needs_recovery: ClassVar[bool] = True

    @property
    def sentence(self) -> str:
        """For people."""
        return f"Its process gave no sign of life for {self.silent_s:.0f} s."


@dataclass(frozen=True, slots=True)
class Failed:
    """It gave up, and says why; its process may be there still."""

    error: Mapping[str, Any] = field(default_factory=dict)
    needs_recovery: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        """What the error's cause tells."""
        return kind_of_error(self.error)

    @property
    def sentence(self) -> str:
        """For people."""
        said = self.error.get("message", "it doesn't say why")
        return f"It gave up: {self.error.get('type', 'error')}: {said}"


Diagnosis = Healthy | NotDeployed | Starting | Waiting | Dead | Stuck | Failed


def diagnose(
    program: ProgramStatus | None,
    status: ProcessorStatus | None,
    desired: Deployment | None,
    now: datetime,
    limits: Limits,
    *,
    answered_at: datetime | None = None,
) -> Diagnosis:
    """What is wrong with one instance.

    Args:
        program: What the supervisor says; None when it doesn't know the program.
        status: What the process says, or said when it ended with an error; None when it doesn't answer.
        desired: What the processor is meant to be.
        now: The moment of the facts.
        limits: What may last how long.
        answered_at: When the process last gave a sign of life: answered the caller, or wrote one down itself. A
            process that doesn't answer now is stuck only when that is long ago. None: it never gave one, and is stuck
            only when it had time to start.
    """
    alive = program is not None and program.alive
    if desired is None or desired.desired == "stopped":
        return NotDeployed(alive=alive)
    if desired.desired == "deploying" and _age(desired.updated_at, now) < limits.deploy_s:
        return Starting(f"being deployed since {_age(desired.updated_at, now):.0f} s")
    if program is None:
        return Dead(exit_status=None, signal=None)
    if not program.alive:
        stopped = program.state == "STOPPED" and program.since is not None
        if stopped and _age(program.since, now) < limits.stop_s:
            return Starting(f"stopped on request since {_age(program.since, now):.0f} s")
        if status is not None and status.error:
            return Failed(error=dict(status.error))
        return Dead(exit_status=program.exit_status, signal=program.signal)
    if program.state == "STOPPING":
        return Starting("stopping on request")
    if status is None or status.pid != program.pid:
        return _silent(program, now, limits, answered_at)
    return _of_answer(status, now, limits)


def admits_incident(
    recent: Sequence[Incident],
    desired: Deployment | None,
    now: datetime,
    limits: Limits,
    *,
    said: frozenset[str] = frozenset(),
) -> bool:
    """Whether a new failure of a processor deserves an incident of its own.

    A failed incident means that restarts don't help: the next one is opened only after a new deployment or
    after ``limits.retry_s``. One that asks a person is not followed by another that says the same. A processor that
    comes up and dies again and again gets a bounded number.

    Args:
        recent: The processor's newest incidents, newest first (``limits.incidents`` of them are enough).
        desired: What the processor is meant to be.
        now: The present moment.
        limits: The bounds.
        said: What is wrong now, in the gravest sentence.
    """
    if not recent or recent[0].closed_at is None:
        return True
    last, closed_at = recent[0], recent[0].closed_at
    deployed_since = desired is not None and desired.updated_at > closed_at
    if last.outcome == "failed" and not deployed_since:
        if _age(closed_at, now) < limits.retry_s:
            return False
        if last.remedy == "ask" and said and said <= frozenset(map(str, last.detail.values())):
            return False
    return _within(recent, desired, now, limits) < limits.incidents


def flaps(recent: Sequence[Incident], desired: Deployment | None, now: datetime, limits: Limits) -> bool:
    """Whether a processor that failed again came up and died so often that trying goes on no longer; for the arguments
    see ``admits_incident``.
    """
    if not recent or recent[0].is_open or recent[0].outcome == "failed":
        return False
    return _within(recent, desired, now, limits) >= limits.incidents


def _within(recent: Sequence[Incident], desired: Deployment | None, now: datetime, limits: Limits) -> int:
    """How many incidents there were in the last while, of the deployment that is."""
    window = now - timedelta(seconds=limits.retry_s)
    since = window if desired is None else max(window, desired.updated_at)
    return sum(incident.opened_at > since for incident in recent)


def _silent(program: ProgramStatus, now: datetime, limits: Limits, answered_at: datetime | None) -> Diagnosis:
    since = now if program.since is None else program.since
    if answered_at is None or answered_at < since:
        running_s = _age(since, now)
        if running_s < limits.start_s:
            return Starting(f"starting since {running_s:.0f} s")
        return Stuck(silent_s=running_s)
    silent_s = _age(answered_at, now)
    if silent_s < limits.stuck_after_s:
        return Starting(f"not answering since {silent_s:.0f} s")
    return Stuck(silent_s=silent_s)


def _of_answer(status: ProcessorStatus, now: datetime, limits: Limits) -> Diagnosis:
    if status.phase == "failed":
        return Failed(error=dict(status.error or {}))
    silent_s = now.timestamp() - status.heartbeat_at
    if silent_s >= limits.stuck_after_s:
        return Stuck(silent_s=silent_s)
    if status.phase == "running":
        return Healthy(phase=status.phase)
    if status.phase == "waiting":
        return Waiting()
    return Starting(status.phase)


def _age(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
