"""Connections to the registry's database, for reading, or for writing in one transaction.

Invariants:
    - A locked database is waited for and asked again, within a bound; then the error names who holds it.
    - Every failure of the database is a RegistryUnavailable with the database's URL, without its password.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, CursorResult, Row, Select, Table
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.infra.database import leases, locks, schema
from holdfast.infra.database.errors import RegistryUnavailable
from holdfast.infra.database.leases import Fence
from holdfast.infra.database.writes import insert_into


class Connections:
    """The database at one SQLAlchemy URL; safe to share between threads. The first use opens a connection.

    ``steady_s`` is the steady clock for a SQLite database, seconds; Postgres uses its server's clock.
    """

    def __init__(self, url: str, steady_s: Callable[[], float] = time.monotonic) -> None:
        self.engine = schema.open_engine(url, steady_s)
        self._fence: Callable[[], Fence] | None = None

    def fenced(self, fence: Callable[[], Fence]) -> Connections:
        """The same database for a holder: every write transaction raises HoldLost if the hold is lost."""
        bound = object.__new__(Connections)
        bound.engine, bound._fence = self.engine, fence
        return bound

    @property
    def is_fenced(self) -> bool:
        """Whether writes are bound to a hold."""
        return self._fence is not None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self.reported(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection in one transaction, committed at the end."""
        with self.reported(), locks.begun(self.engine) as connection:
            if self._fence is not None:
                leases.verify(connection, self._fence())
            yield connection

    def rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        """All rows of a query."""
        with self.reading() as connection:
            return connection.execute(query).all()

    def changed(self, statement: Any) -> bool:
        """Execute an update in a separate transaction; returns whether it changed exactly one row."""
        with self.writing() as connection:
            result: CursorResult[Any] = connection.execute(statement)
            return result.rowcount == 1

    def find_or_insert(self, there: Select[Any], table: Table, values: Mapping[str, Any]) -> tuple[Row[Any], bool]:
        """The row that the query ``there`` returns, or a new row; and whether the row is new.

        A unique index of the table must refuse a second row: the index decides between two processes that insert at
        once.
        """
        while True:
            with self.writing() as connection:
                first = insert_into(connection, table).values(values).on_conflict_do_nothing()
                made = connection.execute(first.returning(table)).one_or_none()
                if made is not None:
                    return made, True
                found = connection.execute(there).one_or_none()
                if found is not None:
                    return found, False
                # The conflicting row was closed meanwhile.

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Raise failures of the database as RegistryUnavailable, except violated constraints."""
        try:
            yield
        except IntegrityError:
            raise
        except (DBAPIError, PoolTimeout, OSError) as failed:
            seen = failed.orig if isinstance(failed, DBAPIError) else failed
            action = (
                "Check that the database of `HOLDFAST_REGISTRY_URL` runs, and that this user may write it; "
                "`holdfast up` brings its schema up to date."
            )
            if locks.is_locked(failed):
                action = locks.what_to_do(self.engine)
            raise RegistryUnavailable(
                f"The registry {schema.shown(self.engine.url)} doesn't answer: {type(seen).__name__}: {seen}.",
                action=action,
                url=schema.shown(self.engine.url),
            ) from failed
