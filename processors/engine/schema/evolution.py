"""Computes how a table's typed columns are changed to the columns of a model, and which of these changes are refused.

Iceberg identifies columns by id. A renamed column keeps its content. A dropped column stays in older Iceberg snapshots
of the table. If a column is added with the name of a dropped column, the added column is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from holdfast.processors.engine.schema.inference import name_in_json
from holdfast.processors.engine.schema.types import (
    WHOLE,
    Column,
    ColumnType,
    Entries,
    Held,
    Items,
    Member,
    Moment,
    Number,
    Quotient,
    Record,
    Scalar,
    StoreSchema,
)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Adds a column."""

    path: Path
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Rename:
    """Renames a column, which keeps its content."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class Widen:
    """Changes a column's type to a wider type, without a new column."""

    path: Path
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces a column by a new column of the same name.

    The new type can hold every value of the old type, but Iceberg can't change the type of the column itself.
    """

    path: Path
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Drop:
    """Drops a column. Older Iceberg snapshots of the table keep the column."""

    path: Path


@dataclass(frozen=True, slots=True)
class Refused:
    """A change that is refused because the new type can't hold the values of the old type."""

    path: Path
    has: str
    wants: str


Change = Add | Rename | Widen | Replace | Drop | Refused


def changes(has: Record, wanted: tuple[Column, ...]) -> tuple[Change, ...]:
    """Returns the changes from a table's typed columns (``has``) to a model's columns, in the order to apply them."""
    members = tuple(Member(each.name, each.type, each.required, (each.name, *each.former)) for each in wanted)
    return tuple(_of_record((), has, Record(members)))


def inferred_changes(has: Record, wanted: tuple[Column, ...]) -> tuple[Change, ...]:
    """Returns the changes to inferred columns. If a type can't be widened in place, the whole column is replaced.

    An inferred type only becomes wider, for example int, then double, then text. A replaced column is filled again from
    the JSON of each value. The column for values that are not objects is a special case. It also contains objects while
    the table has no column for a field of an object. When the first field gets a column, the special column is created
    again, without the objects.
    """
    found = changes(has, wanted)
    types = {each.name: each.type for each in wanted}
    replaced = {step.path[0] for step in found if isinstance(step, Refused | Replace)}
    if has.members and all(map(_is_of_whole_values, has.members)) and any(each.paths != ((),) for each in wanted):
        replaced.update(each.name for each in has.members)
    kept = [step for step in found if step.path[0] not in replaced]
    return (*kept, *(Replace((name,), types[name]) for name in sorted(replaced)))


def reads_objects_again(has: Record, wanted: tuple[Column, ...]) -> bool:
    """Whether a table's first typed column is for values that are not objects. All rows must then be written again."""
    return not has.members and bool(wanted) and all(each.paths == ((),) for each in wanted)


def _is_of_whole_values(member: Member) -> bool:
    return member.sources == ("",)


def in_table_order(schema: StoreSchema, steps: tuple[Change, ...]) -> StoreSchema:
    """Returns an inferred schema with its columns in the order that the table has after ``steps``.

    Replaced columns are last.

    The schema and the table must have the same order, because the next schema is inferred from the table. The hash of a
    row also depends on the order of its columns.
    """
    replaced = {step.path: number for number, step in enumerate(steps) if isinstance(step, Replace)}
    values = tuple(
        replace(each, columns=tuple(sorted(each.columns, key=lambda column: replaced.get((column.name,), -1))))
        for each in schema.values
    )
    return replace(schema, values=values)


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
        elif now.name != each.name:  # the two names differ only in upper and lower case
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
    """Returns the change ``Replace``, which replaces a column by a new column of the same name.

    Returns ``Refused`` for list elements and map values, because Iceberg can't replace those alone.
    """
    return Refused(path, has.sql, wanted.sql) if path[-1] in ("element", "value") else Replace(path, wanted)


def from_spark(described: dict[str, Any], left_out: frozenset[str] = frozenset()) -> Record:
    """Parses a table's typed columns from ``StructType.jsonValue()``, without the columns that every table has.

    Each column gets its source: the name of the field in JSON. If this name differs from the column's name, it is read
    from the column's comment.
    """
    return Record(
        tuple(
            Member(field["name"], _from_spark(field["type"]), False, (_source(field),))
            for field in described["fields"]
            if field["name"] not in left_out
        )
    )


def _source(field: dict[str, Any]) -> str:
    said = name_in_json(field.get("metadata", {}).get("comment", ""))
    return str(field["name"]) if said is None else said


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
    """Returns a type as the table stores it: without aliases, allowed values and required fields."""
    if isinstance(kind, Quotient | Moment | Scalar):
        return Scalar(kind.sql)
    if isinstance(kind, Held):
        return plain(kind.element)
    if isinstance(kind, Items):
        return Items(plain(kind.element))
    if isinstance(kind, Entries):
        return Entries(plain(kind.value))
    if isinstance(kind, Record):
        return Record(tuple(Member(each.name, plain(each.type), False, (each.name,)) for each in kind.members))
    return kind
