"""Plans that were shown, and their applies: the records by which a killed apply continues.

Invariants:
    - Each processor has at most one open apply: an index of the database refuses a second one.
    - The holder of an apply changes by compare-and-set. A run that is no longer the holder can't change the apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, update

from holdfast.infra.database import tables
from holdfast.infra.database.connections import Connections, upsert
from holdfast.infra.database.records import ApplyOutcome, ApplyRecord, StageNote

#: Number of shown plans that are kept.
PLANS_MAX = 500
#: Smallest stage whose rate is measured, units of work.
RATED_FROM = 1_000.0

_APPLY = tables.applies.c
_IS_OPEN = _APPLY.finished_at.is_(None)


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
            upsert(connection, table, {"plan_hash": plan_hash}, values)
            newest = select(table.c.shown_at).order_by(table.c.shown_at.desc()).offset(PLANS_MAX).limit(1)
            oldest = connection.execute(newest).scalar_one_or_none()
            if oldest is not None:
                connection.execute(delete(table).where(table.c.shown_at <= oldest))

    def remembered_plan(self, plan_hash: str) -> str | None:
        """A plan by its hash; None when it was never shown, or was deleted as one of the oldest."""
        rows = self._database.rows(select(tables.plans.c.plan).where(tables.plans.c.plan_hash == plan_hash))
        return rows[0].plan if rows else None

    def begin_apply(  # tidy: allow-wide because each is a column of the record
        self, *, processor: str, verb: str, plan_hash: str, plan: str, who: str, holder: str, now: datetime
    ) -> tuple[ApplyRecord, bool]:
        """The processor's open apply, and whether this call created it and holds it."""
        named: dict[str, Any] = {"processor": processor, "verb": verb, "plan_hash": plan_hash, "plan": plan, "who": who}
        values = {**named, "holder": holder, "beat_at": now, "started_at": now}
        there = select(tables.applies).where(_APPLY.processor == processor, _IS_OPEN)
        row, is_new = self._database.find_or_insert(there, tables.applies, values)
        return self._records([row])[0], is_new

    def claim_apply(self, apply_id: int, holder: str, now: datetime, *, instead_of: str | None) -> bool:
        """Become the holder of an open apply in place of ``instead_of`` (None: no holder); False when it changed."""
        return self._change(apply_id, instead_of, holder=holder, beat_at=now, reason="")

    def beat_apply(self, apply_id: int, holder: str, now: datetime) -> bool:
        """Record that the holder works on the apply; False when ``holder`` is no longer the holder."""
        return self._change(apply_id, holder, beat_at=now)

    def note_stage(self, apply_id: int, holder: str, note: StageNote, now: datetime) -> bool:
        """Record a finished stage; False when ``holder`` is no longer the holder."""
        values = {"apply_id": apply_id, "number": note.number, "stage": note.stage, "text": note.text}
        values |= {"units": note.units, "seconds": note.seconds, "at": now}
        with self._database.writing() as connection:
            if connection.execute(_held_by(apply_id, holder).values(beat_at=now)).rowcount == 0:
                return False
            connection.execute(insert(tables.apply_stages).values(values))
            return True

    def let_go_of_apply(self, apply_id: int, holder: str, reason: str, now: datetime) -> None:
        """Give the apply up, and leave it open for another run."""
        self._change(apply_id, holder, holder=None, reason=reason, beat_at=now)

    def end_apply(self, apply_id: int, outcome: ApplyOutcome, now: datetime, *, reason: str = "") -> bool:
        """End an apply; False when it had ended."""
        statement = update(tables.applies).where(_APPLY.id == apply_id, _IS_OPEN)
        return self._database.changed(statement.values(outcome=outcome, finished_at=now, holder=None, reason=reason))

    def applies(
        self, limit: int = 50, *, processor: str | None = None, open_only: bool = False
    ) -> tuple[ApplyRecord, ...]:
        """The newest applies, newest first."""
        query = select(tables.applies)
        if processor is not None:
            query = query.where(_APPLY.processor == processor)
        if open_only:
            query = query.where(_IS_OPEN)
        return self._records(self._database.rows(query.order_by(_APPLY.id.desc()).limit(limit)))

    def apply_of(self, apply_id: int) -> ApplyRecord | None:
        """One apply; None when the id is unknown."""
        rows = self._database.rows(select(tables.applies).where(_APPLY.id == apply_id))
        return self._records(rows)[0] if rows else None

    def stage_rates(self, processor: str) -> dict[str, tuple[float, float]]:
        """By stage, the sums of units and seconds of past stages; stages below ``RATED_FROM`` units are left out."""
        stages = tables.apply_stages
        query = (
            select(stages.c.stage, func.sum(stages.c.units).label("units"), func.sum(stages.c.seconds).label("seconds"))
            .join(tables.applies, _APPLY.id == stages.c.apply_id)
            .where(_APPLY.processor == processor, stages.c.units >= RATED_FROM)
            .group_by(stages.c.stage)
        )
        return {row.stage: (float(row.units), float(row.seconds)) for row in self._database.rows(query)}

    def _change(self, apply_id: int, held_by: str | None, **values: Any) -> bool:
        """Whether the open apply had this holder, and was changed."""
        return self._database.changed(_held_by(apply_id, held_by).values(values))

    def _records(self, rows: Sequence[Row[Any]]) -> tuple[ApplyRecord, ...]:
        """The applies of these rows, with one query for all their stages."""
        column = tables.apply_stages.c
        query = select(column.apply_id, column.number, column.stage, column.text, column.units, column.seconds)
        done: dict[int, list[StageNote]] = {row.id: [] for row in rows}
        if rows:
            for note in self._database.rows(query.where(column.apply_id.in_(done)).order_by(column.number)):
                facts = dict(note._mapping)
                done[facts.pop("apply_id")].append(StageNote(**facts))
        return tuple(ApplyRecord(**row._mapping, done=tuple(done[row.id])) for row in rows)


def _held_by(apply_id: int, holder: str | None) -> Any:
    held = _APPLY.holder.is_(None) if holder is None else _APPLY.holder == holder
    return update(tables.applies).where(_APPLY.id == apply_id, _IS_OPEN, held)
