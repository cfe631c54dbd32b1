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

from holdfast.infra.database.records import Action, Deployment, Incident, Outcome
from holdfast.infra.deploy.deployer import Deployer
from holdfast.infra.paths import Paths
from holdfast.processors.lifecycle.deploy.releases import Releases
from holdfast.processors.lifecycle.journal import Journal


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
