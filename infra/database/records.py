"""The registry's records as values.

Invariants:
    - Every time is timezone-aware (UTC).
    - A record holds the database's content at one moment, and never reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from holdfast.infra.database.lease_times import SILENT_S

#: Outcomes of an incident.
Outcome = Literal["resolved", "failed"]

#: Outcomes of an apply.
ApplyOutcome = Literal["done", "failed", "abandoned", "superseded"]

#: Desired states of a processor: being rolled out, running, or stopped by an operator.
DesiredState = Literal["deploying", "deployed", "stopped"]


@dataclass(frozen=True, slots=True)
class IncidentNote:
    """One line of an incident's timeline: a step of the recovery, its result, and its duration in seconds."""

    step: str
    text: str
    at: datetime
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure of one processor, from its detection to its end."""

    id: int
    processor: str
    kind: str
    detail: Mapping[str, Any]
    opened_at: datetime
    #: The run that recovers the incident, and the time of its claim.
    claimed_by: str | None
    claimed_at: datetime | None
    #: Number of attempts so far.
    attempts: int
    closed_at: datetime | None
    outcome: Outcome | None
    reason: str
    timeline: tuple[IncidentNote, ...]
    #: The chosen remedy: restart, rebuild, wait or ask; empty before the decision.
    remedy: str = ""
    #: The operator's next step; empty when none is needed.
    action: str = ""
    #: The operator who acknowledged the incident, when, and the note.
    acknowledged_by: str | None = None
    acknowledged_at: datetime | None = None
    acknowledgement: str = ""
    #: When an operator last asked for a retry.
    retried_at: datetime | None = None
    #: Slot -> the fault that recovery left to a person; recovery continues with the other slots.
    asks: Mapping[str, str] = field(default_factory=dict)
    #: The token of the run that has claimed the incident. Each claim gets a new token; writes with an older token have
    #: no effect.
    token: int = 0
    #: Seconds since the last sign of life of the claiming run, by the database's clock, when the record was read.
    silent_s: float = field(default=0.0, compare=False)

    @property
    def is_worked_on(self) -> bool:
        """Whether a live run held the claim when the record was read."""
        return self.is_open and self.claimed_by is not None and self.silent_s <= SILENT_S

    @property
    def is_open(self) -> bool:
        """Whether the incident has no outcome yet."""
        return self.closed_at is None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The desired state of a processor."""

    processor: str
    code_version: str
    slots: tuple[str, ...]
    desired: DesiredState
    #: Grows by one with each change; starts at 1.
    generation: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Action:
    """One applied verb: its operator, plan, times and outcome."""

    id: int
    verb: str
    subject: str
    who: str
    plan: str
    outcome: str
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """One warehouse snapshot; finished once it has Iceberg's snapshot id."""

    snapshot_id: str
    table: str
    detail: Mapping[str, Any]
    claimed_at: datetime
    iceberg_snapshot_id: int | None
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether the table version was committed."""
        return self.finished_at is not None


@dataclass(frozen=True, slots=True)
class StageNote:
    """A finished stage: its result, its units of work, and its duration."""

    number: int
    stage: str
    text: str
    units: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """One apply of a plan: ``plan`` is the encoded plan, ``done`` the finished stages in order."""

    id: int
    processor: str
    verb: str
    plan_hash: str
    plan: str
    who: str
    #: The run that executes the apply; None when no run does.
    holder: str | None
    #: Changes with the holder. A write has an effect only with the present one.
    token: int
    started_at: datetime
    finished_at: datetime | None
    outcome: ApplyOutcome | None
    reason: str
    done: tuple[StageNote, ...]
    #: Seconds since the holder's last sign of life, by the database's clock, when the record was read.
    silent_s: float = field(compare=False)

    @property
    def is_live(self) -> bool:
        """Whether a live run held the open apply when the record was read."""
        return self.finished_at is None and self.holder is not None and self.silent_s <= SILENT_S


@dataclass(frozen=True, slots=True)
class Release:
    """A deployed version of a processor.

    ``target`` is module:attribute; ``folder`` holds the copy of the code, None when the code was not copied.
    """

    processor: str
    release_id: str
    code_version: str
    target: str
    folder: str | None
    #: Topics and stores, as ``processors.lifecycle.plans.shape.Shape``.
    shape: Mapping[str, Any]
    #: When the release was last deployed as the newest version; if never, when it was recorded.
    made_at: datetime
    #: When the release last processed every partition; None if never.
    worked_at: datetime | None
