"""The typed columns of a store, as frozen data: what a table has of a value, and where in its JSON that lies.

A row of a store's table is one changelog key: a message key and a state key. A store with one model has the model's
fields as columns, for every state key; a store with a model for each state key has one column for each of them, null in
the rows of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

#: Columns that every table has; a typed column of that name gets an underscore behind it.
RESERVED = frozenset(
    {"store_partition", "key", "value", "message_key", "state_key", "json", "offset", "changelog_timestamp"}
    | {"event_timestamp", "why", "op", "timestamp", "generation", "snapshot_id"}
)
#: Any state key that is not named.
ANY_STATE_KEY = "*"


class SchemaInvalid(HoldfastError):
    """A model can't be made into columns."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type that SQL has by this name; ``allowed`` are the only values, if not empty."""

    sql: str
    allowed: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A decimal number."""

    precision: int
    scale: int

    @property
    def sql(self) -> str:
        """As SQL has it."""
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Quotient:
    """What a mean keeps, ``{"sum": ..., "count": ...}``; as a column it is the one by the other."""

    sql: str = "double"


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    element: ColumnType

    @property
    def sql(self) -> str:
        """As SQL has it."""
        return f"array<{self.element.sql}>"


@dataclass(frozen=True, slots=True)
class Entries:
    """An object with keys of any name."""

    value: ColumnType

    @property
    def sql(self) -> str:
        """As SQL has it."""
        return f"map<string,{self.value.sql}>"


@dataclass(frozen=True, slots=True)
class Member:
    """A field of an object: ``sources`` are its names in JSON, the newest first; a required one must be there."""

    name: str
    type: ColumnType
    required: bool
    sources: tuple[str, ...]

    @property
    def former(self) -> tuple[str, ...]:
        """Names that its column may have had."""
        return tuple(source for source in self.sources if source != self.name)


@dataclass(frozen=True, slots=True)
class Record:
    """An object with fields that are known."""

    members: tuple[Member, ...]

    @property
    def sql(self) -> str:
        """As SQL has it."""
        return f"struct<{','.join(f'{tick(each.name)}:{each.type.sql}' for each in self.members)}>"


ColumnType = Scalar | Number | Quotient | Items | Entries | Record

TEXT, WHOLE, FLOATING, TRUTH = Scalar("string"), Scalar("bigint"), Scalar("double"), Scalar("boolean")
INSTANT, LOCAL_TIME, DAY = Scalar("timestamp"), Scalar("timestamp_ntz"), Scalar("date")


@dataclass(frozen=True, slots=True)
class Column:
    """A typed column: ``paths`` lead to it in the JSON of a value, the newest first; ``()`` is the value itself."""

    name: str
    type: ColumnType
    required: bool
    paths: tuple[tuple[str, ...], ...]
    comment: str = ""

    @property
    def former(self) -> tuple[str, ...]:
        """Names that it may have had."""
        return tuple(column_name(path[-1]) for path in self.paths if path and column_name(path[-1]) != self.name)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The columns that the values of one state key have; ``state_key`` None is for all. ``null`` may be a value."""

    state_key: str | None
    columns: tuple[Column, ...]
    nullable: bool = False
    #: What a field must have, as the version of a format: path and number.
    version: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """The columns of a store; ``inferred`` ones are found in its values when a snapshot is taken."""

    values: tuple[ValueSchema, ...]
    inferred: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All typed columns, in their order."""
        return tuple(column for value in self.values for column in value.columns)


INFERRED = StoreSchema((), inferred=True)


def checked(schema: StoreSchema) -> StoreSchema:
    """The schema itself.

    Raises:
        SchemaInvalid: Names of columns meet; SQL does not tell upper from lower case.
    """
    for where, names in _names(schema):
        seen: dict[str, str] = {}
        for name in names:
            twin = seen.setdefault(name.lower(), name)
            if twin is not name:
                raise SchemaInvalid(
                    f"{where} has two columns of one name: {twin} and {name}.",
                    action="Rename one of them: names of columns do not differ by case, nor by signs beside _.",
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
    """A name as columns may have it: letters, digits and underscores, none of those that every table has."""
    legal = "".join(sign if sign.isascii() and (sign.isalnum() or sign == "_") else "_" for sign in name) or "_"
    return f"{legal}_" if legal.lower() in RESERVED else legal


def tick(name: str) -> str:
    """A name as SQL takes it, whatever signs it has."""
    return f"`{name.replace('`', '``')}`"
