"""Typed columns inferred from values: turns Spark's ``schema_of_variant_agg`` into columns."""

from __future__ import annotations

import re

from holdfast.processors.engine.schema.types import (
    FLOATING,
    TEXT,
    TRUTH,
    WHOLE,
    Column,
    ColumnType,
    Entries,
    Items,
    Member,
    Record,
    StoreSchema,
    ValueSchema,
    checked,
    column_name,
)

#: An object with more names than this counts as a map: the column holds its JSON text.
MEMBERS_MAX = 100

_TOKEN = re.compile(r"\s*(OBJECT<|ARRAY<|`(?:[^`]|``)*`|[A-Za-z_][\w ]*(?:\(\d+(?:,\s*\d+)?\))?|[<>,:]|[^\s<>,:]+)")


def inferred_schema(described: str, known: Record | None = None) -> StoreSchema:
    """The columns of a description by ``schema_of_variant_agg``.

    Args:
        described: For example ``OBJECT<a: BIGINT, b: ARRAY<STRING>>``.
        known: The table's columns so far; their types only widen.
    """
    found = parse_variant(described)
    if not isinstance(found, Record):
        found = Record((Member("content", found, False, ("",)),)) if found is not None else Record(())
    named = Record(tuple(Member(column_name(each.name), each.type, False, each.sources) for each in found.members))
    both = named if known is None else _records(known, named)
    sources = {each.name: each.sources for each in named.members}
    columns = [
        Column(each.name, each.type, False, (tuple(filter(None, sources.get(each.name, each.sources)[:1])),))
        for each in both.members
    ]
    return checked(StoreSchema((ValueSchema(None, tuple(columns), nullable=True),)))


def unify(one: ColumnType, other: ColumnType) -> ColumnType:
    """The type that holds the values of both types; text (JSON) if no other type does."""
    if one == other:
        return one
    if {one, other} == {WHOLE, FLOATING}:
        return FLOATING
    if isinstance(one, Items) and isinstance(other, Items):
        return Items(unify(one.element, other.element))
    if isinstance(one, Entries) and isinstance(other, Entries):
        return Entries(unify(one.value, other.value))
    if isinstance(one, Record) and isinstance(other, Record):
        return _records(one, other)
    return TEXT


def _records(one: Record, other: Record) -> Record:
    new = {each.name: each for each in other.members}
    kept = [
        Member(each.name, unify(each.type, new[each.name].type), False, new[each.name].sources)
        if each.name in new
        else each
        for each in one.members
    ]
    had = {each.name for each in one.members}
    return Record((*kept, *(each for each in other.members if each.name not in had)))


def parse_variant(described: str) -> ColumnType | None:
    """The column type of a description of variants; None if all values were null."""
    tokens = [found[1].strip() for found in _TOKEN.finditer(described)]
    kind, rest = _parse(tokens)
    assert not rest, described
    return kind


def _parse(tokens: list[str]) -> tuple[ColumnType | None, list[str]]:
    first, rest = tokens[0], tokens[1:]
    if first == "ARRAY<":
        element, rest = _parse(rest)
        return Items(element or TEXT), rest[1:]
    if first != "OBJECT<":
        return _scalar(first), rest
    members: list[Member] = []
    while rest[0] != ">":
        name = rest[0][1:-1].replace("``", "`") if rest[0].startswith("`") else rest[0]
        kind, rest = _parse(rest[2:])
        if kind is not None:
            members.append(Member(name, kind, False, (name,)))
        if rest[0] == ",":
            rest = rest[1:]
    distinct = {each.name.lower() for each in members}
    whole = 0 < len(members) <= MEMBERS_MAX and len(distinct) == len(members)
    return Record(tuple(members)) if whole else TEXT, rest[1:]


def _scalar(name: str) -> ColumnType | None:
    if name == "VOID":
        return None
    if name.startswith(("DECIMAL", "DOUBLE", "FLOAT")):
        return FLOATING
    return {"BIGINT": WHOLE, "BOOLEAN": TRUTH}.get(name, TEXT)
