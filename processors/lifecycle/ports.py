"""The ports of the lifecycle, as protocols; ``infra`` and ``processors.engine.serving`` implement them.

Invariants:
    - No protocol depends on its implementation: none names a supervisor, a database or a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from holdfast.infra.database.records import (
    Action,
    ApplyOutcome,
    ApplyRecord,
    Deployment,
    Incident,
    Outcome,
    Release,
    StageNote,
)
from holdfast.infra.deploy.deployer import Deployer
from holdfast.infra.paths import Paths

#: Interval at which the holder of an apply records that it is alive, seconds.
BEAT_S = 5.0
#: A holder without such a record for so long counts as dead, seconds.
SILENT_S = 60.0


class InputPosition(Protocol):
    """A task's offsets in one input partition; None while unknown."""

    @property
    def committed(self) -> int | None:
        """The next offset after the last commit."""
        ...

    @property
    def position(self) -> int | None:
        """The next offset to be processed."""
        ...

    @property
    def end(self) -> int | None:
        """The partition's end."""
        ...

    @property
    def lag(self) -> int | None:
        """Records between position and end."""
        ...


class TaskStatus(Protocol):
    """The status of one task, as its processor reports it."""

    @property
    def partition(self) -> int:
        """The partition's number."""
        ...

    @property
    def phase(self) -> str:
        """``restoring`` or ``running``."""
        ...

    @property
    def inputs(self) -> Mapping[str, InputPosition]:
        """Positions by input topic."""
        ...


class ProcessorStatus(Protocol):
    """The status of one processor instance, as it reports it; times are seconds since 1970."""

    @property
    def phase(self) -> str:
        """One of starting, joining, restoring, running, waiting, stopping, failed."""
        ...

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def code_version(self) -> str:
        """The version of the topology that it runs."""
        ...

    @property
    def paused(self) -> bool:
        """Whether it reads no input."""
        ...

    @property
    def started_at(self) -> float:
        """When it started."""
        ...

    @property
    def heartbeat_at(self) -> float:
        """When its loop last completed a turn."""
        ...

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error it failed with (type, message, action); None without one."""
        ...

    @property
    def tasks(self) -> Sequence[TaskStatus]:
        """The tasks assigned to it."""
        ...


class ProcessorStatusSource(Protocol):
    """Asks one processor instance for its status."""

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """Its status; None when it does not answer within the timeout."""
        ...

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """The last heartbeat of the process with this pid; None when it had none."""
        ...

    def last_failure(self) -> ProcessorStatus | None:
        """Its status when it last ended with an error; None when it never did."""
        ...


class Deployments(Protocol):
    """Records of deployments and of actions."""

    def deployment(self, processor: str) -> Deployment | None:
        """The recorded deployment of a processor; None when it was never deployed."""
        ...

    def deployments(self) -> Sequence[Deployment]:
        """The recorded deployments of all processors, by name."""
        ...

    def record_deployment(
        self,
        processor: str,
        code_version: str,
        slots: Sequence[str],
        now: datetime,
        *,
        desired: Literal["deploying", "deployed"] = ...,
    ) -> Deployment:
        """Record that a processor is meant to run."""
        ...

    def record_stopped(self, processor: str, now: datetime) -> Deployment | None:
        """Record that a processor is meant to be stopped."""
        ...

    def record_action(
        self,
        verb: str,
        subject: str,
        who: str,
        plan: str,
        outcome: str,
        started_at: datetime,
        finished_at: datetime,
    ) -> Action:
        """Record that a verb was applied."""
        ...

    def actions(self, limit: int = ...) -> Sequence[Action]:
        """The newest actions, newest first."""
        ...


class Incidents(Protocol):
    """Records of failures and of their recovery."""

    def incident(self, incident_id: int) -> Incident | None:
        """One incident with its timeline."""
        ...

    def incidents(self, limit: int = ..., *, processor: str | None = ...) -> tuple[Incident, ...]:
        """The newest incidents, newest first."""
        ...

    def open_incident(
        self, processor: str, kind: str, detail: Mapping[str, Any], now: datetime
    ) -> tuple[Incident, bool]:
        """The processor's open incident, and whether this call opened it."""
        ...

    def claim_incident(self, incident_id: int, run_id: str, now: datetime) -> bool:
        """Claim an open incident for one run; False when another run holds it."""
        ...

    def begin_attempt(self, incident_id: int) -> int:
        """Count one more attempt; returns its number."""
        ...

    def forgive_attempt(self, incident_id: int) -> None:
        """Uncount the last attempt."""
        ...

    def decide_incident(self, incident_id: int, kind: str, remedy: str, action: str) -> bool:
        """Set kind, remedy and action of an open incident."""
        ...

    def retry_incident(self, incident_id: int, now: datetime) -> bool:
        """Open a failed incident again; False when it did not fail, or another one is open."""
        ...

    def release_incident(self, incident_id: int, run_id: str) -> bool:
        """Release an open incident that the run holds."""
        ...

    def note_incident(
        self, incident_id: int, step: str, text: str, now: datetime, *, seconds: float | None = None
    ) -> None:
        """Add a line to the timeline."""
        ...

    def close_incident(self, incident_id: int, outcome: Outcome, now: datetime, *, reason: str = "") -> bool:
        """Close an open incident."""
        ...


class Journal(Protocol):
    """Records of shown plans and of applies.

        OPEN ──claimed by a run──► OPEN, held ──every stage noted──► DONE
         ▲  ▲                        │    │
         │  └──────its run died──────┘    └──a stage failed──► OPEN, not held, with the reason ──► resumed or ABANDONED
         └── at most one per processor

    Invariants:
        - The database refuses a second open apply of one processor.
        - The holder of an apply beats every ``BEAT_S``; after ``SILENT_S`` without a beat another holder may take over.
    """

    def remember_plan(self, plan_hash: str, processor: str, verb: str, plan: str, now: datetime) -> None:
        """Record a plan that was shown."""
        ...

    def remembered_plan(self, plan_hash: str) -> str | None:
        """A plan that was shown, as JSON; None when it was never shown, or too long ago."""
        ...

    def begin_apply(
        self, *, processor: str, verb: str, plan_hash: str, plan: str, who: str, holder: str, now: datetime
    ) -> tuple[ApplyRecord, bool]:
        """The processor's open apply, and whether this call began it (and holds it)."""
        ...

    def claim_apply(self, apply_id: int, holder: str, now: datetime, *, instead_of: str | None) -> bool:
        """Take an open apply over from ``instead_of`` (None: not held); False when another run took it first."""
        ...

    def beat_apply(self, apply_id: int, holder: str, now: datetime) -> bool:
        """Record that the holder is alive; False when another run took the apply over."""
        ...

    def note_stage(self, apply_id: int, holder: str, note: StageNote, now: datetime) -> bool:
        """Record a stage as done; False when another run took the apply over."""
        ...

    def let_go_of_apply(self, apply_id: int, holder: str, reason: str, now: datetime) -> None:
        """Release an apply, which stays open with the reason and can be resumed."""
        ...

    def end_apply(self, apply_id: int, outcome: ApplyOutcome, now: datetime, *, reason: str = "") -> bool:
        """End an open apply; False when it had already ended."""
        ...

    def applies(self, limit: int = ..., *, processor: str | None = ..., open_only: bool = ...) -> Sequence[ApplyRecord]:
        """The newest applies, newest first."""
        ...

    def stage_rates(self, processor: str) -> dict[str, tuple[float, float]]:
        """Stage tag -> units of work and seconds, summed over done stages of the processor."""
        ...


class Releases(Protocol):
    """Records of releases."""

    def record(  # tidy: allow-wide because each is a part of the record
        self,
        processor: str,
        release_id: str,
        *,
        code_version: str,
        target: str,
        folder: str | None,
        shape: Mapping[str, Any],
        now: datetime,
    ) -> None:
        """Record a release."""
        ...

    def works(self, processor: str, release_id: str, now: datetime) -> None:
        """Record that a release processes every partition."""
        ...

    def working(self, processor: str) -> Release | None:
        """The release that worked last."""
        ...

    def of_version(self, processor: str, code_version: str) -> Release | None:
        """The release of a version."""
        ...

    def find(self, processor: str, release_id: str) -> Release | None:
        """One release."""
        ...

    def newest(self, processor: str, limit: int = ...) -> Sequence[Release]:
        """Releases, the most recently made or working ones first."""
        ...

    def forget(self, processor: str, release_id: str) -> None:
        """Remove the record of a release."""
        ...


class Memory(Deployments, Incidents, Protocol):
    """The registry, as the lifecycle uses it."""

    @property
    def journal(self) -> Journal:
        """Records of shown plans and of applies."""
        ...

    @property
    def releases(self) -> Releases:
        """Records of releases."""
        ...


def now_utc() -> datetime:
    """The present time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class World:
    """The ports that deployment and recovery act through."""

    deployer: Deployer
    #: Processor, slot -> status source of that instance.
    statuses: Callable[[str, str], ProcessorStatusSource]
    registry: Memory
    paths: Paths
    clock: Callable[[], datetime] = now_utc
