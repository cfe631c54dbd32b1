"""Connections to the registry's database, as its users take them: to read, or to write in one transaction.

Invariants:
    - Whatever the database does wrong is a RegistryUnavailable that names it, without its password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.infra.database import schema
from holdfast.infra.database.errors import RegistryUnavailable


class Connections:
    """The database at one SQLAlchemy URL; safe to share between threads. Nothing is opened until the first use."""

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
        with (
            self.reported(),
            self.engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Failures of the database as the registry's own; violated constraints excepted."""
        try:
            yield
        except IntegrityError:
            raise
        except (DBAPIError, PoolTimeout, OSError) as failed:
            seen = failed.orig if isinstance(failed, DBAPIError) else failed
            raise RegistryUnavailable(
                f"The registry {schema.shown(self.engine.url)} doesn't answer: {type(seen).__name__}: {seen}.",
                action="Check that the database is up, that its folder or server can be written, and that "
                "`migrate` ran; HOLDFAST_REGISTRY_URL names it.",
                url=schema.shown(self.engine.url),
            ) from failed
