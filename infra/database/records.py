"""The registry's facts, as values.

Invariants:
    - Every time is timezone-aware (UTC).
    - A record is what the database held at one moment; nothing here reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

#: How an incident can end.
Outcome = Literal["resolved", "failed"]

#: How an apply can end.
ApplyOutcome = Literal["done", "failed", "abandoned", "superseded"]

#: What a processor is meant to be: being rolled out, up, or down on purpose.
DesiredState = Literal["deploying", "deployed", "stopped"]


@dataclass(frozen=True, slots=True)
class IncidentNote:
    """One line of an incident's timeline: a step of the recovery, what it found or did, how long it took."""

    step: str
    text: str
    at: datetime
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure of one processor, from its notice to its end."""

    id: int
    processor: str
    kind: str
    detail: Mapping[str, Any]
    opened_at: datetime
    #: The run that works on it, and since when.
    claimed_by: str | None
    claimed_at: datetime | None
    #: Attempts begun so far.
    attempts: int
    closed_at: datetime | None
    outcome: Outcome | None
    reason: str
    timeline: tuple[IncidentNote, ...]
    #: What is being done about it: restart, rebuild, wait or ask; empty while that is not decided.
    remedy: str = ""
    #: The one thing that a person has to do; empty when nothing has to be done.
    action: str = ""
    #: Who has seen it, when, and what they said.
    acknowledged_by: str | None = None
    acknowledged_at: datetime | None = None
    acknowledgement: str = ""
    #: When a person last asked to have it tried again.
    retried_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an outcome."""
        return self.closed_at is None


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a processor is meant to be."""

    processor: str
    code_version: str
    slots: tuple[str, ...]
    desired: DesiredState
    #: Grows by one with each record; 1 is the first.
    generation: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Action:
    """One applied verb: who did what, when, with which plan, and how it ended."""

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
    """One warehouse snapshot that was begun; finished once it has the table's own snapshot id."""

    snapshot_id: str
    table: str
    detail: Mapping[str, Any]
    claimed_at: datetime
    iceberg_snapshot_id: int | None
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether its table version was committed."""
        return self.finished_at is not None


@dataclass(frozen=True, slots=True)
class StageNote:
    """A stage that was carried out: what it came to, how many units of work it was, and how long it took."""

    number: int
    stage: str
    text: str
    units: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """One apply of a plan: ``plan`` is the plan as it was encoded, ``done`` the stages that are through, in order."""

    id: int
    processor: str
    verb: str
    plan_hash: str
    plan: str
    who: str
    #: The run that carries it out, and when it last said so; None when nobody does.
    holder: str | None
    beat_at: datetime
    started_at: datetime
    finished_at: datetime | None
    outcome: ApplyOutcome | None
    reason: str
    done: tuple[StageNote, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """A version of a processor as it was deployed: its code, and what it is made of.

    ``target`` is its module:attribute; ``folder`` holds the copy of its code, None when it was not copied.
    """

    processor: str
    release_id: str
    code_version: str
    target: str
    folder: str | None
    #: Its topics and stores, as ``processors.lifecycle.plans.shape.Shape``.
    shape: Mapping[str, Any]
    made_at: datetime
    #: When it was last known to work on every partition; None when it never was.
    worked_at: datetime | None
