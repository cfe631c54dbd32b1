"""Connections to the registry's database, for reading, or for writing in one transaction.

Invariants:
    - If the database is locked, a call waits and retries for a limited time. Then its error names the lock's holder.
    - Every failure of the database becomes a RegistryUnavailable with the database's URL, but without the password.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, CursorResult, Row, Select, Table
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.infra.database import copies, leases, locks, schema
from holdfast.infra.database.errors import RegistryUnavailable
from holdfast.infra.database.leases import Fence
from holdfast.infra.database.writes import insert_into


class Connections:
    """Connections to the database at one SQLAlchemy URL, for all threads; the first use opens a connection.

    ``steady_s`` is a monotonic clock in seconds, for the heartbeats in a SQLite database. Postgres uses the clock of
    its server.
    """

    def __init__(self, url: str, steady_s: Callable[[], float] = time.monotonic) -> None:
        self.engine = schema.open_engine(url, steady_s)
        self._fence: Callable[[], Fence] | None = None

    def fenced(self, fence: Callable[[], Fence]) -> Connections:
        """Connections to the same database for the holder of an apply (executed plan) or incident.

        The holder is the only run that may write the record. Each write transaction first checks that this run is
        still the holder, and raises HoldLost if it is not.
        """
        bound = object.__new__(Connections)
        bound.engine, bound._fence = self.engine, fence
        return bound

    @property
    def is_fenced(self) -> bool:
        """Whether each write transaction first checks that this run still holds its apply (execution) or incident."""
        return self._fence is not None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Context manager with a connection for reading."""
        with self.reported(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Context manager with a connection in a write transaction, which is committed at the end of the block."""
        with self.reported(), locks.begun(self.engine) as connection:
            if self._fence is not None:
                leases.verify(connection, self._fence())
            yield connection

    def rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        """Execute a query and return all its rows."""
        with self.reading() as connection:
            try:
                return connection.execute(query).all()
            # A column has a text that is not JSON or not a time. A person or a failing disk may have changed it.
            except ValueError as damaged:
                url = schema.shown(self.engine.url)
                raise RegistryUnavailable(
                    f"The registry {url} has a record that can't be read: {damaged}.",
                    action="Put a backup of the database in its place; for a SQLite file: `holdfast registry restore "
                    "COPY`. `holdfast status` then names the command that records a newer deployment again.",
                    url=url,
                ) from damaged

    def changed(self, statement: Any) -> bool:
        """Execute an update in a separate transaction; returns whether exactly one row was changed."""
        with self.writing() as connection:
            result: CursorResult[Any] = connection.execute(statement)
            return result.rowcount == 1

    def find_or_insert(self, there: Select[Any], table: Table, values: Mapping[str, Any]) -> tuple[Row[Any], bool]:
        """Insert a row, or find the existing row by the query ``there``.

        Returns the row, and whether this call inserted it. The table must have a unique index that refuses a second row
        of this kind. If two processes insert at the same moment, the index lets only one process succeed.
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
                # The existing row (an open incident or apply) was closed between the refused insert and the query, so
                # the loop tries again.

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Context manager that turns database errors into RegistryUnavailable, except violated constraints."""
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
            elif copies.is_damaged(seen):
                action = copies.what_to_do(Path(self.engine.url.database or ""))
            raise RegistryUnavailable(
                f"The registry {schema.shown(self.engine.url)} doesn't answer: {type(seen).__name__}: {seen}.",
                action=action,
                url=schema.shown(self.engine.url),
            ) from failed
