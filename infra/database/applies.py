"""Plans that were shown, and their applies: the records by which a killed apply continues.

Invariants:
    - Each processor has at most one open apply: an index of the database refuses a second one.
    - The holder of an apply changes by compare-and-set. A run that is no longer the holder can't change the apply.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from holdfast.infra.database import tables
from holdfast.infra.database.connections import Connections
from holdfast.infra.database.records import ApplyOutcome, ApplyRecord, StageNote

#: Number of shown plans that are kept.
PLANS_MAX = 500
#: Smallest stage whose rate is measured, units of work.
RATED_FROM = 1_000.0


class ApplyJournal:
    """The journal of one registry. Every method raises RegistryUnavailable when the database fails.

    OPEN ──claimed by a run──► OPEN, held ──every stage noted──► DONE
     ▲  ▲                        │    │
     │  └──────its run died──────┘    └──a stage failed──► OPEN, not held, with the reason ──► resumed or ABANDONED
     └── at most one per processor
    """

    def __init__(self, database: Connections) -> None:
        self._database = database

    def remember_plan(self, plan_hash: str, processor: str, verb: str, plan: str, now: datetime) -> None:
        """Store a plan that was shown; beyond ``PLANS_MAX`` plans, the oldest are deleted."""
        table = tables.plans
        values = {"processor": processor, "verb": verb, "plan": plan, "shown_at": now}
        with self._database.writing() as connection:
            again = update(table).where(table.c.plan_hash == plan_hash).values(values)
            if connection.execute(again).rowcount == 0:
                connection.execute(insert(table).values(plan_hash=plan_hash, **values))
            newest = select(table.c.shown_at).order_by(table.c.shown_at.desc()).offset(PLANS_MAX).limit(1)
            oldest = connection.execute(newest).scalar_one_or_none()
            if oldest is not None:
                connection.execute(delete(table).where(table.c.shown_at <= oldest))

    def remembered_plan(self, plan_hash: str) -> str | None:
        """A plan by its hash; None when it was never shown, or was deleted as one of the oldest."""
        with self._database.reading() as connection:
            query = select(tables.plans.c.plan).where(tables.plans.c.plan_hash == plan_hash)
            found: str | None = connection.execute(query).scalar_one_or_none()
            return found

    def begin_apply(  # tidy: allow-wide because each is a column of the record
        self, *, processor: str, verb: str, plan_hash: str, plan: str, who: str, holder: str, now: datetime
    ) -> tuple[ApplyRecord, bool]:
        """The processor's open apply, and whether this call created it and holds it."""
        table = tables.applies
        is_open = select(table).where(table.c.processor == processor, table.c.finished_at.is_(None))
        named: dict[str, Any] = {"processor": processor, "verb": verb, "plan_hash": plan_hash, "plan": plan, "who": who}
        values = {**named, "holder": holder, "beat_at": now, "started_at": now}
        while True:
            with self._database.writing() as connection:
                found = connection.execute(is_open).one_or_none()
                if found is not None:
                    return _record(found, self._notes(connection, found.id)), False
                try:
                    with connection.begin_nested():
                        row = connection.execute(insert(table).values(values).returning(table)).one()
                    return _record(row, ()), True
                except IntegrityError:
                    # Another run created an apply after the look; the next look finds it unless it has ended.
                    continue

    def claim_apply(self, apply_id: int, holder: str, now: datetime, *, instead_of: str | None) -> bool:
        """Become the holder of an open apply in place of ``instead_of`` (None: no holder); False when it changed."""
        column = tables.applies.c
        held = column.holder.is_(None) if instead_of is None else column.holder == instead_of
        return self._database.changed(
            update(tables.applies)
            .where(column.id == apply_id, column.finished_at.is_(None), held)
            .values(holder=holder, beat_at=now, reason="")
        )

    def beat_apply(self, apply_id: int, holder: str, now: datetime) -> bool:
        """Record that the holder works on the apply; False when ``holder`` is no longer the holder."""
        return self._database.changed(self._ours(apply_id, holder).values(beat_at=now))

    def note_stage(self, apply_id: int, holder: str, note: StageNote, now: datetime) -> bool:
        """Record a finished stage; False when ``holder`` is no longer the holder."""
        values = {
            "apply_id": apply_id,
            "number": note.number,
            "stage": note.stage,
            "text": note.text,
            "units": note.units,
            "seconds": note.seconds,
            "at": now,
        }
        with self._database.writing() as connection:
            if connection.execute(self._ours(apply_id, holder).values(beat_at=now)).rowcount == 0:
                return False
            connection.execute(insert(tables.apply_stages).values(values))
            return True

    def let_go_of_apply(self, apply_id: int, holder: str, reason: str, now: datetime) -> None:
        """Give the apply up, and leave it open for another run."""
        self._database.changed(self._ours(apply_id, holder).values(holder=None, reason=reason, beat_at=now))

    def end_apply(self, apply_id: int, outcome: ApplyOutcome, now: datetime, *, reason: str = "") -> bool:
        """End an apply; False when it had ended."""
        column = tables.applies.c
        return self._database.changed(
            update(tables.applies)
            .where(column.id == apply_id, column.finished_at.is_(None))
            .values(outcome=outcome, finished_at=now, holder=None, reason=reason)
        )

    def applies(
        self, limit: int = 50, *, processor: str | None = None, open_only: bool = False
    ) -> tuple[ApplyRecord, ...]:
        """The newest applies, newest first."""
        table = tables.applies
        query = select(table)
        if processor is not None:
            query = query.where(table.c.processor == processor)
        if open_only:
            query = query.where(table.c.finished_at.is_(None))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.id.desc()).limit(limit)).all()
            return tuple(_record(row, self._notes(connection, row.id)) for row in rows)

    def apply_of(self, apply_id: int) -> ApplyRecord | None:
        """One apply; None when the id is unknown."""
        with self._database.reading() as connection:
            row = connection.execute(select(tables.applies).where(tables.applies.c.id == apply_id)).one_or_none()
            return None if row is None else _record(row, self._notes(connection, row.id))

    def stage_rates(self, processor: str) -> dict[str, tuple[float, float]]:
        """By stage, the sums of units and seconds of past stages; stages below ``RATED_FROM`` units are left out."""
        stages, column = tables.apply_stages, tables.applies.c
        query = (
            select(stages.c.stage, func.sum(stages.c.units), func.sum(stages.c.seconds))
            .join(tables.applies, column.id == stages.c.apply_id)
            .where(column.processor == processor, stages.c.units >= RATED_FROM)
            .group_by(stages.c.stage)
        )
        with self._database.reading() as connection:
            return {stage: (float(units), float(seconds)) for stage, units, seconds in connection.execute(query)}

    def _ours(self, apply_id: int, holder: str) -> Any:
        column = tables.applies.c
        return update(tables.applies).where(
            column.id == apply_id, column.holder == holder, column.finished_at.is_(None)
        )

    def _notes(self, connection: Connection, apply_id: int) -> tuple[StageNote, ...]:
        column = tables.apply_stages.c
        query = select(column.number, column.stage, column.text, column.units, column.seconds)
        rows = connection.execute(query.where(column.apply_id == apply_id).order_by(column.number))
        return tuple(StageNote(**row._mapping) for row in rows)


def _record(row: Row[Any], done: tuple[StageNote, ...]) -> ApplyRecord:
    return ApplyRecord(**row._mapping, done=done)
