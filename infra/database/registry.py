"""The registry: incidents, deployments, actions and snapshots in one small SQL database.

Sensors, Dagster runs and commands share the registry; its records outlive these processes.

Invariants:
    - Each processor has at most one open incident, and each incident is claimed by at most one run. The database
      enforces both rules.
    - A closed incident changes in three ways only. A line is added to its timeline, an operator acknowledges it, or an
      operator retries it after a failure, which opens it again.
    - A claimed incident can be changed only by the run that claimed it (``Registry.fenced``).
    - A processor never has a live recovery run and a live apply (execution of a plan) at the same time (``leases``).
    - Every change is one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from holdfast.infra.database import leases, schema, tables
from holdfast.infra.database.applies import ApplyJournal, ErasureBook
from holdfast.infra.database.connections import Connections
from holdfast.infra.database.errors import RecordUnknown
from holdfast.infra.database.leases import Fence
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
from holdfast.infra.database.writes import insert_into
from holdfast.infra.log import get_logger

log = get_logger(__name__)

_INCIDENT = tables.incidents.c
#: Key in an incident's ``detail``. Its value maps slots (places of workers) to faults that only a person can repair.
#: All other keys of ``detail`` are slots.
_ASKS = "asks"
_IS_OPEN = _INCIDENT.closed_at.is_(None)
_RECORD = select(
    *(column for column in _INCIDENT if column.name != "beat_s"),
    func.coalesce(leases.silence(_INCIDENT.beat_s), leases.NEVER_S).label("silent_s"),
)


class Registry:
    """Holdfast's registry at one SQLAlchemy URL, ``sqlite:///<file>`` or ``postgresql+psycopg://...``; thread-safe.

    ``steady_s`` is a monotonic clock in seconds, for the heartbeats in a SQLite database (``leases``).

    Every method raises RegistryUnavailable if the database fails. ``begin_attempt``, ``note_incident`` and
    ``acknowledge_incident`` raise RecordUnknown if the id is unknown.
    """

    def __init__(self, url: str, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._open(Connections(url, steady_s))

    def _open(self, database: Connections) -> None:
        self._database = database
        #: The connections to the database, for functions in ``database.pruning``.
        self.database = database
        self.journal = ApplyJournal(database)
        self.releases = ReleaseBook(database)
        self.erasures = ErasureBook(database)

    def fenced(self, fence: Callable[[], Fence]) -> Registry:
        """Returns an object for the same registry, to be used by a run that holds an apply (executed plan) or incident.

        Its writes raise HoldLost as soon as the run no longer holds the apply or incident.
        """
        held = object.__new__(Registry)
        held._open(self._database.fenced(fence))
        return held

    def migrate(self) -> str:
        """Create or upgrade the database schema; returns its version. Several processes may call this method at once.

        Raises:
            RegistryNewerThanCode: A newer Holdfast wrote the schema, which stays unchanged.
        """
        with self._database.reported():
            version = schema.migrate(self._database.engine)
        log.debug("registry.ready", url=schema.shown(self._database.engine.url), version=version)
        return version

    def clock_ahead_s(self) -> float:
        """Seconds by which the database's clock is ahead of this machine's clock; negative if it is behind."""
        began = datetime.now(UTC)
        (row,) = self._database.rows(select(leases.database_time().label("now")))
        middle = began + (datetime.now(UTC) - began) / 2
        return float((row.now - middle).total_seconds())

    def close(self) -> None:
        """Close all connections to the database."""
        self._database.engine.dispose()

    # --- incidents -----------------------------------------------------------------------------------------

    def open_incident(
        self, processor: str, kind: str, detail: Mapping[str, Any], now: datetime
    ) -> tuple[Incident, bool]:
        """Open an incident, unless the processor has an open one. Returns the open incident, and whether it is new."""
        values = {"processor": processor, "kind": kind, "detail": dict(detail), "opened_at": now}
        there = select(tables.incidents).where(_INCIDENT.processor == processor, _IS_OPEN)
        row, is_new = self._database.find_or_insert(there, tables.incidents, values)
        (found,) = self._incidents(_RECORD.where(_INCIDENT.id == row.id))
        return found, is_new

    def incident(self, incident_id: int) -> Incident | None:
        """The incident with this id, with its timeline; None if the id is unknown."""
        return next(iter(self._incidents(_RECORD.where(_INCIDENT.id == incident_id))), None)

    def open_incidents(self) -> tuple[Incident, ...]:
        """All open incidents, oldest first."""
        return self._incidents(_RECORD.where(_IS_OPEN).order_by(_INCIDENT.id))

    def incidents(self, limit: int = 50, *, processor: str | None = None) -> tuple[Incident, ...]:
        """The newest ``limit`` incidents, newest first; only those of ``processor``, if it is given."""
        query = _RECORD
        if processor is not None:
            query = query.where(_INCIDENT.processor == processor)
        return self._incidents(query.order_by(_INCIDENT.id.desc()).limit(limit))

    def incidents_after(self, incident_id: int, limit: int) -> tuple[Incident, ...]:
        """The ``limit`` oldest incidents whose id is greater than ``incident_id``, oldest first."""
        return self._incidents(_RECORD.where(_INCIDENT.id > incident_id).order_by(_INCIDENT.id).limit(limit))

    def claim_incident(self, incident_id: int, run_id: str, now: datetime, *, gone: int | None = None) -> int | None:
        """Claim an open incident for a run, so that only this run may change it.

        Returns the token of the claim, or None if the claim is refused. The claim is refused if another live run has
        claimed the incident, or a live process holds an apply (execution of a plan) of the processor. A holder whose
        heartbeats stopped loses its claim or its apply; the apply stays open. ``gone`` is the token of an apply whose
        holder is known to be dead.
        """
        with self._database.writing() as connection:
            processor = connection.execute(
                select(_INCIDENT.processor).where(_INCIDENT.id == incident_id, _IS_OPEN)
            ).scalar_one_or_none()
            if processor is None:
                return None
            token = leases.take(connection, processor)
            if not leases.end_silent_apply(connection, processor, token, gone):
                return None
            is_free = or_(
                _INCIDENT.claimed_by.is_(None), _INCIDENT.claimed_by == run_id, leases.is_silent(_INCIDENT.beat_s)
            )
            claim = update(tables.incidents).where(_INCIDENT.id == incident_id, _IS_OPEN, is_free)
            values = {"claimed_by": run_id, "claimed_at": now, "token": token, "beat_s": leases.database_seconds()}
            return token if connection.execute(claim.values(values)).rowcount == 1 else None

    def beat_incident(self, incident_id: int, token: int) -> bool:
        """Record a heartbeat of the run that claimed the incident; returns False if the run no longer has the claim."""
        held = (_INCIDENT.id == incident_id, _IS_OPEN, _INCIDENT.token == token)
        beat = update(tables.incidents).where(*held).values(beat_s=leases.database_seconds())
        return self._database.changed(beat)

    def release_incident(self, incident_id: int, run_id: str) -> bool:
        """End a run's claim of an open incident, so that another run may claim the incident; False if it had no claim.

        After the call, writes of this run are refused.
        """
        with self._database.writing() as connection:
            mine = (_INCIDENT.id == incident_id, _IS_OPEN, _INCIDENT.claimed_by == run_id)
            processor = connection.execute(select(_INCIDENT.processor).where(*mine)).scalar_one_or_none()
            if processor is None:
                return False
            free = {"claimed_by": None, "claimed_at": None, "token": leases.take(connection, processor)}
            return connection.execute(update(tables.incidents).where(*mine).values(free)).rowcount == 1

    def begin_attempt(self, incident_id: int) -> int:
        """Count a new recovery attempt of an incident; returns the number of the attempt, from 1."""
        there = update(tables.incidents).where(_INCIDENT.id == incident_id, *self._unclaimed())
        counted = there.values(attempts=_INCIDENT.attempts + 1)
        with self._database.writing() as connection:
            number = connection.execute(counted.returning(_INCIDENT.attempts)).scalar_one_or_none()
        if number is None:
            raise _unknown("incident", incident_id)
        return int(number)

    def forgive_attempt(self, incident_id: int) -> None:
        """Subtract the last attempt from an incident's count of attempts.

        Used if the fault ends by itself, for example because a broker was absent.
        """
        some = (_INCIDENT.attempts > 0, *self._unclaimed())
        self._change(incident_id, *some, attempts=_INCIDENT.attempts - 1)

    def decide_incident(self, incident_id: int, kind: str, remedy: str, action: str) -> bool:
        """Set kind, remedy and action of an incident; returns False if it is closed or another run has claimed it."""
        return self._change(incident_id, _IS_OPEN, *self._unclaimed(), kind=kind, remedy=remedy, action=action)

    def ask_about(self, incident_id: int, asks: Mapping[str, str]) -> None:
        """Record the workers that only a person can repair, as slot (place of a worker) -> fault.

        Does nothing if the incident is closed.
        """
        open_one = (_INCIDENT.id == incident_id, _IS_OPEN, *self._unclaimed())
        with self._database.writing() as connection:
            detail = connection.execute(select(_INCIDENT.detail).where(*open_one)).scalar_one_or_none()
            if detail is not None:
                changed = {**detail, _ASKS: dict(asks)}
                connection.execute(update(tables.incidents).where(*open_one).values(detail=changed))

    def acknowledge_incident(self, incident_id: int, who: str, note: str, now: datetime) -> None:
        """Record that an operator has seen an incident; replaces an earlier acknowledgement."""
        if not self._change(incident_id, acknowledged_by=who, acknowledged_at=now, acknowledgement=note):
            raise _unknown("incident", incident_id)

    def retry_incident(self, incident_id: int, now: datetime) -> bool:
        """Open a failed incident again, and reset its count of attempts to 0.

        Returns False if the incident has not failed, or if the processor has another open incident.
        """
        failed = (_INCIDENT.id == incident_id, _INCIDENT.outcome == "failed")
        opened = {"closed_at": None, "outcome": None, "reason": "", "claimed_by": None, "claimed_at": None}
        fresh: dict[str, Any] = {"remedy": "", "action": "", "attempts": 0, "retried_at": now}
        try:
            with self._database.writing() as connection:
                there = connection.execute(select(_INCIDENT.processor, _INCIDENT.detail).where(*failed)).one_or_none()
                if there is None:
                    return False
                token = leases.take(connection, there.processor)
                fresh["detail"] = {slot: seen for slot, seen in there.detail.items() if slot != _ASKS}
                again = update(tables.incidents).where(*failed).values(**opened, **fresh, token=token)
                return connection.execute(again).rowcount == 1
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
        """Close an incident; returns False if another run has claimed it, or if it is already closed."""
        return self._change(incident_id, _IS_OPEN, *self._unclaimed(), closed_at=now, outcome=outcome, reason=reason)

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
        """Set the desired version and slots (places of workers) of a processor; returns the new record.

        The record's generation (number of changes) grows, and becomes greater than ``after``.
        """
        values = {"code_version": code_version, "slots": list(slots), "desired": desired, "updated_at": now}
        with self._database.writing() as connection:
            return self._set_deployment(connection, processor, values, after)

    def adopt_deployment(  # tidy: allow-wide because each parameter is a column of the record
        self,
        processor: str,
        code_version: str,
        slots: Sequence[str],
        desired: DesiredState,
        now: datetime,
        *,
        after: int = 0,
    ) -> bool:
        """Record a deployment; if the processor already has a deployment, records nothing and returns False.

        The generation (number of changes) of the new record is ``after`` + 1.
        """
        values = {"code_version": code_version, "slots": list(slots), "desired": desired, "updated_at": now}
        there = select(tables.deployments).where(tables.deployments.c.processor == processor)
        first = {"processor": processor, "generation": after + 1, **values}
        return self._database.find_or_insert(there, tables.deployments, first)[1]

    def record_stopped(self, processor: str, now: datetime) -> Deployment | None:
        """Set the desired state to ``stopped``; returns the new record, or None if the processor was never deployed."""
        table = tables.deployments
        following = {"desired": "stopped", "updated_at": now, "generation": table.c.generation + 1}
        with self._database.writing() as connection:
            stopped = update(table).where(table.c.processor == processor).values(following)
            row = connection.execute(stopped.returning(table)).one_or_none()
            return None if row is None else _deployment(row)

    def deployment(self, processor: str) -> Deployment | None:
        """The desired state of a processor; None if it was never deployed."""
        rows = self._database.rows(select(tables.deployments).where(tables.deployments.c.processor == processor))
        return _deployment(rows[0]) if rows else None

    def deployments(self) -> tuple[Deployment, ...]:
        """The desired states of all processors, sorted by name."""
        query = select(tables.deployments).order_by(tables.deployments.c.processor)
        return tuple(map(_deployment, self._database.rows(query)))

    def knows_nothing(self) -> bool:
        """Whether Holdfast's registry has no record at all, because it is new, or was lost and created again."""
        asked = (tables.deployments, tables.applies, tables.incidents, tables.releases, tables.actions)
        return not any(self._database.rows(select(each).limit(1)) for each in asked)

    # --- actions -------------------------------------------------------------------------------------------

    def record_action(
        self, verb: str, subject: str, who: str, plan: str, outcome: str, started_at: datetime, finished_at: datetime
    ) -> Action:
        """Add an entry to the log of actions: an executed verb, its plan as text, and its outcome."""
        values: dict[str, Any] = {"verb": verb, "subject": subject, "who": who, "plan": plan, "outcome": outcome}
        values |= {"started_at": started_at, "finished_at": finished_at}
        with self._database.writing() as connection:
            row = connection.execute(insert(tables.actions).values(values).returning(tables.actions)).one()
            return Action(**row._mapping)

    def actions(self, limit: int = 50) -> tuple[Action, ...]:
        """The newest ``limit`` entries of the log of actions (executed verbs), newest first."""
        rows = self._database.rows(select(tables.actions).order_by(tables.actions.c.id.desc()).limit(limit))
        return tuple(Action(**row._mapping) for row in rows)

    def actions_after(self, action_id: int, limit: int) -> tuple[Action, ...]:
        """The ``limit`` oldest actions (executed verbs) whose id is greater than ``action_id``, oldest first."""
        table = tables.actions
        rows = self._database.rows(select(table).where(table.c.id > action_id).order_by(table.c.id).limit(limit))
        return tuple(Action(**row._mapping) for row in rows)

    # --- snapshots -----------------------------------------------------------------------------------------

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Mapping[str, Any], now: datetime) -> bool:
        """Record the start of a store's snapshot in the warehouse; returns False if the start was already recorded."""
        values = {"snapshot_id": snapshot_id, "table": table, "detail": dict(detail), "claimed_at": now}
        there = select(tables.snapshots).where(tables.snapshots.c.snapshot_id == snapshot_id)
        return self._database.find_or_insert(there, tables.snapshots, values)[1]

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: datetime) -> bool:
        """Record the table version of a finished snapshot; returns False if a version was already recorded.

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
        """The record of a store's snapshot in the warehouse; None if the snapshot was never started."""
        rows = self._database.rows(select(tables.snapshots).where(tables.snapshots.c.snapshot_id == snapshot_id))
        return SnapshotRecord(**rows[0]._mapping) if rows else None

    # --- private methods -----------------------------------------------------------------------------------

    def _change(self, incident_id: int, *conditions: Any, **values: Any) -> bool:
        """Update an incident if it meets ``conditions``; returns whether a row was changed."""
        statement = update(tables.incidents).where(_INCIDENT.id == incident_id, *conditions).values(values)
        return self._database.changed(statement)

    def _unclaimed(self) -> tuple[ColumnElement[bool], ...]:
        """SQL conditions that an incident must meet so that this registry object may write it.

        An object that ``fenced`` returned needs no condition, because each of its transactions begins with a check of
        its claim. Any other object may write only incidents that no run has claimed.
        """
        return () if self._database.is_fenced else (_INCIDENT.claimed_by.is_(None),)

    def _incidents(self, query: Select[Any]) -> tuple[Incident, ...]:
        return self._with_timelines(self._database.rows(query))

    def _with_timelines(self, rows: Sequence[Row[Any]]) -> tuple[Incident, ...]:
        """Converts rows to ``Incident``; the timelines of all rows are read by one query."""
        column = tables.incident_notes.c
        query = select(column.incident_id, column.step, column.text, column.at, column.seconds)
        found: dict[int, list[IncidentNote]] = {row.id: [] for row in rows}
        if rows:
            for row in self._database.rows(query.where(column.incident_id.in_(found)).order_by(column.id)):
                facts = dict(row._mapping)
                found[facts.pop("incident_id")].append(IncidentNote(**facts))
        return tuple(_incident(row, found[row.id]) for row in rows)

    def _set_deployment(
        self, connection: Connection, processor: str, values: Mapping[str, Any], after: int
    ) -> Deployment:
        table = tables.deployments
        following = case((table.c.generation < after, after + 1), else_=table.c.generation + 1)
        first = insert_into(connection, table).values(processor=processor, generation=after + 1, **values)
        again = first.on_conflict_do_update(
            index_elements=[table.c.processor], set_={"generation": following, **values}
        )
        return _deployment(connection.execute(again.returning(table)).one())


def _incident(row: Row[Any], timeline: Sequence[IncidentNote]) -> Incident:
    facts = dict(row._mapping)
    detail = dict(facts.pop("detail"))
    return Incident(**facts, asks=detail.pop(_ASKS, {}), detail=detail, timeline=tuple(timeline))


def _deployment(row: Row[Any]) -> Deployment:
    facts = dict(row._mapping)
    return Deployment(**{**facts, "slots": tuple(facts["slots"])})


def _unknown(what: str, identity: object) -> RecordUnknown:
    return RecordUnknown(
        f"The registry has no {what} {identity!r}.",
        action=f"Name an existing {what}: run `holdfast incidents list`, or look at the snapshot's asset in Dagster.",
        identity=str(identity),
    )
