"""Deletes old records of the registry: ended applies (executions of plans), closed incidents, and actions.

Invariants:
    - Open applies and open incidents are kept. The newest failed incidents that nobody acknowledged are kept, too.
    - The newest applies and actions of each processor are kept, whatever their age. These records contain the rates of
      stages, the last rehearsal and the last rebuild.
    - This module never deletes records of deployments, releases, snapshots and plans. Other code limits the number of
      plans and releases. A snapshot's record is kept so that its table version is never published twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, ColumnElement, Table, delete, func, select

from holdfast.infra.database import tables
from holdfast.infra.database.connections import Connections

#: Number of newest records of each processor that are kept at any age.
NEWEST_KEPT = 50


@dataclass(frozen=True, slots=True)
class Pruned:
    """The numbers of deleted applies (executions of plans), incidents and actions."""

    applies: int = 0
    incidents: int = 0
    actions: int = 0


def prune_registry(database: Connections, before: datetime) -> Pruned:
    """Delete records that ended before the time ``before``; raises RegistryUnavailable if the database fails."""
    applies, incidents, actions = tables.applies, tables.incidents, tables.actions
    ended = (applies.c.finished_at.is_not(None), applies.c.finished_at < before)
    closed = (incidents.c.closed_at.is_not(None), incidents.c.closed_at < before)
    # A failed incident is deleted only after an operator has acknowledged it.
    answered = (incidents.c.outcome != "failed") | incidents.c.acknowledged_at.is_not(None)
    return Pruned(
        _prune(database, applies, applies.c.processor, *ended),
        _prune(database, incidents, incidents.c.processor, *closed, answered)
        # Of the failed incidents that nobody acknowledged, each processor keeps the newest NEWEST_KEPT. Otherwise a
        # fault that returns often would fill the table.
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
    """Delete rows that meet all ``conditions``, except the ``NEWEST_KEPT`` newest rows of each owner (processor).

    The newest rows are chosen only among the rows that meet ``among``; without ``among``, among all rows. Returns the
    number of deleted rows.
    """
    rank = func.row_number().over(partition_by=owner, order_by=table.c.id.desc())
    ranked = select(table.c.id, rank.label("rank")).where(*among).subquery()
    newest = select(ranked.c.id).where(ranked.c.rank <= NEWEST_KEPT)
    with database.writing() as connection:
        found = connection.execute(delete(table).where(*conditions, table.c.id.not_in(newest)))
        return int(found.rowcount)
