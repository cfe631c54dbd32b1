"""Upserts: one SQL statement inserts a row, or updates the row if it exists.

Invariants:
    - No query checks first whether a row exists, because another process may insert the row after the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


def insert_into(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT statement of the connection's SQL dialect, whose class also has ``on_conflict_do_update``."""
    # Each dialect is imported late, because a command loads only the dialect of its own database.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def upsert(
    connection: Connection,
    table: Table,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    first: Mapping[str, Any] | None = None,
) -> None:
    """Insert the row with this key, or update its ``values``; the values in ``first`` are set only by an insert."""
    inserted = insert_into(connection, table).values({**key, **values, **(first or {})})
    connection.execute(
        inserted.on_conflict_do_update(index_elements=[table.c[name] for name in key], set_=dict(values))
    )
