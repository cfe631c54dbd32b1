"""Infers typed columns from values: converts the result of Spark's ``schema_of_variant_agg`` to columns."""

from __future__ import annotations

import hashlib
import json
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

#: An object with more field names than this number becomes JSON text in one column. Otherwise each field gets a column.
MEMBERS_MAX = 100

#: The name of the column for values that are not objects.
WHOLE_VALUE = "content"
#: A column's comment begins with this text and records the field's name in JSON, if the column has another name.
_SAYS = "name in JSON: "
#: The comment of the column for values that are not objects.
_SAYS_WHOLE = "the value, where it is no object"
_TOKEN = re.compile(r"\s*(OBJECT<|ARRAY<|`(?:[^`]|``)*`|[A-Za-z_][\w ]*(?:\(\d+(?:,\s*\d+)?\))?|[<>,:]|[^\s<>,:]+)")


def inferred_schema(described: str, known: Record | None = None, others: str = "VOID") -> StoreSchema:
    """Returns the columns for a description that ``schema_of_variant_agg`` returned.

    A column is named like its field in JSON, if that is a legal column name. Several fields can give the same column
    name, because SQL ignores case. A field that already has a column keeps that column's name. Otherwise, the field
    with a legal name and fewer capital letters gets the name. The other fields' names get a suffix of four hexadecimal
    digits. If a column's name differs from the field's name, the column's comment records the field's name.

    Args:
        described: For example ``OBJECT<a: BIGINT, b: ARRAY<STRING>>``, or ``BIGINT`` if no value is an object.
        known: The present columns of the table, with the fields' names in JSON as sources. Types of present columns
            only become wider.
        others: The description of values that are not objects, if there are any. Such values have a separate column.
    """
    # Objects with too many field names become texts in the column for values that are not objects.
    found = _records(_members(parse_variant(described)), _members(parse_variant(others)))
    names = _names_apart([each.sources[0] for each in found.members], known or Record(()))
    named = Record(tuple(Member(names[each.sources[0]], each.type, False, each.sources) for each in found.members))
    both = named if known is None else _records(known, named)
    sources = {each.name: each.sources for each in named.members}
    columns = [
        Column(each.name, each.type, False, (tuple(filter(None, source)),), _comment(each.name, source))
        for each in both.members
        for source in [sources.get(each.name, each.sources)[:1]]
    ]
    return checked(StoreSchema((ValueSchema(None, tuple(columns), nullable=True),)))


def _members(kind: ColumnType | None) -> Record:
    if kind is None or isinstance(kind, Record):
        return kind or Record(())
    return Record((Member("", kind, False, ("",)),))


def name_in_json(comment: str) -> str | None:
    """Parses the field's name in JSON from a column's comment. None means that the comment records no name.

    The result is empty for the column of values that are not objects.
    """
    if comment == _SAYS_WHOLE:
        return ""
    return str(json.loads(comment.removeprefix(_SAYS))) if comment.startswith(_SAYS) else None


def _comment(name: str, source: tuple[str, ...]) -> str:
    if not source[0]:
        return _SAYS_WHOLE
    return f"{_SAYS}{json.dumps(source[0])}" if source[0] != name else ""


def _names_apart(sources: list[str], known: Record) -> dict[str, str]:
    """Returns a distinct column name for each field name in JSON."""
    named = {each.sources[0]: each.name for each in known.members}
    taken = {name.lower() for name in named.values()}
    names: dict[str, str] = {}
    for source in sorted(sources, key=lambda each: (each not in named, column_name(each) != each, each.swapcase())):
        name = named.get(source) or (column_name(source) if source else WHOLE_VALUE)
        if source not in named and name.lower() in taken and not _is_unsaid(source, name, named, sources):
            name = f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:4]}"
        names[source] = name
        taken.add(name.lower())
    return names


def _is_unsaid(source: str, name: str, named: dict[str, str], sources: list[str]) -> bool:
    """Whether the existing column ``name`` belongs to this field, although the column's comment does not say so.
    Earlier Holdfast versions wrote columns without this comment.
    """
    return name != source and named.get(name) == name and name not in sources


def unify(one: ColumnType, other: ColumnType) -> ColumnType:
    """Returns the narrowest type that can hold the values of both types.

    If no such type exists, returns text (JSON).
    """
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
    """Parses a description of variants to a column type; None if all values were null."""
    tokens = [found[1].strip() for found in _TOKEN.finditer(described)]
    kind, rest = _parse(tokens, whole=True)
    assert not rest, described
    return kind


def _parse(tokens: list[str], *, whole: bool = False) -> tuple[ColumnType | None, list[str]]:
    """Parses the type at the start of the tokens; returns it with the remaining tokens.

    ``whole`` is True if the type describes complete stored values, and False for the fields inside them.
    """
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
        if kind is not None and (name or not whole):  # a field without a name can't be a column
            members.append(Member(name, kind, False, (name,)))
        if rest[0] == ",":
            rest = rest[1:]
    # At the top level, equal names are allowed, because column names are made distinct later. Names inside an object
    # can't be changed, and Spark ignores their case.
    distinct = whole or len({each.name.lower() for each in members}) == len(members)
    fits = (whole or members) and len(members) <= MEMBERS_MAX and distinct
    return Record(tuple(members)) if fits else TEXT, rest[1:]


def _scalar(name: str) -> ColumnType | None:
    if name == "VOID":
        return None
    if name.startswith(("DECIMAL", "DOUBLE", "FLOAT")):
        return FLOATING
    return {"BIGINT": WHOLE, "BOOLEAN": TRUTH}.get(name, TEXT)
