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
