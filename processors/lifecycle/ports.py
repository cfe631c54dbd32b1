"""What lifecycle needs of the world, as protocols; ``infra`` and ``processors.engine.serving`` implement them.

Invariants:
    - Everything here can be told apart from its implementation: no protocol names a supervisor, a database or
      a transport.
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

#: How often a holder says that it still works on it, seconds.
BEAT_S = 5.0
#: A holder that says nothing for so long is taken for dead, seconds.
SILENT_S = 60.0


class InputPosition(Protocol):
    """Where a task stands in one input partition (offsets; None when not known yet)."""

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
    """One partition's work, as the processor tells it."""

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
    """One processor instance, as it tells about itself (times in epoch seconds)."""

    @property
    def phase(self) -> str:
        """starting, joining, restoring, running, waiting, stopping or failed."""
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
        """Whether it was told to read no input."""
        ...

    @property
    def started_at(self) -> float:
        """When it started."""
        ...

    @property
    def heartbeat_at(self) -> float:
        """When its loop last went round."""
        ...

    @property
    def error(self) -> Mapping[str, Any] | None:
        """Why it failed: type, message, action."""
        ...

    @property
    def tasks(self) -> Sequence[TaskStatus]:
        """The tasks assigned to it."""
        ...


class ProcessorStatusSource(Protocol):
    """One way to ask one processor instance."""

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        """What it says; None when it doesn't answer within the time."""
        ...

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        """When that very process last gave a sign of life; None when it never came so far."""
        ...

    def last_failure(self) -> ProcessorStatus | None:
        """What it said when it last ended with an error; None when it never did."""
        ...


class Deployments(Protocol):
    """The memory of what processors are meant to be, and of what was done."""

    def deployment(self, processor: str) -> Deployment | None:
        """What a processor is meant to be; None when it was never deployed."""
        ...

    def deployments(self) -> Sequence[Deployment]:
        """What every processor is meant to be, by name."""
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
        """Set that a processor is meant to be up."""
        ...

    def record_stopped(self, processor: str, now: datetime) -> Deployment | None:
        """Set that a processor is meant to be down."""
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
        """Keep that a verb was applied."""
        ...

    def actions(self, limit: int = ...) -> Sequence[Action]:
        """The newest actions, newest first."""
        ...


class Incidents(Protocol):
    """The memory of failures and of what was done about them."""

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
        """Take an open incident for one run; one run wins."""
        ...

    def begin_attempt(self, incident_id: int) -> int:
        """Count one more attempt; its number."""
        ...

    def forgive_attempt(self, incident_id: int) -> None:
        """Take the last attempt back."""
        ...

    def decide_incident(self, incident_id: int, kind: str, remedy: str, action: str) -> bool:
        """Set what an open incident is by now, and what is done about it."""
        ...

    def retry_incident(self, incident_id: int, now: datetime) -> bool:
        """Open a failed incident again; false when it did not fail, or another one is open."""
        ...

    def release_incident(self, incident_id: int, run_id: str) -> bool:
        """Give an open incident back that the run holds."""
        ...

    def note_incident(
        self, incident_id: int, step: str, text: str, now: datetime, *, seconds: float | None = None
    ) -> None:
        """Add a line to the timeline."""
        ...

    def close_incident(self, incident_id: int, outcome: Outcome, now: datetime, *, reason: str = "") -> bool:
        """End an open incident."""
        ...


class Journal(Protocol):
    """The plans that were shown and the applies that were begun.

        OPEN ──claimed by a run──► OPEN, held ──every stage noted──► DONE
         ▲  ▲                        │    │
         │  └──────its run died──────┘    └──a stage failed──► OPEN, not held, with the reason ──► goes on, or ABANDONED
         └── of one processor there is at most one

    Invariants:
        - The database refuses a second open apply of one processor.
        - The holder of an apply beats every ``BEAT_S``; after ``SILENT_S`` without a beat another holder may take over.
    """

    def remember_plan(self, plan_hash: str, processor: str, verb: str, plan: str, now: datetime) -> None:
        """Keep a plan that was shown."""
        ...

    def remembered_plan(self, plan_hash: str) -> str | None:
        """A plan that was shown; None when it never was, or too long ago."""
        ...

    def begin_apply(
        self, *, processor: str, verb: str, plan_hash: str, plan: str, who: str, holder: str, now: datetime
    ) -> tuple[ApplyRecord, bool]:
        """The processor's open apply, and whether this call began it (and holds it)."""
        ...

    def claim_apply(self, apply_id: int, holder: str, now: datetime, *, instead_of: str | None) -> bool:
        """Take an open apply over from that holder (None: from nobody); false when somebody else was quicker."""
        ...

    def beat_apply(self, apply_id: int, holder: str, now: datetime) -> bool:
        """Say that one still works on it; false when it is not ours any more."""
        ...

    def note_stage(self, apply_id: int, holder: str, note: StageNote, now: datetime) -> bool:
        """Record that a stage is through; false when the apply is not ours any more."""
        ...

    def let_go_of_apply(self, apply_id: int, holder: str, reason: str, now: datetime) -> None:
        """Leave it open for another try."""
        ...

    def end_apply(self, apply_id: int, outcome: ApplyOutcome, now: datetime, *, reason: str = "") -> bool:
        """End it; false when it had ended."""
        ...

    def applies(self, limit: int = ..., *, processor: str | None = ..., open_only: bool = ...) -> Sequence[ApplyRecord]:
        """The newest applies, newest first."""
        ...

    def stage_rates(self, processor: str) -> dict[str, tuple[float, float]]:
        """By stage, the units of work and the seconds of the processor's applies that are through."""
        ...


class Releases(Protocol):
    """The releases of processors, kept in the registry."""

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
        """Keep a release."""
        ...

    def works(self, processor: str, release_id: str, now: datetime) -> None:
        """Set that a release works on every partition."""
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
        """The releases, those that were made or worked last first."""
        ...

    def forget(self, processor: str, release_id: str) -> None:
        """Remove the record of a release."""
        ...


class Memory(Deployments, Incidents, Protocol):
    """The registry, as the lifecycle sees it."""

    @property
    def journal(self) -> Journal:
        """Plans that were shown, and applies."""
        ...

    @property
    def releases(self) -> Releases:
        """What versions are made of."""
        ...


def now_utc() -> datetime:
    """The present moment."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class World:
    """What deployment and recovery act through."""

    deployer: Deployer
    #: The way to ask one instance: processor, slot -> source.
    statuses: Callable[[str, str], ProcessorStatusSource]
    registry: Memory
    paths: Paths
    clock: Callable[[], datetime] = now_utc
