"""The registry: incidents, desired deployments, applied actions and snapshots, in one small SQL database.

It is the memory that outlives every process of Holdfast: sensors, runs and commands meet here.

Invariants:
    - At most one open incident per processor, and one claimer of each; both are decided by the database.
    - A closed incident changes in three ways only: lines are added to its timeline, a person acknowledges it, or asks
      to have a failed one tried again, which opens it.
    - Every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import structlog
from sqlalchemy import Connection, CursorResult, Row, Select, insert, or_, select, update
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
        url: ``sqlite:///<file>`` or ``postgresql+psycopg://...``. Nothing is opened until the first call.
    """

    def __init__(self, url: str) -> None:
        self._database = Connections(url)
        #: Plans that were shown, and applies.
        self.journal = ApplyJournal(self._database)
        #: What versions are made of.
        self.releases = ReleaseBook(self._database)

    def migrate(self) -> str:
        """Create or upgrade the schema; its version is returned. Any number of processes may do it at once.

        Raises:
            RegistryNewerThanCode: The schema was written by a newer Holdfast; it is left untouched.
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
                    # Someone else opened it since we looked; unless it was closed as well, we find it now.
                    continue

    def incident(self, incident_id: int) -> Incident | None:
        """One incident with its timeline."""
        found = self._incidents(select(tables.incidents).where(tables.incidents.c.id == incident_id))
        return found[0] if found else None

    def open_incidents(self) -> tuple[Incident, ...]:
        """All open incidents, oldest first."""
        query = select(tables.incidents).where(tables.incidents.c.closed_at.is_(None))
        return self._incidents(query.order_by(tables.incidents.c.id))

    def incidents(self, limit: int = 50, *, processor: str | None = None) -> tuple[Incident, ...]:
        """The newest incidents, newest first; of all processors, or of one."""
        query = select(tables.incidents)
        if processor is not None:
            query = query.where(tables.incidents.c.processor == processor)
        return self._incidents(query.order_by(tables.incidents.c.id.desc()).limit(limit))

    def claim_incident(self, incident_id: int, run_id: str, now: datetime) -> bool:
        """Take an open incident for one run. One run wins; asking again as the winner stays true."""
        column = tables.incidents.c
        statement = (
            update(tables.incidents)
            .where(column.id == incident_id, column.closed_at.is_(None))
            .where(or_(column.claimed_by.is_(None), column.claimed_by == run_id))
            .values(claimed_by=run_id, claimed_at=now)
        )
        return self._changed(statement)

    def release_incident(self, incident_id: int, run_id: str) -> bool:
        """Give an open incident back that the run holds (the run died, say), so that another may claim it."""
        column = tables.incidents.c
        statement = (
            update(tables.incidents)
            .where(column.id == incident_id, column.closed_at.is_(None), column.claimed_by == run_id)
            .values(claimed_by=None, claimed_at=None)
        )
        return self._changed(statement)

    def begin_attempt(self, incident_id: int) -> int:
        """Count one more attempt at an incident; its number (from 1) is returned.

        Raises:
            RecordUnknown: There is no such incident.
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
        """Take the last attempt back: what it met with passes by itself, and uses nothing up."""
        column = tables.incidents.c
        self._changed(
            update(tables.incidents)
            .where(column.id == incident_id, column.attempts > 0)
            .values(attempts=column.attempts - 1)
        )

    def decide_incident(self, incident_id: int, kind: str, remedy: str, action: str) -> bool:
        """Set what an incident is by now, and what is done about it; false when it is not open."""
        column = tables.incidents.c
        return self._changed(
            update(tables.incidents)
            .where(column.id == incident_id, column.closed_at.is_(None))
            .values(kind=kind, remedy=remedy, action=action)
        )

    def acknowledge_incident(self, incident_id: int, who: str, note: str, now: datetime) -> None:
        """Keep that a person has seen it; the last one stands.

        Raises:
            RecordUnknown: There is no such incident.
        """
        values = {"acknowledged_by": who, "acknowledged_at": now, "acknowledgement": note}
        if not self._changed(update(tables.incidents).where(tables.incidents.c.id == incident_id).values(values)):
            raise _unknown("incident", incident_id)

    def retry_incident(self, incident_id: int, now: datetime) -> bool:
        """Open a failed incident again, with all its attempts; false when it did not fail, or another one is open."""
        column = tables.incidents.c
        again = (
            update(tables.incidents)
            .where(column.id == incident_id, column.outcome == "failed")
            .values(closed_at=None, outcome=None, reason="", remedy="", action="", attempts=0, retried_at=now)
            .values(claimed_by=None, claimed_at=None)
        )
        try:
            return self._changed(again)
        except IntegrityError:
            return False

    def note_incident(
        self, incident_id: int, step: str, text: str, now: datetime, *, seconds: float | None = None
    ) -> None:
        """Add a line to an incident's timeline; ``seconds`` is how long the step took.

        Raises:
            RecordUnknown: There is no such incident.
        """
        values = {"incident_id": incident_id, "step": step, "text": text, "at": now, "seconds": seconds}
        with self._database.writing() as connection:
            exists = select(tables.incidents.c.id).where(tables.incidents.c.id == incident_id)
            if connection.execute(exists).one_or_none() is None:
                raise _unknown("incident", incident_id)
            connection.execute(insert(tables.incident_notes).values(values))

    def close_incident(self, incident_id: int, outcome: Outcome, now: datetime, *, reason: str = "") -> bool:
        """End an open incident; false when it was closed before (its first outcome stands)."""
        statement = (
            update(tables.incidents)
            .where(tables.incidents.c.id == incident_id, tables.incidents.c.closed_at.is_(None))
            .values(closed_at=now, outcome=outcome, reason=reason)
        )
        return self._changed(statement)

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
        """Set what a processor is meant to be: this version, up, in these slots."""
        values = {"code_version": code_version, "slots": list(slots), "desired": desired, "updated_at": now}
        with self._database.writing() as connection:
            return self._set_deployment(connection, processor, values)

    def adopt_deployment(
        self, processor: str, code_version: str, slots: Sequence[str], desired: DesiredState, now: datetime
    ) -> bool:
        """Set what a processor is meant to be, where nothing is recorded of it; false when something is."""
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
        """Set that a processor is meant to be down; None when it was never deployed."""
        with self._database.writing() as connection:
            if self._deployment(connection, processor) is None:
                return None
            return self._set_deployment(connection, processor, {"desired": "stopped", "updated_at": now})

    def deployment(self, processor: str) -> Deployment | None:
        """What the processor is meant to be; None when it was never deployed."""
        with self._database.reading() as connection:
            return self._deployment(connection, processor)

    def deployments(self) -> tuple[Deployment, ...]:
        """What every processor is meant to be, by name."""
        with self._database.reading() as connection:
            rows = connection.execute(select(tables.deployments).order_by(tables.deployments.c.processor))
            return tuple(_deployment(row) for row in rows)

    def knows_nothing(self) -> bool:
        """Whether nothing was ever recorded: it is new, or was lost and made anew."""
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
        """Keep that a verb was applied: the plan as it was explained, and how it ended."""
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
        """Begin a snapshot; false when it was begun before (``snapshot`` tells whether it was finished)."""
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
        """Record the table version that a snapshot became; false when that was recorded before.

        Raises:
            RecordUnknown: The snapshot was never begun.
        """
        column = tables.snapshots.c
        statement = (
            update(tables.snapshots)
            .where(column.snapshot_id == snapshot_id, column.finished_at.is_(None))
            .values(iceberg_snapshot_id=iceberg_snapshot_id, finished_at=now)
        )
        if self._changed(statement):
            return True
        if self.snapshot(snapshot_id) is None:
            raise _unknown("snapshot", snapshot_id)
        return False

    def snapshot(self, snapshot_id: str) -> SnapshotRecord | None:
        """One snapshot, finished or not."""
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
        """The timelines of all of them, in one question."""
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

    def _changed(self, statement: Any) -> bool:
        with self._database.writing() as connection:
            result: CursorResult[Any] = connection.execute(statement)
            return result.rowcount == 1


def _incident(row: Row[Any], timeline: tuple[IncidentNote, ...]) -> Incident:
    return Incident(**row._mapping, timeline=timeline)


def _deployment(row: Row[Any]) -> Deployment:
    facts = dict(row._mapping)
    desired: DesiredState = facts.pop("desired")
    return Deployment(**{**facts, "slots": tuple(facts["slots"])}, desired=desired)


def _unknown(what: str, identity: object) -> RecordUnknown:
    return RecordUnknown(
        f"The registry holds no {what} {identity!r}.",
        action=f"List what it holds, and name an existing {what}.",
        identity=str(identity),
    )
