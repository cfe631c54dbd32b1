"""The catalog's pointer to a table's metadata file, and the exchange of that pointer: an Iceberg commit without Spark.

A catalog in a database has one row for each table, with the path of its newest metadata file. Each commit to a table is
one update of that row, on condition that no other client committed (``JdbcTableOperations`` of Iceberg's JDBC catalog).

Invariants:
    - A table's place moves only from the place that the caller has seen.
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
    """The rows of the catalog of a Spark session; ``properties`` returns the session's value of a property.

    Tables are named ``namespace.table``. Every method raises CatalogUnavailable or CatalogUnusable when the catalog's
    database can't be used.
    """

    def __init__(self, properties: Callable[[str], str | None]) -> None:
        url = make_url(catalog_of_session(properties))
        self._shown = url.set(password=None, query={}).render_as_string()
        self._engine = create_engine(url, poolclass=NullPool)

    def place(self, table: str) -> str:
        """The path of a table's newest metadata file.

        Raises:
            TableUnknown: The catalog has no such table.
        """
        found = self.find(table)
        if found is None:
            raise no_table(table)
        return found

    def find(self, table: str) -> str | None:
        """The path of the newest metadata file of a table or view; None when the catalog has no entry of that name."""
        with short_errors(self._shown), self._engine.connect() as connection:
            query = select(IcebergTables.metadata_location).where(*_row(table))
            return connection.execute(query).scalar_one_or_none()

    def exchange(self, table: str, seen: str, new: str) -> bool:
        """Move a table from the place ``seen`` to ``new``; False if it has moved elsewhere."""
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
