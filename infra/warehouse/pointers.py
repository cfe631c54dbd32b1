"""Reads and replaces the catalog's pointer to a table's newest metadata file. Replacing is an Iceberg commit.

An Iceberg catalog in a database has one row for each table, with the path of the newest metadata file. A commit to a
table is one update of this row, on condition that no other client has committed (like ``JdbcTableOperations`` in
Iceberg's JDBC catalog).

Invariants:
    - The pointer is replaced only if it still has the value that the caller has read (compare-and-swap).
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog.sql import IcebergTables
from sqlalchemy import ColumnElement, create_engine, make_url, select, update
from sqlalchemy.pool import NullPool

from holdfast.infra.warehouse.catalog import short_errors
from holdfast.infra.warehouse.errors import no_table
from holdfast.infra.warehouse.properties import CATALOG, catalog_of_session


class CatalogPointers:
    """The pointers in the catalog that a Spark session uses.

    ``properties`` is a function that returns the session's value of a Spark property. Tables are named
    ``namespace.table``. Every method raises CatalogUnavailable or CatalogUnusable if the catalog's database can't be
    used.
    """

    def __init__(self, properties: Callable[[str], str | None]) -> None:
        url = make_url(catalog_of_session(properties))
        self._shown = url.set(password=None, query={}).render_as_string()
        self._engine = create_engine(url, poolclass=NullPool)

    def place(self, table: str) -> str:
        """The path of a table's newest metadata file.

        Raises:
            TableUnknown: The catalog lacks the table.
        """
        found = self.find(table)
        if found is None:
            raise no_table(table)
        return found

    def find(self, table: str) -> str | None:
        """The path of the newest metadata file of a table or view; None if the catalog has no entry with this name."""
        with short_errors(self._shown), self._engine.connect() as connection:
            query = select(IcebergTables.metadata_location).where(*_row(table))
            return connection.execute(query).scalar_one_or_none()

    def exchange(self, table: str, seen: str, new: str) -> bool:
        """Replace a table's pointer ``seen`` by ``new``; returns False if the pointer is no longer ``seen``."""
        moved = update(IcebergTables).where(*_row(table), IcebergTables.metadata_location == seen)
        with short_errors(self._shown), self._engine.begin() as connection:
            done = connection.execute(moved.values(metadata_location=new, previous_metadata_location=seen))
        return done.rowcount == 1


def _row(table: str) -> tuple[ColumnElement[bool], ...]:
    namespace, name = table.rsplit(".", 1)
    return (
        IcebergTables.catalog_name == CATALOG,
        IcebergTables.table_namespace == namespace,
        IcebergTables.table_name == name,
    )
