"""Reads pages of a SQL table or query in the order of a cursor column, through SQLAlchemy.

Invariants:
    - Each failure of the database becomes an error of this module, without the password of the URL.
    - A page begins strictly behind a position. Positions compare by all cursor columns, so equal cursor values are not
      skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnClause,
    ColumnElement,
    Engine,
    FromClause,
    Select,
    and_,
    column,
    create_engine,
    inspect,
    literal_column,
    or_,
    select,
    table,
    text,
)
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.installation import missing_in
from holdfast.infra.masking import masked, remember, secrets_of_url, shown_url
from holdfast.processors.sources.sql_values import plain

#: A colon that SQLAlchemy would take for the begin of a parameter.
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")
_PERMANENT = (ProgrammingError, DataError, NotSupportedError, IntegrityError)
#: SQLite reports these faults of a query as faults of the connection.
_SQLITE_PERMANENT = ("no such", "syntax error", "misuse")


class SqlAway(HoldfastError):
    """The database of a source does not answer now. Fields: ``url``."""


class SqlRefused(BadConfiguration):
    """The database refuses the query of a source: a table, a column or a right is missing. Fields: ``url``."""


class SqlRows:
    """The rows of a table or query, in the order of its cursor columns.

    Args:
        url: The SQLAlchemy URL of the database.
        table: The name of a table or view, with its schema if it needs one; None for a query.
        query: A SELECT without ORDER BY; None for a table.
        cursor: The names of the columns of the position: the cursor column, then those that order equal values.
        options: Further arguments of ``sqlalchemy.create_engine``.
    """

    def __init__(
        self, url: str, table: str | None, query: str | None, cursor: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        remember(secrets_of_url(url))
        self.shown = shown_url(url)
        self.cursor = tuple(cursor)
        self._url, self._table, self._query, self._options = url, table, query, dict(options)
        #: The URL without its password, and the table, for people.
        self.place = f"{self.shown} {'query' if table is None else table}"

    def check(self) -> None:
        """Checks that the table and the cursor columns exist.

        Raises:
            SqlRefused: The table or a column does not exist, or the query is not accepted.
            SqlAway: The database does not answer.
        """
        with self._reported():
            if self._table is not None and not inspect(self._engine).has_table(*_parts(self._table)):
                raise self._refused(
                    f"there is no table {self._table}", "Create the table, or correct `table` and the URL."
                )
            with self._engine.connect() as connection:
                names = tuple(connection.execute(self._all.limit(0)).keys())
        missing = [name for name in self.cursor if name not in names]
        if missing:
            raise self._refused(
                f"the rows have no column {missing[0]!r}; they have {', '.join(names)[:300]}",
                "Correct `cursor` or `tie_break`.",
            )

    def page(self, after: Sequence[Any] | None, at_least: Any, limit: int) -> list[dict[str, Any]]:
        """Returns the next rows as dicts, in the order of the cursor columns.

        Args:
            after: The position behind which the page begins; None begins with the first row.
            at_least: The least value of the cursor column; None means no bound.
            limit: Maximum number of rows.
        """
        found = self._all.where(*(each.is_not(None) for each in self._columns))
        if at_least is not None:
            found = found.where(self._columns[0] >= at_least)
        if after is not None:
            found = found.where(_behind(self._columns, after))
        with self._reported(), self._engine.connect() as connection:
            answer = connection.execute(found.order_by(*self._columns).limit(limit))
            return [{name: plain(value) for name, value in row._mapping.items()} for row in answer]

    def has_null(self) -> bool:
        """Whether a row has no value in one of the cursor columns."""
        return self._finds(or_(*(each.is_(None) for each in self._columns)))

    def is_behind(self, position: Sequence[Any]) -> bool:
        """Whether there are rows, and the cursor column of each is less than that of ``position``."""
        return not self._finds(self._columns[0] >= position[0]) and self._finds(self._columns[0].is_not(None))

    def has_twins(self, position: Sequence[Any]) -> bool:
        """Whether more than one row has exactly this position."""
        same = (each == value for each, value in zip(self._columns, position, strict=False))
        with self._reported(), self._engine.connect() as connection:
            found: Select[Any] = select(literal_column("1")).select_from(self._from).where(*same).limit(2)
            return len(connection.execute(found).all()) == 2

    def close(self) -> None:
        """Closes the connections."""
        if "_engine" in vars(self):
            self._engine.dispose()

    def _finds(self, condition: ColumnElement[bool]) -> bool:
        with self._reported(), self._engine.connect() as connection:
            found: Select[Any] = select(literal_column("1")).select_from(self._from).where(condition).limit(1)
            return connection.execute(found).first() is not None

    @cached_property
    def _engine(self) -> Engine:
        try:
            return create_engine(self._url, **{"pool_pre_ping": True, **self._options})
        except (ArgumentError, NoSuchModuleError, ImportError, TypeError) as failure:
            if (missing := missing_in(failure)) is not None:
                raise missing from failure
            action = "Correct the URL of the source, or install the driver that it names."
            raise self._refused(str(failure), action) from failure

    @cached_property
    def _from(self) -> FromClause:
        columns: list[ColumnClause[Any]] = [column(name) for name in self.cursor]
        if self._table is not None:
            name, schema = _parts(self._table)
            return table(name, *columns, schema=schema)
        return text(_PARAMETER.sub(r"\\:\1", self._query or "")).columns(*columns).subquery("source_rows")

    @property
    def _columns(self) -> list[ColumnElement[Any]]:
        return [self._from.c[name] for name in self.cursor]

    @property
    def _all(self) -> Any:
        return select(literal_column("*")).select_from(self._from)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeout, OSError) as failure:
            seen = str(failure.orig if isinstance(failure, DBAPIError) else failure).strip().split("\n")[0]
            from_sqlite = self._url.startswith("sqlite") and any(each in seen for each in _SQLITE_PERMANENT)
            if isinstance(failure, _PERMANENT) or from_sqlite:
                action = "Correct `table`, `query` or `cursor` of the source, or the rights of its user."
                raise self._refused(seen, action) from failure
            raise SqlAway(
                f"The database {self.shown} of a source does not answer: {masked(seen)}.",
                action="Start the database, or correct the URL of the source.",
                url=self.shown,
            ) from failure

    def _refused(self, seen: str, action: str) -> SqlRefused:
        return SqlRefused(
            f"The database {self.shown} refuses what a source reads: {masked(seen).rstrip('.')}.",
            action=action,
            url=self.shown,
        )


def _parts(name: str) -> tuple[str, str | None]:
    schema, _, plain_name = name.rpartition(".")
    return plain_name, schema or None


def _behind(columns: Sequence[ColumnElement[Any]], position: Sequence[Any]) -> ColumnElement[bool]:
    """The condition that a row comes behind a position. Not every database compares rows as a whole."""
    return or_(
        *(
            and_(*(columns[each] == position[each] for each in range(number)), columns[number] > position[number])
            for number in range(len(position))
        )
    )
