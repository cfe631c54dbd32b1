"""Releases in the registry: the deployed versions of each processor, their code and shape, and when they last worked.

Invariants:
    - A failed deployment rolls back to the release that worked last; callers never delete its record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, delete, func, insert, select, update

from holdfast.infra.database import tables
from holdfast.infra.database.connections import Connections
from holdfast.infra.database.errors import RecordUnknown
from holdfast.infra.database.records import Release


class ReleaseBook:
    """The releases of one registry. Every method raises RegistryUnavailable when the database fails."""

    def __init__(self, database: Connections) -> None:
        self._database = database

    def record(  # tidy: allow-wide because each is a column of the record
        self,
        processor: str,
        release_id: str,
        *,
        code_version: str,
        target: str,
        folder: str | None,
        shape: Mapping[str, Any],
        now: datetime,
    ) -> None:
        """Store a release; a known release keeps the time when it last worked."""
        table = tables.releases
        values = {"code_version": code_version, "target": target, "folder": folder, "shape": dict(shape)}
        with self._database.writing() as connection:
            known = (table.c.processor == processor, table.c.release_id == release_id)
            if connection.execute(update(table).where(*known).values(made_at=now, **values)).rowcount == 0:
                connection.execute(
                    insert(table).values(processor=processor, release_id=release_id, made_at=now, **values)
                )

    def works(self, processor: str, release_id: str, now: datetime) -> None:
        """Record that a release works on every partition.

        Raises:
            RecordUnknown: The release is unknown.
        """
        table = tables.releases
        statement = update(table).where(table.c.processor == processor, table.c.release_id == release_id)
        with self._database.writing() as connection:
            if connection.execute(statement.values(worked_at=now)).rowcount == 0:
                raise RecordUnknown(
                    f"The registry has no release {release_id!r} of {processor}.",
                    action="Deploy the processor again.",
                    identity=release_id,
                )

    def working(self, processor: str) -> Release | None:
        """The release that worked last; None when no release ever worked."""
        table = tables.releases
        query = select(table).where(table.c.processor == processor, table.c.worked_at.is_not(None))
        return self._first(query.order_by(table.c.worked_at.desc()))

    def of_version(self, processor: str, code_version: str) -> Release | None:
        """The release of a version that worked last, else its newest one; None when the version is unknown."""
        table = tables.releases
        query = select(table).where(table.c.processor == processor, table.c.code_version == code_version)
        return self._first(
            query.order_by(table.c.worked_at.is_(None), table.c.worked_at.desc(), table.c.made_at.desc())
        )

    def find(self, processor: str, release_id: str) -> Release | None:
        """One release; None when it is unknown."""
        table = tables.releases
        return self._first(select(table).where(table.c.processor == processor, table.c.release_id == release_id))

    def newest(self, processor: str, limit: int = 50) -> tuple[Release, ...]:
        """The releases of a processor; those that last worked, or were created, come first."""
        table = tables.releases
        moment = func.coalesce(table.c.worked_at, table.c.made_at)
        with self._database.reading() as connection:
            query = select(table).where(table.c.processor == processor).order_by(moment.desc()).limit(limit)
            return tuple(_release(row) for row in connection.execute(query))

    def forget(self, processor: str, release_id: str) -> None:
        """Delete the record of a release."""
        table = tables.releases
        with self._database.writing() as connection:
            connection.execute(delete(table).where(table.c.processor == processor, table.c.release_id == release_id))

    def _first(self, query: Select[Any]) -> Release | None:
        with self._database.reading() as connection:
            row = connection.execute(query.limit(1)).one_or_none()
            return None if row is None else _release(row)


def _release(row: Row[Any]) -> Release:
    return Release(**row._mapping)
