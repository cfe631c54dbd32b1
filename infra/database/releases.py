"""The records of releases in Holdfast's registry. A release is a deployed version of a processor.

A record has the folder of the copied code, the version's topics and stores (its shape), and the time when the version
last worked.

Invariants:
    - Callers never delete the release that worked last, because a failed deployment rolls back to this release.
    - ``made_at`` is the order of a processor's versions. A rollback or a refused deploy does not change ``made_at``.
    - A new time is later than all times of the processor's other releases, even if the clock was ahead when those
      times were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select, update

from holdfast.infra.database import tables
from holdfast.infra.database.connections import Connections
from holdfast.infra.database.errors import RecordUnknown
from holdfast.infra.database.records import Release
from holdfast.infra.database.writes import upsert

_RELEASE = tables.releases.c


class ReleaseBook:
    """The releases (deployed versions) in one registry.

    Every method raises RegistryUnavailable if the database fails.
    """

    def __init__(self, database: Connections) -> None:
        self._database = database

    def record(  # tidy: allow-wide because each parameter is a column of the record
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
        """Store a release (deployed version).

        If the release is already known, ``made_at`` and ``worked_at`` are kept.
        """
        values = {"code_version": code_version, "target": target, "folder": folder, "shape": dict(shape)}
        with self._database.writing() as connection:
            key = {"processor": processor, "release_id": release_id}
            upsert(connection, tables.releases, key, values, first={"made_at": _later(connection, key, now)})

    def works(self, processor: str, release_id: str, now: datetime, *, newest: bool = False) -> None:
        """Record that a release (deployed version) processes every input partition now.

        With ``newest=True``, the release becomes the newest version in the order of versions (``made_at``).

        Raises:
            RecordUnknown: The release is unknown.
        """
        with self._database.writing() as connection:
            moment = _later(connection, {"processor": processor, "release_id": release_id}, now)
            times = {"worked_at": moment, "made_at": moment} if newest else {"worked_at": moment}
            known = connection.execute(update(tables.releases).where(*_key(processor, release_id)).values(times))
        if not known.rowcount:
            raise RecordUnknown(
                f"The registry has no release {release_id!r} of {processor}.",
                action="Deploy the processor again.",
                identity=release_id,
            )

    def working(self, processor: str) -> Release | None:
        """The release (deployed version) that last processed every partition; None if no release ever did."""
        query = select(tables.releases).where(_RELEASE.processor == processor, _RELEASE.worked_at.is_not(None))
        return self._first(query.order_by(_RELEASE.worked_at.desc()))

    def before(self, processor: str) -> Release | None:
        """The release to which a rollback returns; None if no older release ever processed all partitions.

        Among the releases that are older than the present release, this is the one that last processed all partitions.
        After a rollback, the release that was left is newer than the present release. So a second rollback goes to a
        still older release, not forward again.
        """
        now = self.working(processor)
        if now is None:
            return None
        query = select(tables.releases).where(_RELEASE.processor == processor, _RELEASE.worked_at.is_not(None))
        older = query.where(_RELEASE.release_id != now.release_id, _RELEASE.made_at < now.made_at)
        return self._first(older.order_by(_RELEASE.worked_at.desc()))

    def of_version(self, processor: str, code_version: str) -> Release | None:
        """The release with this code version that last processed every partition; if none ever did, the newest release.

        None if there is no release with this code version.
        """
        query = select(tables.releases).where(_RELEASE.processor == processor, _RELEASE.code_version == code_version)
        by_work = (_RELEASE.worked_at.is_(None), _RELEASE.worked_at.desc())
        return self._first(query.order_by(*by_work, _RELEASE.made_at.desc()))

    def find(self, processor: str, release_id: str) -> Release | None:
        """The release (deployed version) with this id; None if the id is unknown."""
        return self._first(select(tables.releases).where(*_key(processor, release_id)))

    def newest(self, processor: str, limit: int = 50) -> tuple[Release, ...]:
        """The newest ``limit`` releases of a processor, by the time when they last worked or were created."""
        moment = func.coalesce(_RELEASE.worked_at, _RELEASE.made_at)
        query = select(tables.releases).where(_RELEASE.processor == processor).order_by(moment.desc()).limit(limit)
        return tuple(Release(**row._mapping) for row in self._database.rows(query))

    def forget(self, processor: str, release_id: str) -> None:
        """Delete the record of a release (deployed version)."""
        self._database.changed(delete(tables.releases).where(*_key(processor, release_id)))

    def _first(self, query: Select[Any]) -> Release | None:
        rows = self._database.rows(query.limit(1))
        return Release(**rows[0]._mapping) if rows else None


def _later(connection: Connection, key: Mapping[str, str], now: datetime) -> datetime:
    """``now``; if other releases of the processor have later times, a time directly after these times.

    They have later times if the clock was ahead when they were recorded. Without this correction, the release that
    worked last would not have the latest time.
    """
    others = _RELEASE.processor == key["processor"], _RELEASE.release_id != key["release_id"]
    query = select(func.max(_RELEASE.made_at), func.max(_RELEASE.worked_at)).where(*others)
    latest = max(filter(None, connection.execute(query).one()), default=None)
    return now if latest is None or latest < now else latest + timedelta(microseconds=1)


def _key(processor: str, release_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return _RELEASE.processor == processor, _RELEASE.release_id == release_id
