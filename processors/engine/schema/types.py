"""The typed columns of a store's warehouse table as frozen data: name, type, and place in the JSON of a value.

A row of the table is one changelog key: a message key and a state key. A store with a single model has one column for
each field of the model. A store with a model for each state key has one column for each state key. That column is null
in rows of other state keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.infra.errors import BadConfiguration

#: Names of the columns that every table has. If a typed column would have one of these names, it gets a trailing
#: underscore.
RESERVED = frozenset(
    {"store_partition", "key", "value", "message_key", "state_key", "json", "offset", "changelog_timestamp"}
    | {"event_timestamp", "why", "op", "timestamp", "generation", "snapshot_id"}
)
#: The state key that stands for all state keys without a model of their own.
ANY_STATE_KEY = "*"
#: The value of ``model`` that requests columns inferred from the values.
INFER = "infer"


class SchemaInvalid(BadConfiguration):
    """A model can't be converted to table columns."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A column type that is given by its SQL name. ``allowed`` lists the only allowed values; empty allows all."""

    sql: str
    allowed: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A decimal number with ``precision`` digits, ``scale`` of them after the decimal point."""

    precision: int
    scale: int

    @property
    def sql(self) -> str:
        """The type's name in SQL."""
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Quotient:
    """A stored mean, ``{"sum": ..., "count": ...}``. Its column is the sum divided by the count."""

    sql: str = "double"


@dataclass(frozen=True, slots=True)
class Moment:
    """A stored time in milliseconds since 1970. Its column is null outside of the years 1 to 9999."""

    sql: str = "timestamp"


@dataclass(frozen=True, slots=True)
class Held:
    """The type of a column that contains one item of a stored list: the item at index ``at``."""

    at: int
    element: ColumnType

    @property
    def sql(self) -> str:
        """The type's name in SQL."""
        return self.element.sql


@dataclass(frozen=True, slots=True)
class Items:
    """A list whose items have one type."""

    element: ColumnType

    @property
    def sql(self) -> str:
        """The type's name in SQL."""
        return f"array<{self.element.sql}>"


@dataclass(frozen=True, slots=True)
class Entries:
    """A map: an object whose keys may have any name."""

    value: ColumnType

    @property
    def sql(self) -> str:
        """The type's name in SQL."""
        return f"map<string,{self.value.sql}>"


@dataclass(frozen=True, slots=True)
class Member:
    """A field of an object. ``sources`` are the field's names in JSON: the present name first, then earlier names."""

    name: str
    type: ColumnType
    required: bool
    sources: tuple[str, ...]

    @property
    def former(self) -> tuple[str, ...]:
        """Earlier names of the field."""
        return tuple(source for source in self.sources if source != self.name)


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known fields: a struct in SQL."""

    members: tuple[Member, ...]

    @property
    def sql(self) -> str:
        """The type's name in SQL."""
        return f"struct<{','.join(f'{tick(each.name)}:{each.type.sql}' for each in self.members)}>"


ColumnType = Scalar | Number | Quotient | Moment | Held | Items | Entries | Record

TEXT, WHOLE, FLOATING, TRUTH = Scalar("string"), Scalar("bigint"), Scalar("double"), Scalar("boolean")
INSTANT, LOCAL_TIME, DAY = Scalar("timestamp"), Scalar("timestamp_ntz"), Scalar("date")


@dataclass(frozen=True, slots=True)
class Column:
    """A typed column. ``paths`` are its paths in the JSON of a value, newest first; ``()`` means the whole value.

    If the JSON has no value at these paths, the value is a part of the state key, which is split at slashes.
    ``key_part`` is the number of this part, counted from 1.
    """

    name: str
    type: ColumnType
    required: bool
    paths: tuple[tuple[str, ...], ...]
    comment: str = ""
    key_part: int | None = None

    @property
    def former(self) -> tuple[str, ...]:
        """Earlier names of the column."""
        return tuple(column_name(path[-1]) for path in self.paths if path and column_name(path[-1]) != self.name)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The columns for values of one state key, or of all state keys if ``state_key`` is None.

    If ``prefixes`` is not empty, the columns are for state keys that begin with one of the prefixes. Rows of other
    state keys are internal and have no columns. ``nullable`` means that the whole value may be ``null``.
    """

    state_key: str | None
    columns: tuple[Column, ...]
    nullable: bool = False
    #: The name of the field with the version of the value's format, and the expected version.
    version: tuple[str, int] | None = None
    prefixes: tuple[str, ...] = ()
    #: The model from which the columns were made; None for columns that were not made from a model. The audit reads
    #: values with the model.
    model: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """The typed columns of a store. ``inferred`` means that a snapshot infers the columns from the values."""

    values: tuple[ValueSchema, ...]
    inferred: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all values, in the order of the table."""
        return tuple(column for value in self.values for column in value.columns)


INFERRED = StoreSchema((), inferred=True)


def checked(schema: StoreSchema) -> StoreSchema:
    """Returns the schema. Raises SchemaInvalid if two columns have the same name, ignoring case."""
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
    """Makes a legal column name of letters, digits and underscores that is not one of the names in ``RESERVED``."""
    legal = "".join(sign if sign.isascii() and (sign.isalnum() or sign == "_") else "_" for sign in name) or "_"
    return f"{legal}_" if legal.lower() in RESERVED else legal


def tick(name: str) -> str:
    """Quotes a column name with backticks for Spark SQL."""
    return f"`{name.replace('`', '``')}`"
