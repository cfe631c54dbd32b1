"""Upserts: the database decides in one statement between insert and update.

Invariants:
    - No look before a write: between a look and an insert, another process may insert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An insert of the connection's dialect, which has ``on_conflict_do_update`` and ``on_conflict_do_nothing``."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def upsert(
    connection: Connection,
    table: Table,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    first: Mapping[str, Any] | None = None,
) -> None:
    """Insert the row with this key, or update it; ``first`` has the values that only an insert sets."""
    inserted = insert_into(connection, table).values({**key, **values, **(first or {})})
    connection.execute(
        inserted.on_conflict_do_update(index_elements=[table.c[name] for name in key], set_=dict(values))
    )
