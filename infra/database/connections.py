"""Connections to the registry's database, for reading, or for writing in one transaction.

Invariants:
    - Every failure of the database is a RegistryUnavailable with the database's URL, without its password.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, CursorResult, Row, Select, Table, insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.infra.database import schema
from holdfast.infra.database.errors import RegistryUnavailable


class Connections:
    """The database at one SQLAlchemy URL; safe to share between threads. The first use opens a connection."""

    def __init__(self, url: str) -> None:
        self.engine = schema.open_engine(url)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self.reported(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection in one transaction, committed at the end."""
        options = {schema.WRITES: True}
        with self.reported(), self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        """All rows of a query."""
        with self.reading() as connection:
            return connection.execute(query).all()

    def changed(self, statement: Any) -> bool:
        """Execute an update in a transaction of its own; whether it changed exactly one row."""
        with self.writing() as connection:
            result: CursorResult[Any] = connection.execute(statement)
            return result.rowcount == 1

    def find_or_insert(self, there: Select[Any], table: Table, values: Mapping[str, Any]) -> tuple[Row[Any], bool]:
        """The row that the query ``there`` finds, else a new one; and whether it is new.

        An index of the table must refuse a second row: it decides between two processes that insert at once.
        """
        while True:
            with self.writing() as connection:
                found = connection.execute(there).one_or_none()
                if found is not None:
                    return found, False
                try:
                    with connection.begin_nested():
                        return connection.execute(insert(table).values(values).returning(table)).one(), True
                except IntegrityError:
                    # Another process inserted after the look; the next look finds its row, unless that was closed.
                    continue

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Raise failures of the database as RegistryUnavailable, except violated constraints."""
        try:
            yield
        except IntegrityError:
            raise
        except (DBAPIError, PoolTimeout, OSError) as failed:
            seen = failed.orig if isinstance(failed, DBAPIError) else failed
            raise RegistryUnavailable(
                f"The registry {schema.shown(self.engine.url)} doesn't answer: {type(seen).__name__}: {seen}.",
                action="Check that the database of `HOLDFAST_REGISTRY_URL` runs, and that this user may write it; "
                "`holdfast up` brings its schema up to date.",
                url=schema.shown(self.engine.url),
            ) from failed


def upsert(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Update the row with this key, or insert it."""
    known = [table.c[name] == value for name, value in key.items()]
    if connection.execute(update(table).where(*known).values(values)).rowcount == 0:
        connection.execute(insert(table).values({**key, **values}))
