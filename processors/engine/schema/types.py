"""The typed columns of a store as frozen data: each column's name, type and place in the JSON of a value.

A row of a store's table is one changelog key: a message key and a state key. A store with one model has one column for
each field of the model. A store with a model for each state key has one column for each state key; the column is null
in the rows of all other state keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.infra.errors import BadConfiguration

#: Columns of every table; a typed column with the same name gets a trailing underscore.
RESERVED = frozenset(
    {"store_partition", "key", "value", "message_key", "state_key", "json", "offset", "changelog_timestamp"}
    | {"event_timestamp", "why", "op", "timestamp", "generation", "snapshot_id"}
)
#: Matches every state key without a separate model.
ANY_STATE_KEY = "*"
#: The model value that requests columns inferred from the values.
INFER = "infer"


class SchemaInvalid(BadConfiguration):
    """A model can't become columns."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type by its SQL name; ``allowed`` lists the only values, empty for all."""

    sql: str
    allowed: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A decimal number."""

    precision: int
    scale: int

    @property
    def sql(self) -> str:
        """The type in SQL."""
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Quotient:
    """A stored mean, ``{"sum": ..., "count": ...}``; its column is sum divided by count."""

    sql: str = "double"


@dataclass(frozen=True, slots=True)
class Moment:
    """A stored number of milliseconds since 1970; its column is null outside of the years 1 to 9999."""

    sql: str = "timestamp"


@dataclass(frozen=True, slots=True)
class Held:
    """One item of a stored list; the column is the item at this index."""

    at: int
    element: ColumnType

    @property
    def sql(self) -> str:
        """The type in SQL."""
        return self.element.sql


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    element: ColumnType

    @property
    def sql(self) -> str:
        """The type in SQL."""
        return f"array<{self.element.sql}>"


@dataclass(frozen=True, slots=True)
class Entries:
    """A map: an object with keys of any name."""

    value: ColumnType

    @property
    def sql(self) -> str:
        """The type in SQL."""
        return f"map<string,{self.value.sql}>"


@dataclass(frozen=True, slots=True)
class Member:
    """A field of an object; ``sources`` are its names in JSON, the newest first."""

    name: str
    type: ColumnType
    required: bool
    sources: tuple[str, ...]

    @property
    def former(self) -> tuple[str, ...]:
        """Earlier names of the column."""
        return tuple(source for source in self.sources if source != self.name)


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known fields."""

    members: tuple[Member, ...]

    @property
    def sql(self) -> str:
        """The type in SQL."""
        return f"struct<{','.join(f'{tick(each.name)}:{each.type.sql}' for each in self.members)}>"


ColumnType = Scalar | Number | Quotient | Moment | Held | Items | Entries | Record

TEXT, WHOLE, FLOATING, TRUTH = Scalar("string"), Scalar("bigint"), Scalar("double"), Scalar("boolean")
INSTANT, LOCAL_TIME, DAY = Scalar("timestamp"), Scalar("timestamp_ntz"), Scalar("date")


@dataclass(frozen=True, slots=True)
class Column:
    """A typed column; ``paths`` are its places in the JSON of a value, the newest first; ``()`` is the whole value.

    If the JSON has no value, ``key_part`` has it: a part of the state key, counted from 1, between its slashes.
    """

    name: str
    type: ColumnType
    required: bool
    paths: tuple[tuple[str, ...], ...]
    comment: str = ""
    key_part: int | None = None

    @property
    def former(self) -> tuple[str, ...]:
        """Former names of the column."""
        return tuple(column_name(path[-1]) for path in self.paths if path and column_name(path[-1]) != self.name)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The columns of the values of one state key, or of all state keys if ``state_key`` is None.

    With ``prefixes``, these are the columns of all state keys that begin with one of the prefixes; rows of other state
    keys are internal and have no columns. With ``nullable``, the whole value may be ``null``.
    """

    state_key: str | None
    columns: tuple[Column, ...]
    nullable: bool = False
    #: The field that holds the version of the value's format, and the expected version.
    version: tuple[str, int] | None = None
    prefixes: tuple[str, ...] = ()
    #: The model from which the columns were made, if there is one: the audit reads values with the model itself.
    model: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """The typed columns of a store; with ``inferred``, a snapshot infers them from the values."""

    values: tuple[ValueSchema, ...]
    inferred: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all values, in table order."""
        return tuple(column for value in self.values for column in value.columns)


INFERRED = StoreSchema((), inferred=True)


def checked(schema: StoreSchema) -> StoreSchema:
    """The schema itself; raises SchemaInvalid if two columns have the same name, ignoring case as SQL does."""
    for where, names in _names(schema):
        seen: dict[str, str] = {}
        for name in names:
            twin = seen.setdefault(name.lower(), name)
            if twin is not name:
                raise SchemaInvalid(
                    f"{where} has two columns with the same name: {twin} and {name}.",
                    action="Rename one of these fields. Names are compared without case; any sign but letters, digits "
                    "and _ becomes _.",
                    name=name,
                )
    return schema


def _names(schema: StoreSchema) -> Iterator[tuple[str, list[str]]]:
    yield "The store's model", [str(column.name) for column in schema.columns]
    for column in schema.columns:
        yield from _within(column.name, column.type)


def _within(where: str, kind: ColumnType) -> Iterator[tuple[str, list[str]]]:
    if isinstance(kind, Items):
        yield from _within(where, kind.element)
    elif isinstance(kind, Entries):
        yield from _within(where, kind.value)
    elif isinstance(kind, Record):
        yield where, [each.name for each in kind.members]
        for each in kind.members:
            yield from _within(f"{where}.{each.name}", each.type)


def column_name(name: str) -> str:
    """A legal column name: letters, digits and underscores, different from the columns that every table has."""
    legal = "".join(sign if sign.isascii() and (sign.isalnum() or sign == "_") else "_" for sign in name) or "_"
    return f"{legal}_" if legal.lower() in RESERVED else legal


def tick(name: str) -> str:
    """A name quoted for Spark SQL."""
    return f"`{name.replace('`', '``')}`"
