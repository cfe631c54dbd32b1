"""``SQLiteLookup``: reads rows of a SQLite file for ``sdf.join_lookup``. The classes have the names of Quix Streams."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.joins.enrichment.lookup_classes import BaseField, BaseLookup, own_copy
from holdfast.processors.engine.joins.merge import JoinInvalid

_NAME = re.compile(r"\w+")


@dataclass(frozen=True)
class SQLiteField(BaseField):
    """Base class of the fields of a ``SQLiteLookup``. A field has a query, and converts the query's rows."""

    def query(self, on: Any, value: Mapping[str, Any]) -> tuple[str, Any]:
        """Returns the SQL text and its parameters for the row key ``on`` and the message's value."""
        raise NotImplementedError

    def row(self, found: tuple[Any, ...]) -> Any:
        """Converts a row of the query to the form that is set in the value."""
        return found


@dataclass(frozen=True)
class SQLiteLookupField(SQLiteField):
    """A new field with columns of one table. The field becomes a dict from column name to the row's value.

    Attributes:
        table: The name of the table.
        columns: The names of the columns to read.
        on: The column that must be equal to the row's key.
        order_by: The column by which rows are sorted; empty for no order.
        order_by_direction: ``ASC`` or ``DESC``.
        ttl: Seconds for which an answer is cached.
        default: The field's value if no row is found. It is used only with ``first_match_only``.
        first_match_only: Whether only the first row is read. Otherwise the field gets a list of all rows.
    """

    table: str
    columns: list[str]
    on: str
    order_by: str = ""
    order_by_direction: Literal["ASC", "DESC"] = "ASC"
    ttl: float = 60.0
    default: Any = None
    first_match_only: bool = True

    def __post_init__(self) -> None:
        names = [self.table, *self.columns, self.on, *([self.order_by] if self.order_by else [])]
        bad = [name for name in names if not isinstance(name, str) or not _NAME.fullmatch(name)]
        if bad or not self.columns or self.order_by_direction not in ("ASC", "DESC"):
            raise JoinInvalid(
                f"A SQLiteLookupField has {bad[0] if bad else 'no columns or another direction'!r}; expected names of "
                "a table and of columns, of letters, digits and `_`.",
                action="Name each column. For other queries, use `SQLiteLookupQueryField`.",
            )

    def query(self, on: Any, value: Mapping[str, Any]) -> tuple[str, Any]:
        """Returns the query, with the row key as its parameter.

        SQL does not allow names as parameters, so the names are written into the text. They were checked before.
        """
        order = f" ORDER BY {self.order_by} {self.order_by_direction}" if self.order_by else ""
        limit = " LIMIT 1" if self.first_match_only else ""
        names = ", ".join(self.columns)
        return f"SELECT {names} FROM {self.table} WHERE {self.on} = ?{order}{limit}", (on,)  # noqa: S608 # nosec B608

    def row(self, found: tuple[Any, ...]) -> Any:
        """Returns the row as a dict from column name to value."""
        return dict(zip(self.columns, found, strict=True))


@dataclass(frozen=True)
class SQLiteLookupQueryField(SQLiteField):
    """A new field that is read by any SQL query. The field becomes a list with the columns of the row.

    The query may have named parameters, for example ``:user``. Each parameter gets the value's field of this name.

    Attributes:
        sql: The query.
        ttl: Seconds for which the answer for a row key is cached.
        default: The field's value if no row is found. It is used only with ``first_match_only``.
        first_match_only: Whether only the first row is read. Otherwise the field gets a list of all rows.
    """

    sql: str
    ttl: float = 60.0
    default: Any = None
    first_match_only: bool = True

    def query(self, on: Any, value: Mapping[str, Any]) -> tuple[str, Any]:
        """Returns the query. The fields of the message's value are its parameters."""
        return self.sql, value

    def row(self, found: tuple[Any, ...]) -> Any:
        """Converts the row to a list, because JSON has no tuples."""
        return list(found)


class SQLiteLookup(BaseLookup[SQLiteLookupField | SQLiteLookupQueryField]):
    """Reads rows of a SQLite file, and caches the answers in memory. The file is opened read-only.

    Args:
        path: The path of the file.
        cache_size: Maximum number of cached answers.
    """

    def __init__(self, path: str, cache_size: int = 1000) -> None:
        self.path, self._cache_size = path, cache_size
        self._connection: sqlite3.Connection | None = None
        self._cache: OrderedDict[tuple[str, Any], tuple[float, Any]] = OrderedDict()

    def join(
        self,
        fields: Mapping[str, SQLiteLookupField | SQLiteLookupQueryField],
        on: Any,
        value: dict[str, Any],
        key: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Sets each new field to the first row, to a list of all rows, or to the field's default."""
        for name, field in fields.items():
            value[name] = self._found(name, field, on, value)

    def _found(
        self, name: str, field: SQLiteLookupField | SQLiteLookupQueryField, on: Any, value: Mapping[str, Any]
    ) -> Any:
        place, now = (name, on), time.monotonic()
        cached = self._cache.get(place)
        if cached is not None and now < cached[0]:
            self._cache.move_to_end(place)
            return own_copy(cached[1])
        # The file is opened at the first message, because a program that only describes the processor does not need it.
        if self._connection is None:
            self._connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, check_same_thread=False)
        cursor = self._connection.execute(*field.query(on, value))
        if field.first_match_only:
            row = cursor.fetchone()
            found = field.default if row is None else field.row(row)
        else:
            found = [field.row(row) for row in cursor]
        if field.ttl > 0:
            self._cache[place] = now + field.ttl, found
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return own_copy(found)
