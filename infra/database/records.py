"""The records of Holdfast's registry as immutable Python objects.

Invariants:
    - Every time is timezone-aware (UTC).
    - A record is a copy of the database's content at one moment; it is never updated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from holdfast.infra.database.lease_times import SILENT_S

#: Possible outcomes of an incident.
Outcome = Literal["resolved", "failed"]

#: Possible outcomes of an apply (one execution of a plan).
ApplyOutcome = Literal["done", "failed", "abandoned", "superseded"]

#: Desired states of a processor: a deployment is in progress, it should run, or an operator stopped it.
DesiredState = Literal["deploying", "deployed", "stopped"]


@dataclass(frozen=True, slots=True)
class IncidentNote:
    """One entry of an incident's timeline: a step of the recovery, its result, and its duration in seconds."""

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
    #: The id of the run that recovers the incident. The next field is the time at which the run claimed the incident.
    claimed_by: str | None
    claimed_at: datetime | None
    #: Number of attempts so far to recover the processor from this incident.
    attempts: int
    closed_at: datetime | None
    outcome: Outcome | None
    reason: str
    timeline: tuple[IncidentNote, ...]
    #: The chosen remedy: restart, rebuild, wait or ask; empty before the decision.
    remedy: str = ""
    #: The action that the operator must take; empty if no action is needed.
    action: str = ""
    #: The acknowledgement of an operator: name, time and note.
    acknowledged_by: str | None = None
    acknowledged_at: datetime | None = None
    acknowledgement: str = ""
    #: Time at which an operator last asked for a retry.
    retried_at: datetime | None = None
    #: Slot (place of a worker) -> its fault, if only a person can repair the fault. Recovery continues with the other
    #: slots.
    asks: Mapping[str, str] = field(default_factory=dict)
    #: The token of the present claim (the right of one run to recover the incident). Each claim gets another token.
    #: Writes with an earlier token have no effect.
    token: int = 0
    #: Seconds between the last heartbeat of the run that claimed the incident and the read of this record, by the
    #: database's clock.
    silent_s: float = field(default=0.0, compare=False)

    @property
    def is_worked_on(self) -> bool:
        """Whether a live run had claimed the incident when this record was read."""
        return self.is_open and self.claimed_by is not None and self.silent_s <= SILENT_S

    @property
    def is_open(self) -> bool:
        """Whether the incident has no outcome yet."""
        return self.closed_at is None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The desired state of a processor: code version, slots (worker processes), and whether it should run."""

    processor: str
    code_version: str
    slots: tuple[str, ...]
    desired: DesiredState
    #: A number that starts at 1 and grows with each change of this record.
    generation: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Action:
    """An entry of the registry's log of actions: an executed verb, with its operator, plan, times and outcome."""

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
    """One snapshot of a store in the warehouse; it is finished once ``iceberg_snapshot_id`` is set."""

    snapshot_id: str
    table: str
    detail: Mapping[str, Any]
    claimed_at: datetime
    iceberg_snapshot_id: int | None
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether the snapshot's table version was committed to Iceberg."""
        return self.finished_at is not None


@dataclass(frozen=True, slots=True)
class StageNote:
    """A finished stage of an apply (executed plan): its result as text, its units of work and its duration, seconds."""

    number: int
    stage: str
    text: str
    units: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """One execution (apply) of a plan. ``plan`` is the encoded plan; ``done`` are the finished stages, in order."""

    id: int
    processor: str
    verb: str
    plan_hash: str
    plan: str
    who: str
    #: Name of the process that executes the apply; None if no process executes it.
    holder: str | None
    #: A number that changes each time another process becomes the holder. Only writes with the present token have an
    #: effect.
    token: int
    started_at: datetime
    finished_at: datetime | None
    outcome: ApplyOutcome | None
    reason: str
    done: tuple[StageNote, ...]
    #: Seconds between the last heartbeat of the process that executes the apply and the read of this record, by the
    #: database's clock.
    silent_s: float = field(compare=False)

    @property
    def is_live(self) -> bool:
        """Whether the apply (execution of a plan) was open, and a live process held it, when this record was read."""
        return self.finished_at is None and self.holder is not None and self.silent_s <= SILENT_S


@dataclass(frozen=True, slots=True)
class Release:
    """A deployed version of a processor.

    ``target`` is the application as ``module:attribute``. ``folder`` has the copied code; None if it was not copied.
    """

    processor: str
    release_id: str
    code_version: str
    target: str
    folder: str | None
    #: Topics and stores of the version, as a document of ``processors.lifecycle.plans.facts.shape.Shape``.
    shape: Mapping[str, Any]
    #: Time at which the release was last deployed as the newest version. If it was never the newest version, time at
    #: which it was recorded.
    made_at: datetime
    #: Last time at which the release was seen to process every partition; None if never.
    worked_at: datetime | None
