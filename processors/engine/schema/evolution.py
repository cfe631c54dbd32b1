"""How a table follows its model: the changes by which its columns become what is wanted, or why they can't.

Columns are known to Iceberg by ids, not by names: a renamed column keeps its content, one that is dropped stays in the
versions that had it, and one that is added under a former name begins empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.processors.engine.schema.types import (
    WHOLE,
    Column,
    ColumnType,
    Entries,
    Items,
    Member,
    Number,
    Quotient,
    Record,
    Scalar,
)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Add:
    """A column is new."""

    path: Path
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Rename:
    """A column has another name now, and keeps its content."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class Widen:
    """A column's type takes more values now."""

    path: Path
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Replace:
    """A type that holds every value of the former one, but no table widens to it: a new column of that name."""

    path: Path
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Drop:
    """A column is gone from here on."""

    path: Path


@dataclass(frozen=True, slots=True)
class Refused:
    """A column would have a type that does not hold what the former one did."""

    path: Path
    has: str
    wants: str


Change = Add | Rename | Widen | Replace | Drop | Refused


def changes(has: Record, wanted: tuple[Column, ...]) -> tuple[Change, ...]:
    """What turns a table's typed columns into those that are wanted, in an order that works.

    Args:
        has: The table's typed columns.
        wanted: The model's.
    """
    members = tuple(Member(each.name, each.type, each.required, (each.name, *each.former)) for each in wanted)
    return tuple(_of_record((), has, Record(members)))


def _of_record(path: Path, has: Record, wanted: Record) -> list[Change]:
    found: list[Change] = []
    there = {each.name.lower(): each for each in has.members}
    names = {each.name.lower() for each in wanted.members}
    kept: set[str] = set()
    later: list[Change] = []
    for each in wanted.members:
        now = there.get(each.name.lower())
        if now is None:
            former = next((old for old in each.former if old.lower() in there and old.lower() not in names), None)
            if former is None:
                later.append(Add((*path, each.name), each.type))
                continue
            now = there[former.lower()]
            found.append(Rename((*path, now.name), each.name))
        elif now.name != each.name:  # only upper and lower case differ
            found.append(Rename((*path, now.name), each.name))
        kept.add(now.name)
        later += _of_type((*path, each.name), now.type, each.type)
    found += [Drop((*path, each.name)) for each in has.members if each.name not in kept]
    return found + later


def _of_type(path: Path, has: ColumnType, wanted: ColumnType) -> list[Change]:
    if isinstance(has, Record) and isinstance(wanted, Record):
        return _of_record(path, has, wanted)
    if isinstance(has, Items) and isinstance(wanted, Items):
        return _of_type((*path, "element"), has.element, wanted.element)
    if isinstance(has, Entries) and isinstance(wanted, Entries):
        return _of_type((*path, "value"), has.value, wanted.value)
    if has.sql == wanted.sql:
        return []
    if isinstance(has, Number) and isinstance(wanted, Number):
        if wanted.scale == has.scale and wanted.precision > has.precision:
            return [Widen(path, wanted)]
        if wanted.scale >= has.scale and wanted.precision - wanted.scale >= has.precision - has.scale:
            return [_replaced(path, has, wanted)]
    if has == WHOLE and (
        wanted.sql == "double" or (isinstance(wanted, Number) and wanted.precision - wanted.scale > 18)
    ):
        return [_replaced(path, has, wanted)]
    return [Refused(path, has.sql, wanted.sql)]


def _replaced(path: Path, has: ColumnType, wanted: ColumnType) -> Change:
    """A list's elements and a map's values can't be put in anew by themselves."""
    return Refused(path, has.sql, wanted.sql) if path[-1] in ("element", "value") else Replace(path, wanted)


def from_spark(described: dict[str, Any], left_out: frozenset[str] = frozenset()) -> Record:
    """The columns of a table, out of Spark's description of its schema.

    Args:
        described: ``StructType.jsonValue()``.
        left_out: Columns that are not typed ones.
    """
    return Record(
        tuple(
            Member(field["name"], _from_spark(field["type"]), False, (field["name"],))
            for field in described["fields"]
            if field["name"] not in left_out
        )
    )


def _from_spark(described: Any) -> ColumnType:
    if isinstance(described, str):
        if described.startswith("decimal("):
            precision, scale = described[8:-1].split(",")
            return Number(int(precision), int(scale))
        return Scalar({"long": "bigint", "integer": "int"}.get(described, described))
    match described["type"]:
        case "array":
            return Items(_from_spark(described["elementType"]))
        case "map":
            return Entries(_from_spark(described["valueType"]))
    return from_spark(described)


def plain(kind: ColumnType) -> ColumnType:
    """A type as a table has it, without what only reading needs."""
    if isinstance(kind, Quotient | Scalar):
        return Scalar(kind.sql)
    if isinstance(kind, Items):
        return Items(plain(kind.element))
    if isinstance(kind, Entries):
        return Entries(plain(kind.value))
    if isinstance(kind, Record):
        return Record(tuple(Member(each.name, plain(each.type), False, (each.name,)) for each in kind.members))
    return kind
