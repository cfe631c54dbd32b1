"""The registry: incidents, desired deployments, applied actions and snapshots in one small SQL database.

Sensors, runs and commands share it; it outlives each of their processes.

Invariants:
    - Each processor has at most one open incident, and each incident at most one claimer; the database decides both.
    - A closed incident changes in three ways only: its timeline gets a line, an operator acknowledges it, or an
      operator retries a failed one, which opens it again.
    - Every change is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Connection, Row, Select, case, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from holdfast.infra.database import schema, tables
from holdfast.infra.database.applies import ApplyJournal
from holdfast.infra.database.connections import Connections
from holdfast.infra.database.errors import RecordUnknown
from holdfast.infra.database.records import (
    Action,
    Deployment,
    DesiredState,
    Incident,
    IncidentNote,
    Outcome,
    SnapshotRecord,
)
from holdfast.infra.database.releases import ReleaseBook

log = structlog.get_logger(__name__)

_INCIDENT = tables.incidents.c
_IS_OPEN = _INCIDENT.closed_at.is_(None)


class Registry:
    """The registry at one SQLAlchemy URL, ``sqlite:///<file>`` or ``postgresql+psycopg://...``; thread-safe.

    Every method raises RegistryUnavailable when the database fails. ``begin_attempt``, ``note_incident`` and
    ``acknowledge_incident`` raise RecordUnknown when the id is unknown.
    """

    def __init__(self, url: str) -> None:
        self._database = Connections(url)
        #: For ``database.pruning``.
        self.database = self._database
        self.journal = ApplyJournal(self._database)
        self.releases = ReleaseBook(self._database)

    def migrate(self) -> str:
        """Create or upgrade the schema; returns its version. Several processes may call this at once.

        Raises:
            RegistryNewerThanCode: A newer Holdfast wrote the schema, which stays unchanged.
        """
        with self._database.reported():
            version = schema.migrate(self._database.engine)
        log.debug("registry.ready", url=schema.shown(self._database.engine.url), version=version)
        return version

    def close(self) -> None:
        """Close all connections."""
        self._database.engine.dispose()

    # --- incidents -----------------------------------------------------------------------------------------

    def open_incident(
        self, processor: str, kind: str, detail: Mapping[str, Any], now: datetime
    ) -> tuple[Incident, bool]:
        """The processor's open incident, and whether this call opened it."""
        values = {"processor": processor, "kind": kind, "detail": dict(detail), "opened_at": now}
        there = select(tables.incidents).where(_INCIDENT.processor == processor, _IS_OPEN)
        row, is_new = self._database.find_or_insert(there, tables.incidents, values)
        return self._with_timelines([row])[0], is_new

    def incident(self, incident_id: int) -> Incident | None:
        """One incident with its timeline; None when the id is unknown."""
        return next(iter(self._incidents(select(tables.incidents).where(_INCIDENT.id == incident_id))), None)

    def open_incidents(self) -> tuple[Incident, ...]:
        """All open incidents, oldest first."""
        return self._incidents(select(tables.incidents).where(_IS_OPEN).order_by(_INCIDENT.id))

    def incidents(self, limit: int = 50, *, processor: str | None = None) -> tuple[Incident, ...]:
        """The newest incidents of all processors or of one, newest first."""
        query = select(tables.incidents)
        if processor is not None:
            query = query.where(_INCIDENT.processor == processor)
        return self._incidents(query.order_by(_INCIDENT.id.desc()).limit(limit))

    def claim_incident(self, incident_id: int, run_id: str, now: datetime) -> bool:
        """Claim an open incident for a run; True for the run that holds the claim, also when it asks again."""
        free_or_mine = or_(_INCIDENT.claimed_by.is_(None), _INCIDENT.claimed_by == run_id)
        return self._change(incident_id, _IS_OPEN, free_or_mine, claimed_by=run_id, claimed_at=now)

    def release_incident(self, incident_id: int, run_id: str) -> bool:
        """End a run's claim of an open incident, so that another run may claim it."""
        mine = _INCIDENT.claimed_by == run_id
        return self._change(incident_id, _IS_OPEN, mine, claimed_by=None, claimed_at=None)

    def begin_attempt(self, incident_id: int) -> int:
        """Count an attempt at an incident; returns its number, from 1."""
        counted = update(tables.incidents).where(_INCIDENT.id == incident_id).values(attempts=_INCIDENT.attempts + 1)
        with self._database.writing() as connection:
            number = connection.execute(counted.returning(_INCIDENT.attempts)).scalar_one_or_none()
        if number is None:
            raise _unknown("incident", incident_id)
        return int(number)

    def forgive_attempt(self, incident_id: int) -> None:
        """Do not count the last attempt: its fault passes without a repair."""
        self._change(incident_id, _INCIDENT.attempts > 0, attempts=_INCIDENT.attempts - 1)

    def decide_incident(self, incident_id: int, kind: str, remedy: str, action: str) -> bool:
        """Set kind, remedy and action of an incident; False when it is closed."""
        return self._change(incident_id, _IS_OPEN, kind=kind, remedy=remedy, action=action)

    def acknowledge_incident(self, incident_id: int, who: str, note: str, now: datetime) -> None:
        """Record that an operator has seen an incident; replaces an earlier acknowledgement."""
        if not self._change(incident_id, acknowledged_by=who, acknowledged_at=now, acknowledgement=note):
            raise _unknown("incident", incident_id)

    def retry_incident(self, incident_id: int, now: datetime) -> bool:
        """Open a failed incident again with no attempt used; False when it has not failed, or another one is open."""
        failed = _INCIDENT.outcome == "failed"
        opened = {"closed_at": None, "outcome": None, "reason": "", "claimed_by": None, "claimed_at": None}
        fresh = {"remedy": "", "action": "", "attempts": 0, "retried_at": now}
        try:
            return self._change(incident_id, failed, **opened, **fresh)
        except IntegrityError:
            return False

    def note_incident(
        self, incident_id: int, step: str, text: str, now: datetime, *, seconds: float | None = None
    ) -> None:
        """Add a line to an incident's timeline; ``seconds`` is the duration of the step."""
        values = {"incident_id": incident_id, "step": step, "text": text, "at": now, "seconds": seconds}
        with self._database.writing() as connection:
            if connection.execute(select(_INCIDENT.id).where(_INCIDENT.id == incident_id)).one_or_none() is None:
                raise _unknown("incident", incident_id)
            connection.execute(insert(tables.incident_notes).values(values))

    def close_incident(self, incident_id: int, outcome: Outcome, now: datetime, *, reason: str = "") -> bool:
        """Close an incident; False when it was closed before, and keeps its first outcome."""
        return self._change(incident_id, _IS_OPEN, closed_at=now, outcome=outcome, reason=reason)

    # --- deployments ---------------------------------------------------------------------------------------

    def record_deployment(
        self,
        processor: str,
        code_version: str,
        slots: Sequence[str],
        now: datetime,
        *,
        desired: DesiredState = "deployed",
        after: int = 0,
    ) -> Deployment:
        """Set the desired version and slots of a processor. Its generation becomes greater than ``after``."""
        values = {"code_version": code_version, "slots": list(slots), "desired": desired, "updated_at": now}
        with self._database.writing() as connection:
            return self._set_deployment(connection, processor, values, after)

    def adopt_deployment(  # tidy: allow-wide because each is a column of the record
        self,
        processor: str,
        code_version: str,
        slots: Sequence[str],
        desired: DesiredState,
        now: datetime,
        *,
        after: int = 0,
    ) -> bool:
        """Record a desired state of a generation after ``after`` unless the processor has one; False when it has."""
        values = {"code_version": code_version, "slots": list(slots), "desired": desired, "updated_at": now}
        there = select(tables.deployments).where(tables.deployments.c.processor == processor)
        first = {"processor": processor, "generation": after + 1, **values}
        return self._database.find_or_insert(there, tables.deployments, first)[1]

    def record_stopped(self, processor: str, now: datetime) -> Deployment | None:
        """Set the desired state ``stopped``; None when the processor was never deployed."""
        with self._database.writing() as connection:
            there = select(tables.deployments).where(tables.deployments.c.processor == processor)
            if connection.execute(there).one_or_none() is None:
                return None
            return self._set_deployment(connection, processor, {"desired": "stopped", "updated_at": now})

    def deployment(self, processor: str) -> Deployment | None:
        """The desired state of a processor; None when it was never deployed."""
        rows = self._database.rows(select(tables.deployments).where(tables.deployments.c.processor == processor))
        return _deployment(rows[0]) if rows else None

    def deployments(self) -> tuple[Deployment, ...]:
        """The desired states of all processors, sorted by name."""
        query = select(tables.deployments).order_by(tables.deployments.c.processor)
        return tuple(map(_deployment, self._database.rows(query)))

    def knows_nothing(self) -> bool:
        """Whether the registry holds no record: it is new, or was lost and created again."""
        asked = (tables.deployments, tables.applies, tables.incidents, tables.releases, tables.actions)
        return not any(self._database.rows(select(each).limit(1)) for each in asked)

    # --- actions -------------------------------------------------------------------------------------------

    def record_action(
        self, verb: str, subject: str, who: str, plan: str, outcome: str, started_at: datetime, finished_at: datetime
    ) -> Action:
        """Record an applied verb with its explained plan and its outcome."""
        values: dict[str, Any] = {"verb": verb, "subject": subject, "who": who, "plan": plan, "outcome": outcome}
        values |= {"started_at": started_at, "finished_at": finished_at}
        with self._database.writing() as connection:
            row = connection.execute(insert(tables.actions).values(values).returning(tables.actions)).one()
            return Action(**row._mapping)

    def actions(self, limit: int = 50) -> tuple[Action, ...]:
        """The newest actions, newest first."""
        rows = self._database.rows(select(tables.actions).order_by(tables.actions.c.id.desc()).limit(limit))
        return tuple(Action(**row._mapping) for row in rows)

    # --- snapshots -----------------------------------------------------------------------------------------

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Mapping[str, Any], now: datetime) -> bool:
        """Record the start of a snapshot; False when it was recorded before (``snapshot`` has its state)."""
        values = {"snapshot_id": snapshot_id, "table": table, "detail": dict(detail), "claimed_at": now}
        there = select(tables.snapshots).where(tables.snapshots.c.snapshot_id == snapshot_id)
        return self._database.find_or_insert(there, tables.snapshots, values)[1]

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: datetime) -> bool:
        """Record the table version of a snapshot; False when one was recorded before.

        Raises:
            RecordUnknown: The snapshot was never started.
        """
        column = tables.snapshots.c
        unfinished = update(tables.snapshots).where(column.snapshot_id == snapshot_id, column.finished_at.is_(None))
        if self._database.changed(unfinished.values(iceberg_snapshot_id=iceberg_snapshot_id, finished_at=now)):
            return True
        if self.snapshot(snapshot_id) is None:
            raise _unknown("snapshot", snapshot_id)
        return False

    def snapshot(self, snapshot_id: str) -> SnapshotRecord | None:
        """One snapshot; None when it was never started."""
        rows = self._database.rows(select(tables.snapshots).where(tables.snapshots.c.snapshot_id == snapshot_id))
        return SnapshotRecord(**rows[0]._mapping) if rows else None

    # --- inside --------------------------------------------------------------------------------------------

    def _change(self, incident_id: int, *conditions: Any, **values: Any) -> bool:
        """Whether the incident met the conditions, and was changed."""
        statement = update(tables.incidents).where(_INCIDENT.id == incident_id, *conditions).values(values)
        return self._database.changed(statement)

    def _incidents(self, query: Select[Any]) -> tuple[Incident, ...]:
        return self._with_timelines(self._database.rows(query))

    def _with_timelines(self, rows: Sequence[Row[Any]]) -> tuple[Incident, ...]:
        """The incidents of these rows, with one query for all their timelines."""
        column = tables.incident_notes.c
        query = select(column.incident_id, column.step, column.text, column.at, column.seconds)
        found: dict[int, list[IncidentNote]] = {row.id: [] for row in rows}
        if rows:
            for row in self._database.rows(query.where(column.incident_id.in_(found)).order_by(column.id)):
                facts = dict(row._mapping)
                found[facts.pop("incident_id")].append(IncidentNote(**facts))
        return tuple(Incident(**row._mapping, timeline=tuple(found[row.id])) for row in rows)

    def _set_deployment(
        self, connection: Connection, processor: str, values: Mapping[str, Any], after: int = 0
    ) -> Deployment:
        table = tables.deployments
        following = case((table.c.generation < after, after + 1), else_=table.c.generation + 1)
        again = update(table).where(table.c.processor == processor).values(generation=following, **values)
        row = connection.execute(again.returning(table)).one_or_none()
        if row is None:
            first = insert(table).values(processor=processor, generation=after + 1, **values)
            row = connection.execute(first.returning(table)).one()
        return _deployment(row)


def _deployment(row: Row[Any]) -> Deployment:
    facts = dict(row._mapping)
    return Deployment(**{**facts, "slots": tuple(facts["slots"])})


def _unknown(what: str, identity: object) -> RecordUnknown:
    return RecordUnknown(
        f"The registry has no {what} {identity!r}.",
        action=f"Name an existing {what}: run `holdfast incidents list`, or look at the snapshot's asset in Dagster.",
        identity=str(identity),
    )
