"""Deletes old records of the registry: ended applies with their stages, closed incidents, actions.

Invariants:
    - An open apply, an open incident and the newest incidents that nobody acknowledged after they failed stay.
    - The newest applies and actions of each processor stay, whatever their age: the rates of stages, the last rehearsal
      and the last rebuild are read from them.
    - Deployments, releases, snapshots and plans are not touched: plans and releases are bounded by their number, and a
      snapshot's record keeps its table version from being published twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, ColumnElement, Table, delete, func, select

from holdfast.infra.database import tables
from holdfast.infra.database.connections import Connections

#: Newest records of each processor that pruning keeps at any age.
NEWEST_KEPT = 50


@dataclass(frozen=True, slots=True)
class Pruned:
    """Numbers of deleted records."""

    applies: int = 0
    incidents: int = 0
    actions: int = 0


def prune_registry(database: Connections, before: datetime) -> Pruned:
    """Delete records that ended before a moment; raises RegistryUnavailable when the database fails."""
    applies, incidents, actions = tables.applies, tables.incidents, tables.actions
    ended = (applies.c.finished_at.is_not(None), applies.c.finished_at < before)
    closed = (incidents.c.closed_at.is_not(None), incidents.c.closed_at < before)
    # a failed incident is an open question until an operator answered it
    answered = (incidents.c.outcome != "failed") | incidents.c.acknowledged_at.is_not(None)
    return Pruned(
        _prune(database, applies, applies.c.processor, *ended),
        _prune(database, incidents, incidents.c.processor, *closed, answered)
        # of the older incidents, a question that was asked again many times
        + _prune(database, incidents, incidents.c.processor, *closed, ~answered, among=(*closed, ~answered)),
        _prune(database, actions, actions.c.subject, actions.c.finished_at < before),
    )


def _prune(
    database: Connections,
    table: Table,
    owner: Column[str],
    *conditions: ColumnElement[bool],
    among: tuple[ColumnElement[bool], ...] = (),
) -> int:
    """Delete the rows that meet the conditions, except the newest rows of each owner ``among`` them.

    Returns the number.
    """
    rank = func.row_number().over(partition_by=owner, order_by=table.c.id.desc())
    ranked = select(table.c.id, rank.label("rank")).where(*among).subquery()
    newest = select(ranked.c.id).where(ranked.c.rank <= NEWEST_KEPT)
    with database.writing() as connection:
        found = connection.execute(delete(table).where(*conditions, table.c.id.not_in(newest)))
        return int(found.rowcount)
