"""The records of erasures in Holdfast's registry. An erasure removes all copies of one key of a processor.

Invariants:
    - No record contains the key. ``mark`` is a keyed hash of it; the key of the hash is not in the registry.
    - A record is never deleted, because it refuses a later restore of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Table, select, update

from holdfast.infra.database import tables
from holdfast.infra.database.connections import Connections
from holdfast.infra.database.writes import upsert

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
