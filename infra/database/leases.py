"""Leases. A lease gives one process the right to change a processor. The process executes a plan, or is a recovery run.

    take ──► token 7 ──beat, beat, beat──► given back, or silent for ``SILENT_S`` ──► taken: token 8
                                                     a late write with token 7 ──► HoldLost

The process with the lease is the holder, and its right is the hold.

Invariants:
    - A hold begins and changes in a transaction that locks the processor's row in the table ``leases``. So if two holds
      begin at once, the second transaction sees the first hold.
    - The row in ``leases`` is always locked before rows of applies and incidents, which prevents deadlocks. A fenced
      transaction (``verify``) locks only the row of its apply or incident, and no row in ``leases``.
    - Each change of the holder issues a new token, greater than all former tokens. A holder writes only with its token.
      So a late write of a former holder, for example of a process that was frozen, has no effect.
    - The age of a heartbeat is measured only by the database's clock. On Postgres, this is the server's clock. On
      SQLite, it is the machine's monotonic clock, which a change of the time of day does not affect. This clock starts
      again at a reboot, so a heartbeat from before a reboot counts as older than ``SILENT_S``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Column, ColumnElement, Connection, Float, Table, func, insert, or_, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from holdfast.infra.database import tables
from holdfast.infra.database.errors import HeldByRecovery, HoldLost
from holdfast.infra.database.lease_times import SILENT_S
from holdfast.infra.database.writes import insert_into

#: Age, in seconds, that is used if a holder has no heartbeat. It exceeds ``SILENT_S``, so the holder counts as dead.
#: Holders that an older version of Holdfast recorded have no heartbeat.
NEVER_S = 1e9

#: The two reasons why a holder (the process with a lease) counts as dead. Each text is the end of a sentence.
SILENT = f"recorded no progress for {SILENT_S:.0f} s"
GONE = "has ended"

#: Name of the SQL function in SQLite that returns the machine's monotonic clock, seconds (defined in ``schema``).
STEADY_S = "holdfast_steady_s"


class database_seconds(GenericFunction[float]):
    """SQL function: the database's clock in seconds, for heartbeats. The start of the clock has no meaning."""

    type = Float(53)
    inherit_cache = True


@compiles(database_seconds, "sqlite")
def _on_sqlite(element: database_seconds, compiler: SQLCompiler, **_: Any) -> str:
    return f"{STEADY_S}()"


@compiles(database_seconds, "postgresql")
def _on_postgres(element: database_seconds, compiler: SQLCompiler, **_: Any) -> str:
    # now() would be wrong, because it returns the time of the transaction's start, and the transaction may have waited
    # for a lock since then.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


class database_time(GenericFunction[datetime]):
    """SQL function: the database's present time of day in UTC; for display only."""

    type = tables.UtcDateTime()
    inherit_cache = True


@compiles(database_time, "sqlite")
def _time_on_sqlite(element: database_time, compiler: SQLCompiler, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(database_time, "postgresql")
def _time_on_postgres(element: database_time, compiler: SQLCompiler, **_: Any) -> str:
    return "clock_timestamp()"


@dataclass(frozen=True, slots=True)
class Fence:
    """Identifies the holder of an apply (executed plan) or incident: the id of the record, and the holder's token."""

    of: Literal["apply", "incident"]
    id: int
    token: int


def take(connection: Connection, processor: str) -> int:
    """Lock the processor's row in ``leases`` for the rest of the transaction; returns a new token.

    The new token is greater than all former tokens of the processor.
    """
    first = insert_into(connection, tables.leases).values(processor=processor, token=1)
    counted = first.on_conflict_do_update(
        index_elements=[tables.leases.c.processor], set_={"token": tables.leases.c.token + 1}
    )
    token: int = connection.execute(counted.returning(tables.leases.c.token)).scalar_one()
    return token


def silence(beat_s: Column[Any]) -> ColumnElement[float]:
    """SQL expression: seconds since a heartbeat by the database's clock.

    ``abs`` makes the age of a heartbeat from before a reboot positive, so that it counts as old.
    """
    return func.abs(database_seconds() - beat_s)


def is_silent(beat_s: Column[Any]) -> ColumnElement[bool]:
    """SQL condition: the heartbeat is older than ``SILENT_S``, or missing."""
    return or_(beat_s.is_(None), silence(beat_s) > SILENT_S)


def end_recovery(connection: Connection, processor: str, token: int) -> None:
    """Take a processor from a recovery run whose heartbeats stopped. No effect if no recovery run holds the processor.

    ``token`` is the new token that ``take`` issued in the same transaction.

    Raises:
        HeldByRecovery: A live recovery run holds the processor.
    """
    column = tables.incidents.c
    claimed = (column.processor == processor, column.closed_at.is_(None), column.claimed_by.is_not(None))
    free = update(tables.incidents).where(*claimed, is_silent(column.beat_s))
    ended = free.values(claimed_by=None, claimed_at=None, token=token).returning(column.id)
    for incident in connection.execute(ended).scalars().all():
        text = f"its run recorded no progress for {SILENT_S:.0f} s, and an apply took the processor over"
        note = {"incident_id": incident, "step": "claim ended", "text": text, "at": database_time()}
        connection.execute(insert(tables.incident_notes).values(note))
    found = connection.execute(select(column.id, column.claimed_by).where(*claimed)).one_or_none()
    if found is not None:
        raise HeldByRecovery(
            f"Recovery repairs {processor} now: incident {found.id}, run {found.claimed_by}.",
            action=f"Wait until `holdfast incidents show {found.id}` says that it ended, or end that run in Dagster; "
            "then repeat the command.",
            processor=processor,
            incident=found.id,
            run=found.claimed_by,
        )


def end_silent_apply(connection: Connection, processor: str, token: int, gone: int | None = None) -> bool:
    """Remove the holder of a processor's open apply (execution of a plan) if the holder is dead.

    The holder is the process that executes the apply. It is dead if its heartbeats stopped, or if its token is
    ``gone``: the caller then knows that the process has ended. The apply itself stays open, without a holder. ``token``
    is the caller's new token, from a call of ``take`` in the same transaction.

    Returns:
        False if a live holder is left, so that the caller must not repair the processor.
    """
    column = tables.applies.c
    held = (column.processor == processor, column.finished_at.is_(None), column.holder.is_not(None))
    for ended, why in ((is_silent(column.beat_s), SILENT), (column.token == gone, GONE)):
        reason = f"its run {why}, and recovery took the processor over"
        free = update(tables.applies).where(*held, ended)
        connection.execute(free.values(holder=None, token=token, reason=reason))
    return connection.execute(select(column.id).where(*held)).one_or_none() is None


def verify(connection: Connection, fence: Fence) -> None:
    """Check that a run still holds its apply (executed plan) or incident, and lock the record in this transaction.

    The lock prevents that another run takes over before the transaction has ended.

    Raises:
        HoldLost: The hold has ended, or another run took over.
    """
    table: Table = tables.applies if fence.of == "apply" else tables.incidents
    ended = table.c.finished_at if fence.of == "apply" else table.c.closed_at
    held = select(table.c.id).where(table.c.id == fence.id, table.c.token == fence.token, ended.is_(None))
    if connection.execute(held.with_for_update()).one_or_none() is None:
        raise lost(fence)


def lost(fence: Fence) -> HoldLost:
    """The error for a run that no longer holds its apply (executed plan) or incident.

    The hold has ended, or another run has taken over.
    """
    where = "holdfast apply list" if fence.of == "apply" else f"holdfast incidents show {fence.id}"
    return HoldLost(
        f"This run no longer holds {fence.of} {fence.id}: another run took over, or it was ended.",
        action=f"Follow the other run, which `{where}` names. This run does nothing more.",
        of=fence.of,
        id=fence.id,
        token=fence.token,
    )
