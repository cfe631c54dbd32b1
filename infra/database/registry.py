"""The registry: incidents, desired deployments, applied actions and snapshots in one small SQL database.

Sensors, runs and commands share it; it outlives each of their processes.

Invariants:
    - Each processor has at most one open incident, and each incident at most one claimer; the database decides both.
    - A closed incident changes in three ways only: its timeline gets a line, an operator acknowledges it, or an
      operator retries a failed one, which opens it again.
    - Every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import structlog
from sqlalchemy import Connection, Row, Select, insert, or_, select, update
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


class Registry:
    """The registry at one SQLAlchemy URL; safe to share between threads.

    Every method raises RegistryUnavailable when the database fails.

    Args:
        url: ``sqlite:///<file>`` or ``postgresql+psycopg://...``. The first call opens a connection.
    """

    def __init__(self, url: str) -> None:
        self._database = Connections(url)
        #: Shown plans, and applies.
        self.journal = ApplyJournal(self._database)
        #: Deployed versions.
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
        is_open = select(tables.incidents).where(
            tables.incidents.c.processor == processor, tables.incidents.c.closed_at.is_(None)
        )
        while True:
            with self._database.writing() as connection:
                found = connection.execute(is_open).one_or_none()
                if found is not None:
                    return _incident(found, tuple(self._notes(connection, [found.id]).get(found.id, ()))), False
                try:
                    with connection.begin_nested():
                        row = connection.execute(
                            insert(tables.incidents).values(values).returning(tables.incidents)
                        ).one()
                    return _incident(row, ()), True
                except IntegrityError:
                    # Another process opened an incident after the look; the next look finds it unless it was closed.
                    continue

    def incident(self, incident_id: int) -> Incident | None:
        """One incident with its timeline; None when the id is unknown."""
        found = self._incidents(select(tables.incidents).where(tables.incidents.c.id == incident_id))
        return found[0] if found else None

    def open_incidents(self) -> tuple[Incident, ...]:
        """All open incidents, oldest first."""
        query = select(tables.incidents).where(tables.incidents.c.closed_at.is_(None))
        return self._incidents(query.order_by(tables.incidents.c.id))

    def incidents(self, limit: int = 50, *, processor: str | None = None) -> tuple[Incident, ...]:
        """The newest incidents of all processors or of one, newest first."""
        query = select(tables.incidents)
        if processor is not None:
            query = query.where(tables.incidents.c.processor == processor)
        return self._incidents(query.order_by(tables.incidents.c.id.desc()).limit(limit))

    def claim_incident(self, incident_id: int, run_id: str, now: datetime) -> bool:
        """Claim an open incident for a run; True for the run that holds the claim, also when it asks again."""
        column = tables.incidents.c
        statement = (
            update(tables.incidents)
            .where(column.id == incident_id, column.closed_at.is_(None))
            .where(or_(column.claimed_by.is_(None), column.claimed_by == run_id))
            .values(claimed_by=run_id, claimed_at=now)
        )
        return self._database.changed(statement)

    def release_incident(self, incident_id: int, run_id: str) -> bool:
        """End a run's claim of an open incident, so that another run may claim it."""
        column = tables.incidents.c
        statement = (
            update(tables.incidents)
            .where(column.id == incident_id, column.closed_at.is_(None), column.claimed_by == run_id)
            .values(claimed_by=None, claimed_at=None)
        )
        return self._database.changed(statement)

    def begin_attempt(self, incident_id: int) -> int:
        """Count an attempt at an incident; returns its number, from 1.

        Raises:
            RecordUnknown: The id is unknown.
        """
        column = tables.incidents.c
        with self._database.writing() as connection:
            number = connection.execute(
                update(tables.incidents)
                .where(column.id == incident_id)
                .values(attempts=column.attempts + 1)
                .returning(column.attempts)
            ).scalar_one_or_none()
        if number is None:
            raise _unknown("incident", incident_id)
        return int(number)

    def forgive_attempt(self, incident_id: int) -> None:
        """Do not count the last attempt: its fault passes without a repair."""
        column = tables.incidents.c
        self._database.changed(
            update(tables.incidents)
            .where(column.id == incident_id, column.attempts > 0)
            .values(attempts=column.attempts - 1)
        )

    def decide_incident(self, incident_id: int, kind: str, remedy: str, action: str) -> bool:
        """Set kind, remedy and action of an incident; False when it is closed."""
        column = tables.incidents.c
        return self._database.changed(
            update(tables.incidents)
            .where(column.id == incident_id, column.closed_at.is_(None))
            .values(kind=kind, remedy=remedy, action=action)
        )

    def acknowledge_incident(self, incident_id: int, who: str, note: str, now: datetime) -> None:
        """Record that an operator has seen an incident; replaces an earlier acknowledgement.

        Raises:
            RecordUnknown: The id is unknown.
        """
        values = {"acknowledged_by": who, "acknowledged_at": now, "acknowledgement": note}
        statement = update(tables.incidents).where(tables.incidents.c.id == incident_id).values(values)
        if not self._database.changed(statement):
            raise _unknown("incident", incident_id)

    def retry_incident(self, incident_id: int, now: datetime) -> bool:
        """Open a failed incident again with no attempt used; False when it has not failed, or another one is open."""
        column = tables.incidents.c
        again = (
            update(tables.incidents)
            .where(column.id == incident_id, column.outcome == "failed")
            .values(closed_at=None, outcome=None, reason="", remedy="", action="", attempts=0, retried_at=now)
            .values(claimed_by=None, claimed_at=None)
        )
        try:
            return self._database.changed(again)
        except IntegrityError:
            return False

    def note_incident(
        self, incident_id: int, step: str, text: str, now: datetime, *, seconds: float | None = None
    ) -> None:
        """Add a line to an incident's timeline; ``seconds`` is the duration of the step.

        Raises:
            RecordUnknown: The id is unknown.
        """
        values = {"incident_id": incident_id, "step": step, "text": text, "at": now, "seconds": seconds}
        with self._database.writing() as connection:
            exists = select(tables.incidents.c.id).where(tables.incidents.c.id == incident_id)
            if connection.execute(exists).one_or_none() is None:
                raise _unknown("incident", incident_id)
            connection.execute(insert(tables.incident_notes).values(values))

    def close_incident(self, incident_id: int, outcome: Outcome, now: datetime, *, reason: str = "") -> bool:
        """Close an incident; False when it was closed before, and keeps its first outcome."""
        statement = (
            update(tables.incidents)
            .where(tables.incidents.c.id == incident_id, tables.incidents.c.closed_at.is_(None))
            .values(closed_at=now, outcome=outcome, reason=reason)
        )
        return self._database.changed(statement)

    # --- deployments ---------------------------------------------------------------------------------------

    def record_deployment(
        self,
        processor: str,
        code_version: str,
        slots: Sequence[str],
        now: datetime,
        *,
        desired: Literal["deploying", "deployed"] = "deployed",
    ) -> Deployment:
        """Set the desired version and slots of a processor."""
        values = {"code_version": code_version, "slots": list(slots), "desired": desired, "updated_at": now}
        with self._database.writing() as connection:
            return self._set_deployment(connection, processor, values)

    def adopt_deployment(
        self, processor: str, code_version: str, slots: Sequence[str], desired: DesiredState, now: datetime
    ) -> bool:
        """Record a desired state unless the processor has one; False when it has."""
        values = {"code_version": code_version, "slots": list(slots), "desired": desired, "updated_at": now}
        try:
            with self._database.writing() as connection:
                if self._deployment(connection, processor) is not None:
                    return False
                self._set_deployment(connection, processor, values)
                return True
        except IntegrityError:
            return False

    def record_stopped(self, processor: str, now: datetime) -> Deployment | None:
        """Set the desired state ``stopped``; None when the processor was never deployed."""
        with self._database.writing() as connection:
            if self._deployment(connection, processor) is None:
                return None
            return self._set_deployment(connection, processor, {"desired": "stopped", "updated_at": now})

    def deployment(self, processor: str) -> Deployment | None:
        """The desired state of a processor; None when it was never deployed."""
        with self._database.reading() as connection:
            return self._deployment(connection, processor)

    def deployments(self) -> tuple[Deployment, ...]:
        """The desired states of all processors, sorted by name."""
        with self._database.reading() as connection:
            rows = connection.execute(select(tables.deployments).order_by(tables.deployments.c.processor))
            return tuple(_deployment(row) for row in rows)

    def knows_nothing(self) -> bool:
        """Whether the registry holds no record: it is new, or was lost and created again."""
        asked = (tables.deployments, tables.applies, tables.incidents, tables.releases, tables.actions)
        with self._database.reading() as connection:
            return not any(connection.execute(select(each).limit(1)).first() for each in asked)

    # --- actions -------------------------------------------------------------------------------------------

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
        """Record an applied verb with its explained plan and its outcome."""
        values = {
            "verb": verb,
            "subject": subject,
            "who": who,
            "plan": plan,
            "outcome": outcome,
            "started_at": started_at,
            "finished_at": finished_at,
        }
        with self._database.writing() as connection:
            row = connection.execute(insert(tables.actions).values(values).returning(tables.actions)).one()
            return Action(**row._mapping)

    def actions(self, limit: int = 50) -> tuple[Action, ...]:
        """The newest actions, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(tables.actions).order_by(tables.actions.c.id.desc()).limit(limit))
            return tuple(Action(**row._mapping) for row in rows)

    # --- snapshots -----------------------------------------------------------------------------------------

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Mapping[str, Any], now: datetime) -> bool:
        """Record the start of a snapshot; False when it was recorded before (``snapshot`` has its state)."""
        values = {"snapshot_id": snapshot_id, "table": table, "detail": dict(detail), "claimed_at": now}
        try:
            with self._database.writing() as connection:
                found = select(tables.snapshots.c.snapshot_id).where(tables.snapshots.c.snapshot_id == snapshot_id)
                if connection.execute(found).one_or_none() is not None:
                    return False
                connection.execute(insert(tables.snapshots).values(values))
                return True
        except IntegrityError:
            return False

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: datetime) -> bool:
        """Record the table version of a snapshot; False when one was recorded before.

        Raises:
            RecordUnknown: The snapshot was never started.
        """
        column = tables.snapshots.c
        statement = (
            update(tables.snapshots)
            .where(column.snapshot_id == snapshot_id, column.finished_at.is_(None))
            .values(iceberg_snapshot_id=iceberg_snapshot_id, finished_at=now)
        )
        if self._database.changed(statement):
            return True
        if self.snapshot(snapshot_id) is None:
            raise _unknown("snapshot", snapshot_id)
        return False

    def snapshot(self, snapshot_id: str) -> SnapshotRecord | None:
        """One snapshot; None when it was never started."""
        with self._database.reading() as connection:
            row = connection.execute(
                select(tables.snapshots).where(tables.snapshots.c.snapshot_id == snapshot_id)
            ).one_or_none()
            return None if row is None else SnapshotRecord(**row._mapping)

    # --- inside --------------------------------------------------------------------------------------------

    def _incidents(self, query: Select[Any]) -> tuple[Incident, ...]:
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            notes = self._notes(connection, [row.id for row in rows])
            return tuple(_incident(row, tuple(notes.get(row.id, ()))) for row in rows)

    def _notes(self, connection: Connection, incident_ids: Sequence[int]) -> dict[int, list[IncidentNote]]:
        """The timelines of these incidents, with one query."""
        column = tables.incident_notes.c
        query = select(column.incident_id, column.step, column.text, column.at, column.seconds)
        found: dict[int, list[IncidentNote]] = {}
        if incident_ids:
            for row in connection.execute(query.where(column.incident_id.in_(incident_ids)).order_by(column.id)):
                facts = dict(row._mapping)
                found.setdefault(facts.pop("incident_id"), []).append(IncidentNote(**facts))
        return found

    def _deployment(self, connection: Connection, processor: str) -> Deployment | None:
        query = select(tables.deployments).where(tables.deployments.c.processor == processor)
        row = connection.execute(query).one_or_none()
        return None if row is None else _deployment(row)

    def _set_deployment(self, connection: Connection, processor: str, values: Mapping[str, Any]) -> Deployment:
        table = tables.deployments
        again = update(table).where(table.c.processor == processor)
        row = connection.execute(
            again.values(generation=table.c.generation + 1, **values).returning(table)
        ).one_or_none()
        if row is None:
            first = insert(table).values(processor=processor, generation=1, **values)
            row = connection.execute(first.returning(table)).one()
        return _deployment(row)


def _incident(row: Row[Any], timeline: tuple[IncidentNote, ...]) -> Incident:
    return Incident(**row._mapping, timeline=timeline)


def _deployment(row: Row[Any]) -> Deployment:
    facts = dict(row._mapping)
    desired: DesiredState = facts.pop("desired")
    return Deployment(**{**facts, "slots": tuple(facts["slots"])}, desired=desired)


def _unknown(what: str, identity: object) -> RecordUnknown:
    return RecordUnknown(
        f"The registry has no {what} {identity!r}.",
        action=f"Name an existing {what}: run `holdfast incidents list`, or look at the snapshot's asset in Dagster.",
        identity=str(identity),
    )
