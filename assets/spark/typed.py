"""Typed columns from stored values, in SQL only, and tables whose columns follow their store's schema.

The JSON of a value is parsed once for each row. A value that does not fit keeps its row, with key, value and JSON; all
its typed columns are null, and ``why`` has the reason.

Invariants:
    - Every row stays, and has either all its typed columns or none.
    - Iceberg tracks columns by id, so published versions read the same after a column changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark.history import EVENT_MS, IN_RANGE
from holdfast.assets.spark.tables import COLUMNS
from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.processors.engine.changelog.format import CODEC_BYTES, CODEC_JSON, VALUE_VERSION
from holdfast.processors.engine.schema.evolution import (
    Add,
    Change,
    Drop,
    Refused,
    Rename,
    Replace,
    Widen,
    changes,
    from_spark,
    inferred_changes,
    plain,
)
from holdfast.processors.engine.schema.inference import inferred_schema
from holdfast.processors.engine.schema.types import (
    ANY_STATE_KEY,
    Column,
    ColumnType,
    Entries,
    Items,
    Number,
    Quotient,
    Record,
    Scalar,
    StoreSchema,
    ValueSchema,
    tick,
)
from holdfast.processors.snapshots.names import quoted

#: The most characters of an unfit value in its reason.
SHOWN = 60
SCHEMA_PROPERTY, VERSION_PROPERTY = "holdfast.schema", "holdfast.schema-version"

_OPTIONS = "map('mode','PERMISSIVE','columnNameOfCorruptRecord','_misfit')"
#: Types that are parsed from JSON texts, with the pattern that a text must match: a cast accepts other texts, too.
_CONVERTED = {
    "timestamp": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]",
    "timestamp_ntz": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]",
    "date": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
}
_FIXED = frozenset(name for name, _, _ in COLUMNS)


class SchemaChangeRefused(HoldfastError):
    """The schema's type of a column can't hold the values that the table has in it."""

    exit_code = EXIT_BAD_CONFIGURATION


def typed_columns(schema: StoreSchema | None) -> list[tuple[str, str, str]]:
    """Name, SQL type and comment of the typed columns, in order."""
    return [(each.name, plain(each.type).sql, each.comment) for each in (schema.columns if schema else ())]


def type_rows(rows: DataFrame, schema: StoreSchema | None) -> DataFrame:
    """The rows with their typed columns, and ``why``: null where the value could be read.

    The rows have value, state_key and json among their columns; a null value (a deletion) gives null columns.
    ``schema`` is the result of ``resolve_schema``; with None, ``why`` covers unknown formats only.
    """
    kept = [tick(name) for name in rows.columns]
    values = schema.values if schema is not None else ()
    parsed = rows.selectExpr(*kept, *(f"{_parse(each, values)} AS _part{at}" for at, each in enumerate(values)))
    judged = parsed.selectExpr(*kept, *(f"_part{at}" for at in range(len(values))), f"{_why(values)} AS why")
    return judged.selectExpr(*kept, *_columns(values), "why")


def typed_query(source: str, schema: StoreSchema | None) -> str:
    """The SQL of ``type_rows`` over the query ``source``, for views."""
    values = schema.values if schema is not None else ()
    parsed = "".join(f", {_parse(each, values)} AS _part{at}" for at, each in enumerate(values))
    parts = ", ".join(f"_part{at}" for at in range(len(values)))
    typed = "".join(f", {each}" for each in _columns(values))
    dropped = f" EXCEPT ({parts})" if parts else ""
    return f"SELECT *{dropped}{typed} FROM (SELECT *, {_why(values)} AS why FROM (SELECT *{parsed} FROM ({source})))"


def resolve_schema(
    spark: SparkSession, table: str, schema: StoreSchema | None, rows: DataFrame | None
) -> StoreSchema | None:
    """The declared schema, or one inferred from the table's columns and the column json of the rows.

    The rows are all of a full snapshot, or the changed ones of an incremental one.
    """
    if schema is None or not schema.inferred:
        return schema
    assert rows is not None
    found = rows.where("json IS NOT NULL").selectExpr("schema_of_variant_agg(try_parse_json(json)) AS found")
    return inferred_schema(found.collect()[0]["found"], table_columns(spark, table))


def table_columns(spark: SparkSession, table: str) -> Record:
    """The typed columns of a table."""
    return from_spark(spark.table(quoted(table)).schema.jsonValue(), _FIXED)


class Evolved(NamedTuple):
    """The table's schema version, that of before, and whether a column was replaced: it is null in all rows then."""

    version: int
    before: int
    replaced: bool


def evolve_table(spark: SparkSession, table: str, schema: StoreSchema | None, *, inferred: bool = False) -> Evolved:
    """Give a table the columns of a schema, where it lacks them.

    The schema version is 0 without a schema, and one more for each change of the schema. With ``inferred``, a column
    whose type can't be widened is replaced, and nothing is refused.

    Raises:
        SchemaChangeRefused: A column can't get the schema's type; the table is unchanged.
    """
    wanted = schema.columns if schema is not None else ()
    steps = (inferred_changes if inferred else changes)(table_columns(spark, table), wanted)
    refused = [step for step in steps if isinstance(step, Refused)]
    if refused:
        raise _refusal(table, refused)
    # First: a run that dies between two statements leaves a version that no snapshot has, and the next one is full.
    before, version = _versions(spark, table, schema)
    for step in steps:
        for statement in _statements(step):
            spark.sql(f"ALTER TABLE {quoted(table)} {statement}")
    comments = {(each.name,): each.comment for each in wanted if each.comment}
    for step in steps:
        if isinstance(step, Add) and step.path in comments:
            comment = _text(comments[step.path])
            spark.sql(f"ALTER TABLE {quoted(table)} ALTER COLUMN {_path(step.path)} COMMENT {comment}")
    return Evolved(version, before, any(isinstance(step, Replace) for step in steps))


def _versions(spark: SparkSession, table: str, schema: StoreSchema | None) -> tuple[int, int]:
    """The schema version that the table had, and that of this schema, which is recorded."""
    properties = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {quoted(table)}").collect()}
    version, known = int(properties.get(VERSION_PROPERTY, 0)), properties.get(SCHEMA_PROPERTY)
    before = version
    if schema is None and known is None:
        return before, version
    digest = hashlib.sha256(repr(schema).encode()).hexdigest()[:16]
    if digest != known:
        version += 1
        spark.sql(
            f"ALTER TABLE {quoted(table)} SET TBLPROPERTIES "
            f"('{SCHEMA_PROPERTY}'='{digest}', '{VERSION_PROPERTY}'='{version}')"
        )
    return before, version


def _refusal(table: str, refused: list[Refused]) -> SchemaChangeRefused:
    first = refused[0]
    name = ".".join(first.path)
    more = f" The same holds for {len(refused) - 1} more columns." if len(refused) > 1 else ""
    return SchemaChangeRefused(
        f"Column {name} of {table} is {first.has}, the store's model says {first.wants}, which can't hold the "
        f"published values.{more} The table is unchanged.",
        action=f"Keep the field as {first.has}, or give it a new name; {name} then stays in the versions that have it.",
        table=table,
        column=name,
        has=first.has,
        wants=first.wants,
    )


def _statements(step: Change) -> list[str]:
    match step:
        case Add(path, kind):
            return [f"ADD COLUMN {_path(path)} {plain(kind).sql}"]
        case Rename(path, name):
            return [f"RENAME COLUMN {_path(path)} TO {tick(name)}"]
        case Widen(path, kind):
            return [f"ALTER COLUMN {_path(path)} TYPE {kind.sql}"]
        case Replace(path, kind):
            return [f"DROP COLUMN {_path(path)}", f"ADD COLUMN {_path(path)} {plain(kind).sql}"]
        case Drop(path):
            return [f"DROP COLUMN {_path(path)}"]
        case Refused():
            raise AssertionError(step)


def _path(path: tuple[str, ...]) -> str:
    return ".".join(tick(part) for part in path)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ")
    return f"'{escaped}'"


# -- parsing ---------------------------------------------------------------------------------------------------------


def _parse(value: ValueSchema, beside: tuple[ValueSchema, ...] = ()) -> str:
    """SQL that parses a value's JSON as the one field of an object, so that numbers, texts and nulls parse, too.

    ``beside`` are all value schemas of the store: the one for any state key skips keys that have their own.
    """
    shape = _text(f"v {_tree_sql(value)}, _misfit string")
    parsed = f"""from_json(concat('{{"v":', json, '}}'), {shape}, {_OPTIONS})"""
    if value.state_key is None:
        return parsed
    others = [str(each.state_key) for each in beside if each.state_key != ANY_STATE_KEY]
    if value.state_key == ANY_STATE_KEY and not others:
        return parsed
    test = f"state_key = {_text(value.state_key)}"
    if value.state_key == ANY_STATE_KEY:
        test = f"state_key NOT IN ({', '.join(map(_text, others))})"
    return f"if({test}, {parsed}, NULL)"


def _tree_sql(value: ValueSchema) -> str:
    """The SQL type that a value is parsed as: an object with all paths of its columns."""
    tree: dict[str, object] = {}
    if value.version is not None:
        tree[value.version[0]] = "string"
    for column in value.columns:
        for path in column.paths:
            if not path:
                return _wire(column.type)
            node = tree
            for part in path[:-1]:
                below = node.setdefault(part, {})
                assert isinstance(below, dict)
                node = below
            node.setdefault(path[-1], _wire(column.type))
    return _struct(tree)


def _struct(tree: dict[str, object]) -> str:
    members = (f"{tick(name)}:{_struct(kind) if isinstance(kind, dict) else kind}" for name, kind in tree.items())
    return f"struct<{','.join(members)}>"


def _wire(kind: ColumnType) -> str:
    """The SQL type in which a column is parsed; some types are parsed as texts first."""
    match kind:
        case Number():
            return "string"
        case Quotient():
            return "struct<`sum`:double,`count`:bigint>"
        case Items(element):
            return f"array<{_wire(element)}>"
        case Entries(value):
            return f"map<string,{_wire(value)}>"
        case Record(members):
            return _struct({source: _wire(each.type) for each in members for source in each.sources})
        case Scalar(sql):
            return "string" if sql in _CONVERTED else sql


def _name(parsed: str) -> str:
    """A lambda variable for an item of ``parsed``, different from those of the enclosing lambdas."""
    within = [int(found) for found in re.findall(r"\bx([0-9]+)\b", parsed)]
    return f"x{max(within, default=0) + 1}"


def _is_plain(kind: ColumnType) -> bool:
    """Whether the parsed type is the table's type."""
    match kind:
        case Number() | Quotient():
            return False
        case Items(inner) | Entries(inner):
            return _is_plain(inner)
        case Record(members):
            return all(each.sources == (each.name,) and _is_plain(each.type) for each in members)
        case Scalar(sql):
            return sql not in _CONVERTED


def _converted(parsed: str, kind: ColumnType) -> str:
    """SQL that converts a parsed value to the table's type."""
    if _is_plain(kind):
        return parsed
    name = _name(parsed)
    match kind:
        case Number():
            return f"try_cast({parsed} AS {kind.sql})"
        case Quotient():
            return f"try_divide({parsed}.`sum`, {parsed}.`count`)"
        case Items(element):
            return f"transform({parsed}, {name} -> {_converted(name, element)})"
        case Entries(value):
            return f"transform_values({parsed}, (k{name}, {name}) -> {_converted(name, value)})"
        case Record(members):
            inner = ", ".join(
                f"{_text(each.name)}, {_converted(_first(parsed, [(source,) for source in each.sources]), each.type)}"
                for each in members
            )
            return f"if({parsed} IS NULL, NULL, named_struct({inner}))"
        case Scalar(sql):
            return f"if({parsed} RLIKE '{_CONVERTED[sql]}', try_cast({parsed} AS {sql}), NULL)"


def _first(parsed: str, paths: list[tuple[str, ...]]) -> str:
    found = [".".join([parsed, *(tick(part) for part in path)]) for path in paths]
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def _parsed_column(at: int, column: Column) -> str:
    return _first(f"_part{at}.v", list(column.paths))


def _columns(values: tuple[ValueSchema, ...]) -> Iterator[str]:
    for at, value in enumerate(values):
        for column in value.columns:
            parsed = _parsed_column(at, column)
            yield f"if(why IS NULL, {_converted(parsed, column.type)}, NULL) AS {tick(column.name)}"


# -- why a value can't be read ---------------------------------------------------------------------------------------


def _why(values: tuple[ValueSchema, ...]) -> str:
    """SQL: the reason why a value can't be read, or null; cheap tests come first."""
    cases = [
        ("value IS NULL", "NULL"),
        (
            f"substring(value, 1, 1) <> X'{VALUE_VERSION:02x}'",
            f"concat('its format version is ', hex(substring(value, 1, 1)), ', expected {VALUE_VERSION:02x}')",
        ),
        (
            f"substring(value, 2, 1) NOT IN (X'{CODEC_JSON:02x}', X'{CODEC_BYTES:02x}')",
            "concat('its codec is ', hex(substring(value, 2, 1)), ', which is unknown')",
        ),
    ]
    by_key = [(each.state_key, _why_value(at, each)) for at, each in enumerate(values)]
    if by_key and by_key[0][0] is None:
        cases.append(("true", by_key[0][1]))
    elif by_key:
        cases += [(f"state_key = {_text(str(key))}", why) for key, why in by_key if key != ANY_STATE_KEY]
        other = next((why for key, why in by_key if key == ANY_STATE_KEY), None)
        cases.append(("true", other or "concat('its state key ', coalesce(state_key, ''), ' is none of the model')"))
    return f"coalesce({_case(cases)}, {_why_time()})"


def _why_time() -> str:
    """SQL: the reason why a value's event time is no timestamp, or null."""
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
    cases = [("json IS NULL", "'it is bytes, no JSON'"), (f"_part{at}._misfit IS NOT NULL", _misfit(value))]
    if not value.nullable:
        cases.append((f"_part{at}.v IS NULL", "'it is null'"))
    if value.version is not None:
        name, number = value.version
        seen = f"_part{at}.v.{tick(name)}"
        reason = f"concat('its {name} is ', coalesce({seen}, 'missing'), ', expected {number}')"
        cases.append((f"NOT {seen} <=> '{number}'", reason))
    for column in value.columns:
        parsed = _parsed_column(at, column)
        if column.required and column.paths != ((),):
            cases.append((f"{parsed} IS NULL", _text(f"{column.name} is missing or null")))
        cases += [(test, _text(reason)) for test, reason in _problems(parsed, column.type, column.name)]
    return _case(cases)


def _misfit(value: ValueSchema) -> str:
    """SQL: the first column that does not fit, for values with a column that does not fit."""
    shown = f"left(json, {SHOWN})"
    cases = [("try_parse_json(concat('[', json, ']')) IS NULL", f"concat('it is no JSON: ', {shown})")]
    for column in value.columns:
        for path in filter(None, column.paths):
            one = ValueSchema(None, (Column(column.name, column.type, False, (path,)),))
            # get_json_object, which is only for display here, allows neither quotes nor brackets in a name
            name = path[-1] if path[-1].isidentifier() else "?"
            steps = ".".join((*path[:-1], name))
            seen = f"left(coalesce(get_json_object(json, {_text('$.' + steps)}), '?'), {SHOWN})"
            reason = _text(f"{column.name} is not {plain(column.type).sql}: ")
            cases.append((f"json LIKE '{{%' AND {_parse(one)}._misfit IS NOT NULL", f"concat({reason}, {seen})"))
    wanted = _text("it is not what the model says: ")
    return _case(cases, f"concat({wanted}, {shown})")


def _problems(parsed: str, kind: ColumnType, where: str) -> Iterator[tuple[str, str]]:
    """SQL tests of a parsed value, each with the reason that it stands for."""
    name = _name(parsed)
    match kind:
        case Number():
            cast = f"try_cast({parsed} AS {kind.sql})"
            # try_cast rounds without an error
            test = f"({cast} IS NULL OR try_cast({parsed} AS decimal(38,18)) <> {cast})"
            yield f"{parsed} IS NOT NULL AND {test}", f"{where} is no {kind.sql}"
        case Scalar(sql, allowed):
            if sql in _CONVERTED:
                yield f"{parsed} IS NOT NULL AND {_converted(parsed, kind)} IS NULL", f"{where} is no {sql}"
            if allowed:
                shown = ", ".join(map(str, allowed))
                values = ", ".join(_text(each) if isinstance(each, str) else str(each) for each in allowed)
                yield f"{parsed} NOT IN ({values})", f"{where} is none of {shown}"
        case Items(element):
            for test, reason in _problems(name, element, f"{where}[]"):
                yield f"exists({parsed}, {name} -> {test})", reason
        case Entries(value):
            for test, reason in _problems(name, value, f"{where}{{}}"):
                yield f"exists(map_values({parsed}), {name} -> {test})", reason
        case Record(members):
            for each in members:
                below = _first(parsed, [(source,) for source in each.sources])
                if each.required:
                    yield f"{parsed} IS NOT NULL AND {below} IS NULL", f"{where}.{each.name} is missing or null"
                yield from _problems(below, each.type, f"{where}.{each.name}")
