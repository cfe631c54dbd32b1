"""Records of plans, applies and erasures in Holdfast's registry. An apply is one execution of a plan.

Invariants:
    - Each processor has at most one open apply, because a unique index of the database refuses a second open apply.
    - A run (process) that carries out an apply is its holder, and has a token. Every write to an apply compares the
      token, so a run that is no longer the holder can't change the apply.
    - An apply begins or gets a holder only if no live recovery run holds the processor.
    - No record of an erasure contains the erased key: ``mark`` is a keyed hash of it. The record is never deleted,
      because it refuses a later restore of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, Table, Update, delete, func, insert, or_, select, update

from holdfast.infra.database import leases, tables
from holdfast.infra.database.connections import Connections
from holdfast.infra.database.records import ApplyOutcome, ApplyRecord, StageNote
from holdfast.infra.database.writes import upsert

#: Maximum number of stored plans; older plans are deleted.
PLANS_MAX = 500
#: A finished stage (step of a plan) counts in the measured rates only if it had at least this many units of work, such
#: as records. The rates of smaller stages are inexact.
RATED_FROM = 1_000.0

_APPLY = tables.applies.c
_IS_OPEN = _APPLY.finished_at.is_(None)
_RECORD = select(
    *(column for column in _APPLY if column.name not in ("beat_at", "beat_s")),
    func.coalesce(leases.silence(_APPLY.beat_s), leases.NEVER_S).label("silent_s"),
)


class ApplyJournal:
    """Stores plans and applies (executions of plans). Every method raises RegistryUnavailable if the database fails.

    OPEN ──claimed by a run──► OPEN, held ──all stages recorded──► DONE
     ▲  ▲                        │    │
     │  └──────the run died──────┘    └──a stage failed──► OPEN, not held, with the reason ──► resumed or ABANDONED
     └── at most one per processor
    """

    def __init__(self, database: Connections) -> None:
        self._database = database

    def remember_plan(self, plan_hash: str, processor: str, verb: str, plan: str, now: datetime) -> None:
        """Store a plan that was shown to a user; if there are more than ``PLANS_MAX`` plans, the oldest are deleted."""
        table = tables.plans
        values = {"processor": processor, "verb": verb, "plan": plan, "shown_at": now}
        with self._database.writing() as connection:
            upsert(connection, table, {"plan_hash": plan_hash}, values)
            newest = select(table.c.shown_at).order_by(table.c.shown_at.desc()).offset(PLANS_MAX).limit(1)
            oldest = connection.execute(newest).scalar_one_or_none()
            if oldest is not None:
                connection.execute(delete(table).where(table.c.shown_at <= oldest))

    def remembered_plan(self, plan_hash: str) -> str | None:
        """The stored plan with this hash; None if it was never stored, or was deleted because of its age."""
        rows = self._database.rows(select(tables.plans.c.plan).where(tables.plans.c.plan_hash == plan_hash))
        return rows[0].plan if rows else None

    def begin_apply(  # tidy: allow-wide because each parameter is a column of the record
        self, *, processor: str, verb: str, plan_hash: str, plan: str, who: str, holder: str, now: datetime
    ) -> tuple[ApplyRecord, bool]:
        """Create an apply (execution of a plan) with this run as its holder, unless the processor has an open apply.

        Returns the open apply, and whether this call created it. A recovery run that holds the processor loses its hold
        if its last heartbeat is older than ``SILENT_S``.

        Raises:
            HeldByRecovery: A live recovery run holds the processor.
        """
        named: dict[str, Any] = {"processor": processor, "verb": verb, "plan_hash": plan_hash, "plan": plan, "who": who}
        with self._database.writing() as connection:
            token = leases.take(connection, processor)
            there = self._open(processor)
            found = connection.execute(there).one_or_none()
            is_new = found is None
            if found is None:
                leases.end_recovery(connection, processor, token)
                values = {**named, "holder": holder, "started_at": now, "token": token, **_beat()}
                connection.execute(insert(tables.applies).values(values))
                found = connection.execute(there).one()
        return self._records([found])[0], is_new

    def claim_apply(self, apply_id: int, holder: str, *, seen: int, is_gone: bool = False) -> int | None:
        """Make this run the holder of an open apply (execution of a plan), so that it may continue the apply.

        Returns the token of the new holder, or None if another run holds the apply.

        ``seen`` is the token in the record that the caller read. If the holder has changed since then, the call has no
        effect. An apply can be claimed if it has no holder, or if its holder wrote no heartbeat for ``SILENT_S``
        seconds. It can also be claimed if ``is_gone`` is True (the holder is known to be dead).

        Raises:
            HeldByRecovery: A live recovery run holds the processor.
        """
        with self._database.writing() as connection:
            there = select(_APPLY.processor).where(_APPLY.id == apply_id)
            processor = connection.execute(there).scalar_one_or_none()
            if processor is None:
                return None
            token = leases.take(connection, processor)
            leases.end_recovery(connection, processor, token)
            statement = _held_with(apply_id, seen)
            if not is_gone:
                statement = statement.where(or_(_APPLY.holder.is_(None), leases.is_silent(_APPLY.beat_s)))
            values = {"holder": holder, "token": token, "reason": "", **_beat()}
            return token if connection.execute(statement.values(values)).rowcount == 1 else None

    def beat_apply(self, apply_id: int, token: int) -> bool:
        """Record a heartbeat of the process that carries out the apply (execution of a plan).

        Returns False if another process carries out the apply now.
        """
        return self._database.changed(_held_with(apply_id, token).values(_beat()))

    def note_stage(self, apply_id: int, token: int, note: StageNote, now: datetime) -> bool:
        """Record a finished stage (step) of the apply (execution of a plan).

        Returns False if another process carries out the apply now; then nothing is recorded.
        """
        values = {"stage": note.stage, "text": note.text, "units": note.units, "seconds": note.seconds, "at": now}
        with self._database.writing() as connection:
            if connection.execute(_held_with(apply_id, token).values(_beat())).rowcount == 0:
                return False
            # An upsert, because the caller repeats this call if the answer to the commit was lost; the row may then
            # exist.
            upsert(connection, tables.apply_stages, {"apply_id": apply_id, "number": note.number}, values)
            return True

    def let_go_of_apply(self, apply_id: int, token: int, reason: str) -> bool:
        """End this run's hold of the apply (execution of a plan), so that another run can resume the apply.

        Returns False if another run holds the apply already.
        """
        return self._give_back(apply_id, token, reason=reason)

    def end_apply(self, apply_id: int, token: int, outcome: ApplyOutcome, now: datetime, *, reason: str = "") -> bool:
        """Close an apply (execution of a plan) with an outcome; returns False if the caller no longer holds the apply.

        If the apply left its deployment in the state ``deploying``, the state becomes ``deployed``, because the deploy
        is no longer in progress.
        """
        return self._give_back(apply_id, token, outcome=outcome, finished_at=now, reason=reason)

    def applies(
        self, limit: int = 50, *, processor: str | None = None, open_only: bool = False
    ) -> tuple[ApplyRecord, ...]:
        """The newest ``limit`` applies (executions of plans), newest first.

        ``processor`` limits the result to one processor, and ``open_only`` to open applies.
        """
        query = _RECORD
        if processor is not None:
            query = query.where(_APPLY.processor == processor)
        if open_only:
            query = query.where(_IS_OPEN)
        return self._records(self._database.rows(query.order_by(_APPLY.id.desc()).limit(limit)))

    def applies_after(self, apply_id: int, limit: int) -> tuple[ApplyRecord, ...]:
        """The ``limit`` oldest applies (executions of plans) whose id is greater than ``apply_id``, oldest first."""
        query = _RECORD.where(_APPLY.id > apply_id).order_by(_APPLY.id).limit(limit)
        return self._records(self._database.rows(query))

    def apply_of(self, apply_id: int) -> ApplyRecord | None:
        """The apply (execution of a plan) with this id; None if the id is unknown."""
        rows = self._database.rows(_RECORD.where(_APPLY.id == apply_id))
        return self._records(rows)[0] if rows else None

    def stage_rates(self, processor: str) -> dict[str, tuple[float, float]]:
        """Name of a stage (step of a plan) -> its total units of work (such as records) and total seconds in the past.

        Planners estimate durations from these numbers. Executions with less than ``RATED_FROM`` units are left out.
        """
        stages = tables.apply_stages
        query = (
            select(stages.c.stage, func.sum(stages.c.units).label("units"), func.sum(stages.c.seconds).label("seconds"))
            .join(tables.applies, _APPLY.id == stages.c.apply_id)
            .where(_APPLY.processor == processor, stages.c.units >= RATED_FROM)
            .group_by(stages.c.stage)
        )
        return {row.stage: (float(row.units), float(row.seconds)) for row in self._database.rows(query)}

    def _give_back(self, apply_id: int, token: int, **values: Any) -> bool:
        with self._database.writing() as connection:
            processor = connection.execute(select(_APPLY.processor).where(_APPLY.id == apply_id)).scalar_one_or_none()
            if processor is None:
                return False
            values |= {"holder": None, "token": leases.take(connection, processor)}
            given = connection.execute(_held_with(apply_id, token).values(values)).rowcount == 1
            if given and "finished_at" in values:
                connection.execute(_no_longer_deploying(processor, values["finished_at"]))
            return given

    @staticmethod
    def _open(processor: str) -> Select[Any]:
        return _RECORD.where(_APPLY.processor == processor, _IS_OPEN)

    def _records(self, rows: Sequence[Row[Any]]) -> tuple[ApplyRecord, ...]:
        """Converts rows to ``ApplyRecord``; the stages of all rows are read by one query."""
        column = tables.apply_stages.c
        query = select(column.apply_id, column.number, column.stage, column.text, column.units, column.seconds)
        done: dict[int, list[StageNote]] = {row.id: [] for row in rows}
        if rows:
            for note in self._database.rows(query.where(column.apply_id.in_(done)).order_by(column.number)):
                facts = dict(note._mapping)
                done[facts.pop("apply_id")].append(StageNote(**facts))
        return tuple(ApplyRecord(**row._mapping, done=tuple(done[row.id])) for row in rows)


def _held_with(apply_id: int, token: int) -> Update:
    """An UPDATE statement for the row of an open apply (execution of a plan).

    The statement changes no row if another process holds the apply, because then the row has another token.
    """
    return update(tables.applies).where(_APPLY.id == apply_id, _IS_OPEN, _APPLY.token == token)


def _no_longer_deploying(processor: str, now: datetime) -> Update:
    table = tables.deployments
    left = update(table).where(table.c.processor == processor, table.c.desired == "deploying")
    return left.values(desired="deployed", updated_at=now, generation=table.c.generation + 1)


def _beat() -> dict[str, Any]:
    return {"beat_at": leases.database_time(), "beat_s": leases.database_seconds()}


# -- erasures --------------------------------------------------------------------------------------------------------

_ERASURE = tables.erasures.c
#: The tables and columns whose texts may name a key: plans that were shown, plans that were applied, and their results.
_TEXTS: tuple[tuple[Table, tuple[str, ...], str], ...] = (
    (tables.plans, ("plan_hash",), "plan"),
    (tables.applies, ("id",), "plan"),
    (tables.applies, ("id",), "reason"),
    (tables.apply_stages, ("apply_id", "number"), "text"),
)


@dataclass(frozen=True, slots=True)
class ErasureRecord:
    """One erasure; ``finished_at`` is None while its certificate is not complete."""

    erasure_id: str
    processor: str
    mark: str
    begun_at: datetime
    finished_at: datetime | None
    document: str


class ErasureBook:
    """The erasures in one registry. Every method raises RegistryUnavailable if the database fails."""

    def __init__(self, database: Connections) -> None:
        self._database = database

    def begin(self, erasure_id: str, processor: str, mark: str, now: datetime) -> None:
        """Record that an erasure has begun; the second call with the same id changes nothing else than the mark."""
        first = {"begun_at": now, "document": ""}
        with self._database.writing() as connection:
            values = {"processor": processor, "mark": mark}
            upsert(connection, tables.erasures, {"erasure_id": erasure_id}, values, first=first)

    def write(self, erasure_id: str, document: str, finished_at: datetime | None = None) -> None:
        """Replace the certificate of an erasure; ``finished_at`` is set if the certificate is complete."""
        with self._database.writing() as connection:
            values = {"document": document, "finished_at": finished_at}
            connection.execute(update(tables.erasures).where(_ERASURE.erasure_id == erasure_id).values(values))

    def of(self, processor: str | None = None) -> tuple[ErasureRecord, ...]:
        """The erasures of a processor (None: of all processors), oldest first."""
        query = select(tables.erasures).order_by(_ERASURE.begun_at, _ERASURE.erasure_id)
        if processor is not None:
            query = query.where(_ERASURE.processor == processor)
        return tuple(ErasureRecord(**row._mapping) for row in self._database.rows(query))

    def redact(self, processor: str, change: Callable[[str], str]) -> int:
        """Replace the texts of a processor's plans and applies by ``change(text)``; returns how many were different."""
        changed = 0
        with self._database.writing() as connection:
            for table, key, column in _TEXTS:
                query = select(*(table.c[name] for name in key), table.c[column])
                if table is tables.apply_stages:
                    query = query.join(tables.applies, tables.applies.c.id == table.c.apply_id)
                    query = query.where(tables.applies.c.processor == processor)
                else:
                    query = query.where(table.c.processor == processor)
                for *place, text in connection.execute(query).all():
                    new = change(text)
                    if new != text:
                        where = [table.c[name] == value for name, value in zip(key, place, strict=True)]
                        connection.execute(update(table).where(*where).values({column: new}))
                        changed += 1
        return changed
