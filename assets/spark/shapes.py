"""Changes the typed columns of a store's table: compares present and needed columns, and makes SQL statements.

All branches of an Iceberg table have the same columns, so readers of main see a change of columns immediately.
``Shape.in_place`` is true if readers may see the changes before the values are written. If it is false, the changes are
made on a side table: a second name of the table in the catalog (``assets.spark.catalog.sides``).

Invariants:
    - Iceberg identifies columns by id, so a change of columns does not affect published table versions (Iceberg
      snapshots).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark.catalog.metadata import metadata_of
from holdfast.assets.spark.catalog.tables import COLUMNS
from holdfast.assets.spark.current import names_by_case
from holdfast.assets.spark.typed import OWN_RECORD, literal
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
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
    reads_objects_again,
)
from holdfast.processors.engine.schema.inference import inferred_schema
from holdfast.processors.engine.schema.types import Record, StoreSchema, tick
from holdfast.processors.snapshots.names import quoted

SCHEMA_PROPERTY, VERSION_PROPERTY = "holdfast.schema", "holdfast.schema-version"
_FIXED = frozenset(name for name, _, _ in COLUMNS)


class SchemaChangeRefused(HoldfastError):
    """A column's type in the new schema cannot represent the values that the table already has in this column."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Shape:
    """The changes of columns that a table needs for a schema, and the schema version before and after these changes.

    The schema version of a table is 0 without a schema; each change of the schema adds 1. ``digest`` identifies the
    schema. ``again`` is true if rows that did not change also have values for an added column. All rows must then be
    written again.
    """

    before: int
    version: int
    digest: str
    steps: tuple[Change, ...]
    comments: tuple[tuple[str, str], ...] = ()
    again: bool = False

    @property
    def changed(self) -> bool:
        """Whether the table needs any change of its schema."""
        return self.version != self.before

    @property
    def in_place(self) -> bool:
        """Whether readers may see the changed columns before the new values are published: no visible value changes."""
        return all(isinstance(step, Add | Widen) for step in self.steps)

    @property
    def replaced(self) -> bool:
        """Whether all rows must be written again, because the change would leave a column null in unchanged rows."""
        return self.again or any(isinstance(step, Replace) for step in self.steps)


def resolve_schema(
    spark: SparkSession, table: str, schema: StoreSchema | None, rows: DataFrame | None
) -> StoreSchema | None:
    """Returns the schema of a Holdfast snapshot: the declared schema, or one inferred from table columns and values.

    ``rows`` are all rows of a full snapshot, or the changed rows of an incremental snapshot.
    """
    if schema is None or not schema.inferred:
        return schema
    assert rows is not None
    parsed, is_object = "try_parse_json(json)", "json LIKE '{%'"
    values = rows.where(f"json IS NOT NULL AND NOT coalesce({OWN_RECORD}, false)").selectExpr(
        f"schema_of_variant_agg({parsed}) FILTER (WHERE {is_object}) AS objects",
        f"schema_of_variant_agg({parsed}) FILTER (WHERE NOT {is_object}) AS others",
    )
    # Without this setting, Spark merges the fields of {"a": 1} and {"A": 2} into one field, and loses the second name.
    with names_by_case(spark):
        [found] = values.collect()
    return inferred_schema(found["objects"], table_columns(spark, table), found["others"])


def table_columns(spark: SparkSession, table: str) -> Record:
    """The typed columns of a table."""
    return from_spark(spark.table(quoted(table)).schema.jsonValue(), _FIXED)


def schema_version(spark: SparkSession, table: str) -> int:
    """The schema version of a table: the number of changes of its schema; 0 if it never had a schema."""
    return _recorded(spark, table)[0]


def _recorded(spark: SparkSession, table: str) -> tuple[int, str | None]:
    """The schema version (number of schema changes) of a table, and the schema's digest; None if it had no schema."""
    properties = metadata_of(spark, table).properties
    return int(properties.get(VERSION_PROPERTY, 0)), properties.get(SCHEMA_PROPERTY)


def shape_for(spark: SparkSession, table: str, schema: StoreSchema | None, *, inferred: bool = False) -> Shape:
    """Computes the changes that a table needs for a schema; changes nothing.

    With ``inferred``, a column whose type cannot be widened is replaced, so that no change is refused.

    Raises:
        SchemaChangeRefused: A column cannot be converted to the schema's type.
    """
    wanted = schema.columns if schema is not None else ()
    has = table_columns(spark, table)
    steps = (inferred_changes if inferred else changes)(has, wanted)
    refused = [step for step in steps if isinstance(step, Refused)]
    if refused:
        raise _refusal(table, refused)
    before, known = _recorded(spark, table)
    if schema is None and known is None:
        return Shape(before, before, "", ())
    digest = hashlib.sha256(repr(schema).encode()).hexdigest()[:16]
    comments = tuple((each.name, each.comment) for each in wanted if each.comment)
    again = inferred and reads_objects_again(has, wanted)
    return Shape(before, before + (digest != known), digest, steps, comments, again)


def reshape(spark: SparkSession, table: str, shape: Shape) -> None:
    """Apply a shape (changes of columns) to a table; a repeated call changes nothing."""
    target = f"ALTER TABLE {quoted(table)}"
    if shape.changed:
        # The properties with the new schema version are set first. If a later statement fails, no snapshot has this
        # schema version, so the next snapshot is full.
        numbered = f"'{SCHEMA_PROPERTY}'='{shape.digest}', '{VERSION_PROPERTY}'='{shape.version}'"
        spark.sql(f"{target} SET TBLPROPERTIES ({numbered})")
    for statement in _statements(shape):
        spark.sql(f"{target} {statement}")


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


def _statements(shape: Shape) -> Iterator[str]:
    """Yields the SQL statements that change the table's columns, in order.

    Consecutive added columns share one statement, because each statement is one commit of the table.
    """
    comments: dict[tuple[str, ...], str] = {(name,): f" COMMENT {literal(comment)}" for name, comment in shape.comments}

    def column(step: Add | Replace) -> str:
        return f"{_path(step.path)} {plain(step.type).sql}{comments.get(step.path, '')}"

    for adds, steps in groupby(shape.steps, lambda step: isinstance(step, Add)):
        if adds:
            yield f"ADD COLUMNS ({', '.join(column(step) for step in steps if isinstance(step, Add))})"
            continue
        for step in steps:
            match step:
                case Rename(path, name):
                    yield f"RENAME COLUMN {_path(path)} TO {tick(name)}"
                case Widen(path, kind):
                    yield f"ALTER COLUMN {_path(path)} TYPE {kind.sql}"
                case Replace(path):
                    yield f"DROP COLUMN {_path(path)}"
                    yield f"ADD COLUMNS ({column(step)})"
                case Drop(path):
                    yield f"DROP COLUMN {_path(path)}"
                case Add() | Refused():
                    raise AssertionError(step)


def _path(path: tuple[str, ...]) -> str:
    return ".".join(tick(part) for part in path)
