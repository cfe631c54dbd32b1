"""Computes typed columns from stored values, with SQL only.

The JSON of a value is parsed once for each row. If a value does not fit the schema, its row keeps key, value and JSON.
All typed columns of the row are then null, and ``why`` has the reason.

Invariants:
    - No row is left out. A row has either all its typed columns or none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame

from holdfast.assets.spark.history import EVENT_MS, EVENT_MS_FIRST, EVENT_MS_LAST, IN_RANGE
from holdfast.assets.spark.sources.changelog import IS_CODED, KNOWN_CODECS
from holdfast.processors.engine.changelog.format import VALUE_VERSION
from holdfast.processors.engine.schema.evolution import plain
from holdfast.processors.engine.schema.types import (
    ANY_STATE_KEY,
    TEXT,
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
    ValueSchema,
    tick,
)
from holdfast.processors.engine.state.own_keys import RESERVED

#: Maximum number of characters of a value that are quoted in the reason why the value does not fit.
SHOWN = 60

_OPTIONS = "map('mode','PERMISSIVE','columnNameOfCorruptRecord','_misfit')"
#: Maps SQL types whose values are texts in JSON to a pattern that such a text must match. Without the pattern, Spark's
#: cast would also accept texts in other formats.
_CONVERTED = {
    "timestamp": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]",
    "timestamp_ntz": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]",
    "date": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
}


def typed_columns(schema: StoreSchema | None) -> list[tuple[str, str, str]]:
    """Name, SQL type and comment of each typed column, in order."""
    return [(each.name, plain(each.type).sql, each.comment) for each in (schema.columns if schema else ())]


def type_rows(rows: DataFrame, schema: StoreSchema | None) -> DataFrame:
    """The rows with their typed columns, and the column ``why``, which is null if the value is readable.

    The rows must have the columns value, state_key and json. A null value, which is a deletion, gives null columns.
    ``schema`` is the result of ``shapes.resolve_schema``. Without a schema (None), ``why`` reports only unknown
    formats.
    """
    kept = [tick(name) for name in rows.columns]
    values = schema.values if schema is not None else ()
    parsed = rows.selectExpr(*kept, *(f"{_parse(each, values)} AS _part{at}" for at, each in enumerate(values)))
    judged = parsed.selectExpr(*kept, *(f"_part{at}" for at in range(len(values))), f"{_why(values)} AS why")
    return judged.selectExpr(*kept, *_columns(values), "why")


def typed_query(source: str, schema: StoreSchema | None) -> str:
    """The SQL of ``type_rows``, applied to the query ``source``; used for views."""
    values = schema.values if schema is not None else ()
    parsed = "".join(f", {_parse(each, values)} AS _part{at}" for at, each in enumerate(values))
    parts = ", ".join(f"_part{at}" for at in range(len(values)))
    typed = "".join(f", {each}" for each in _columns(values))
    dropped = f" EXCEPT ({parts})" if parts else ""
    return f"SELECT *{dropped}{typed} FROM (SELECT *, {_why(values)} AS why FROM (SELECT *{parsed} FROM ({source})))"


#: SQL condition that is true for a record that the store itself wrote, for example a timer.
OWN_RECORD = f"startswith(state_key, '{RESERVED}')"


# -- parsing ---------------------------------------------------------------------------------------------------------


def _parse(value: ValueSchema, beside: tuple[ValueSchema, ...] = ()) -> str:
    """SQL that parses a value's JSON.

    The JSON is wrapped in an object with one field, so that numbers, texts and nulls can also be parsed.

    ``beside`` has all value schemas of the store: if ``value`` is the schema for "any state key", it does not apply to
    state keys that have their own schema.
    """
    shape, apart = _shape(value), _shape(value, apart=True)
    name = """if(json LIKE '{%', '{"v":', '{"w":')""" if _is_mixed(value) else """'{"v":'"""
    parsed = f"from_json(concat({name}, json, '}}'), {literal(f'struct<{shape}>')}, {_OPTIONS})"
    if apart != shape:
        parsed = f"CAST({parsed} AS struct<{apart}>)"
    if value.prefixes:
        return f"if({_begins(value)}, {parsed}, NULL)"
    others = [str(each.state_key) for each in beside if each.state_key != ANY_STATE_KEY]
    if value.state_key is None or (value.state_key == ANY_STATE_KEY and not others):
        return f"if({OWN_RECORD}, NULL, {parsed})"
    test = f"state_key = {literal(value.state_key)}"
    if value.state_key == ANY_STATE_KEY:
        test = f"NOT {OWN_RECORD} AND state_key NOT IN ({', '.join(map(literal, others))})"
    return f"if({test}, {parsed}, NULL)"


def _begins(value: ValueSchema) -> str:
    """SQL condition that is true if the state key begins with one of the schema's prefixes."""
    return " OR ".join(f"startswith(state_key, {literal(each)})" for each in value.prefixes)


def _is_mixed(value: ValueSchema) -> bool:
    """Whether the schema has columns for fields of objects, and also a column for values that are not objects."""
    return len({bool(path) for column in value.columns for path in column.paths}) > 1


def _shape(value: ValueSchema, *, apart: bool = False) -> str:
    """Returns the fields of the SQL type with which a value's JSON is parsed.

    Field ``v`` has all columns, or the whole value. If some values are objects and others are not, field ``w`` has a
    value that is not an object. The parser distinguishes upper and lower case in names, but queries do not. So with
    ``apart``, fields get names that differ even if case is ignored.
    """
    whole = next((_wire(column.type, apart=apart) for column in value.columns if () in column.paths), None)
    v = whole if whole is not None and not _is_mixed(value) else _struct(_tree(value), apart)
    return f"v:{v},{f'w:{whole},' if _is_mixed(value) else ''}_misfit:string"


def _tree(value: ValueSchema) -> dict[str, Any]:
    """The JSON paths of all columns as nested dictionaries; the value at the end of a path is the column's type."""
    tree: dict[str, Any] = {}
    if value.version is not None:
        tree[value.version[0]] = TEXT
    for column in value.columns:
        for path in filter(None, column.paths):
            node = tree
            for part in path[:-1]:
                node = node.setdefault(part, {})
            node.setdefault(path[-1], column.type)
    return tree


def _struct(tree: Mapping[str, Any], apart: bool) -> str:
    names = _apart(tree) if apart else {name: name for name in tree}
    members = (
        f"{tick(names[name])}:{_struct(kind, apart) if isinstance(kind, dict) else _wire(kind, apart=apart)}"
        for name, kind in tree.items()
    )
    return f"struct<{','.join(members)}>"


def _apart(names: Iterable[str]) -> dict[str, str]:
    """Maps each name to an alias; no two aliases are equal, even if upper and lower case are treated as the same."""
    found: dict[str, str] = {}
    for name in names:
        again = sum(each.lower() == name.lower() for each in found)
        found.setdefault(name, f"{name}__{again}" if again else name)
    return found


def _wire(kind: ColumnType, *, apart: bool = False) -> str:
    """The SQL type with which a column is parsed first; some columns are parsed as text and converted later.

    With ``apart``, fields get names that differ even if upper and lower case are treated as the same.
    """
    match kind:
        case Number():
            return "string"
        case Quotient():
            return "struct<`sum`:double,`count`:bigint>"
        case Moment():
            return "bigint"
        case Held(_, element):
            return f"array<{_wire(element, apart=apart)}>"
        case Items(element):
            return f"array<{_wire(element, apart=apart)}>"
        case Entries(value):
            return f"map<string,{_wire(value, apart=apart)}>"
        case Record(members):
            return _struct({source: each.type for each in members for source in each.sources}, apart)
        case Scalar(sql):
            return "string" if sql in _CONVERTED else sql


def _name(parsed: str) -> str:
    """A name for the variable of a SQL lambda over ``parsed``; it differs from the names in enclosing lambdas."""
    within = [int(found) for found in re.findall(r"\bx([0-9]+)\b", parsed)]
    return f"x{max(within, default=0) + 1}"


def _is_plain(kind: ColumnType) -> bool:
    """Whether a column can be parsed directly as the table's type, so that no conversion is needed."""
    match kind:
        case Number() | Quotient() | Moment() | Held():
            return False
        case Items(inner) | Entries(inner):
            return _is_plain(inner)
        case Record(members):
            return all(each.sources == (each.name,) and _is_plain(each.type) for each in members)
        case Scalar(sql):
            return sql not in _CONVERTED


def _converted(parsed: str, kind: ColumnType) -> str:
    """SQL expression that converts a parsed value to the type of the table's column."""
    if _is_plain(kind):
        return parsed
    name = _name(parsed)
    match kind:
        case Number():
            return f"try_cast({parsed} AS {kind.sql})"
        case Quotient():
            return f"try_divide({parsed}.`sum`, {parsed}.`count`)"
        case Moment():
            return f"if({parsed} BETWEEN {EVENT_MS_FIRST} AND {EVENT_MS_LAST}, timestamp_millis({parsed}), NULL)"
        case Held(at, element):
            return _converted(f"get({parsed}, {at})", element)
        case Items(element):
            return f"transform({parsed}, {name} -> {_converted(name, element)})"
        case Entries(value):
            return f"transform_values({parsed}, (k{name}, {name}) -> {_converted(name, value)})"
        case Record(members):
            inner = ", ".join(
                f"{literal(each.name)}, {_converted(_member(parsed, members, each), each.type)}" for each in members
            )
            return f"if({parsed} IS NULL, NULL, named_struct({inner}))"
        case Scalar(sql):
            return f"if({parsed} RLIKE '{_CONVERTED[sql]}', try_cast({parsed} AS {sql}), NULL)"


def _first(parsed: str, paths: list[tuple[str, ...]]) -> str:
    found = [".".join([parsed, *(tick(part) for part in path)]) for path in paths]
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def _member(parsed: str, members: Iterable[Member], member: Member) -> str:
    """SQL that reads one member of a parsed object.

    If the member has several names, the first name that exists in the object is used.
    """
    names = _apart(source for each in members for source in each.sources)
    return _first(parsed, [(names[source],) for source in member.sources])


def _parsed_column(at: int, value: ValueSchema, column: Column) -> str:
    if () in column.paths and _is_mixed(value):
        return f"_part{at}.w"
    return _first(f"_part{at}.v", [_place(_tree(value), path) for path in column.paths])


def _place(tree: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, ...]:
    """Converts a path in the JSON to the path in the parsed struct, where names may have aliases."""
    return (_apart(tree)[path[0]], *_place(tree[path[0]], path[1:])) if path else ()


def literal(text: str) -> str:
    """A text as a Spark SQL literal, in one line."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ")
    return f"'{escaped}'"


def _columns(values: tuple[ValueSchema, ...]) -> Iterator[str]:
    for at, value in enumerate(values):
        readable = f"why IS NULL AND value IS NOT NULL AND ({_begins(value)})" if value.prefixes else "why IS NULL"
        for column in value.columns:
            parsed = _parsed_column(at, value, column)
            if column.key_part is not None:
                parsed = f"coalesce({parsed}, try_cast(split_part(state_key, '/', {column.key_part}) AS bigint))"
            yield f"if({readable}, {_converted(parsed, column.type)}, NULL) AS {tick(column.name)}"


# -- the reason why a value cannot be read ----------------------------------------------------------------------------


def _why(values: tuple[ValueSchema, ...]) -> str:
    """SQL: the reason why a value cannot be read, or null if it can. Cheap tests come first."""
    cases = [
        ("value IS NULL", "NULL"),
        (
            f"substring(value, 1, 1) <> X'{VALUE_VERSION:02x}'",
            f"concat('its format version is ', hex(substring(value, 1, 1)), ', expected {VALUE_VERSION:02x}')",
        ),
        (
            f"substring(value, 2, 1) NOT IN ({KNOWN_CODECS})",
            "concat('its codec is ', hex(substring(value, 2, 1)), ', which is unknown')",
        ),
    ]
    if values:  # The store's internal records have no model, so no reason is reported for them.
        cases.append((OWN_RECORD, "NULL"))
    by_key = [(each.state_key, _why_value(at, each)) for at, each in enumerate(values)]
    begin = [_begins(each) for each in values if each.prefixes]
    if begin:
        cases += zip(begin, (why for _, why in by_key), strict=True)
    elif by_key and by_key[0][0] is None:
        cases.append(("true", by_key[0][1]))
    elif by_key:
        cases += [(f"state_key = {literal(str(key))}", why) for key, why in by_key if key != ANY_STATE_KEY]
        other = next((why for key, why in by_key if key == ANY_STATE_KEY), None)
        cases.append(("true", other or "concat('its state key ', coalesce(state_key, ''), ' is none of the model')"))
    return f"coalesce({_case(cases)}, {_why_time()})"


def _why_time() -> str:
    """SQL: the reason why a value's event time cannot become a timestamp, or null if it can."""
    return _case(
        [
            (
                f"NOT ({IN_RANGE})",
                f"concat('its event time is ', {EVENT_MS}, ' ms since 1970, expected a time of the years 1 to 9999')",
            )
        ]
    )


def _case(cases: Iterable[tuple[str, str]], otherwise: str = "NULL") -> str:
    whens = " ".join(f"WHEN {test} THEN {result}" for test, result in cases)
    return f"CASE {whens} ELSE {otherwise} END"


def _why_value(at: int, value: ValueSchema) -> str:
    damaged = "concat('its payload of codec ', hex(substring(value, 2, 1)), ' is damaged')"
    cases = [(f"json IS NULL AND {IS_CODED}", damaged)]
    cases += [("json IS NULL", "'it is bytes, no JSON'"), (f"_part{at}._misfit IS NOT NULL", _misfit(value))]
    if not value.nullable:
        cases.append((f"_part{at}.v IS NULL", "'it is null'"))
    if value.version is not None:
        name, number = value.version
        seen = _first(f"_part{at}.v", [_place(_tree(value), (name,))])
        reason = f"concat('its {name} is ', coalesce({seen}, 'missing'), ', expected {number}')"
        cases.append((f"NOT {seen} <=> '{number}'", reason))
    for column in value.columns:
        parsed = _parsed_column(at, value, column)
        if column.required and column.paths != ((),):
            cases.append((f"{parsed} IS NULL", literal(f"{column.name} is missing or null")))
        cases += [(test, literal(reason)) for test, reason in _problems(parsed, column.type, column.name)]
    return _case(cases)


def _misfit(value: ValueSchema) -> str:
    """SQL: a text that names the first column whose type does not fit the value, and shows the value."""
    shown = f"left(json, {SHOWN})"
    cases = [("try_parse_json(concat('[', json, ']')) IS NULL", f"concat('it is no JSON: ', {shown})")]
    for column in value.columns:
        for path in filter(None, column.paths):
            one = ValueSchema(None, (Column(column.name, column.type, False, (path,)),))
            # "?" replaces names with quotes or brackets, which get_json_object does not allow. The result is only
            # displayed.
            name = path[-1] if path[-1].isidentifier() else "?"
            steps = ".".join((*path[:-1], name))
            seen = f"left(coalesce(get_json_object(json, {literal('$.' + steps)}), '?'), {SHOWN})"
            reason = literal(f"{column.name} is not {plain(column.type).sql}: ")
            cases.append((f"json LIKE '{{%' AND {_parse(one)}._misfit IS NOT NULL", f"concat({reason}, {seen})"))
    wanted = literal("it is not what the model says: ")
    return _case(cases, f"concat({wanted}, {shown})")


def _problems(parsed: str, kind: ColumnType, where: str) -> Iterator[tuple[str, str]]:
    """Yields pairs of SQL texts: a test of a parsed value, and the reason that is reported if the test is true."""
    name = _name(parsed)
    match kind:
        case Number():
            cast = f"try_cast({parsed} AS {kind.sql})"
            # The parsed value is compared with the exact number, because try_cast rounds without an error.
            test = f"({cast} IS NULL OR try_cast({parsed} AS decimal(38,18)) <> {cast})"
            yield f"{parsed} IS NOT NULL AND {test}", f"{where} is no {kind.sql}"
        case Scalar(sql, allowed):
            if sql in _CONVERTED:
                yield f"{parsed} IS NOT NULL AND {_converted(parsed, kind)} IS NULL", f"{where} is no {sql}"
            if allowed:
                shown = ", ".join(map(str, allowed))
                values = ", ".join(literal(each) if isinstance(each, str) else str(each) for each in allowed)
                yield f"{parsed} NOT IN ({values})", f"{where} is none of {shown}"
        case Items(element):
            for test, reason in _problems(name, element, f"{where}[]"):
                yield f"exists({parsed}, {name} -> {test})", reason
        case Entries(value):
            for test, reason in _problems(name, value, f"{where}{{}}"):
                yield f"exists(map_values({parsed}), {name} -> {test})", reason
        case Record(members):
            for each in members:
                below = _member(parsed, members, each)
                if each.required:
                    yield f"{parsed} IS NOT NULL AND {below} IS NULL", f"{where}.{each.name} is missing or null"
                yield from _problems(below, each.type, f"{where}.{each.name}")
