"""Writes the current table of a store on a branch: merges changes, or replaces all rows.

Invariants:
    - A merge moves no rows between Spark tasks, because table and history are both partitioned by ``store_partition``.
    - Only branches of attempts are written, never the branch ``main``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.assets.spark.catalog.tables import COLUMNS
from holdfast.assets.spark.catalog.versions import branch_table
from holdfast.assets.spark.history import (
    BASE,
    BASE_DELETE,
    CURRENT,
    DECODED,
    DELETE,
    JSON,
    PUT,
    fold,
    json_of,
    live,
)
from holdfast.assets.spark.typed import type_rows, typed_columns
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.snapshots.names import quoted

_ALIGNED = {
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.iceberg.planning.preserve-data-grouping": "true",
    "spark.sql.iceberg.distribution-mode": "none",
    # Without this setting, Spark could broadcast a small table, and a broadcast also moves rows between tasks.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
#: Spark settings for queries with few rows. Spark then interprets the query plan, because generating and compiling Java
#: code takes longer. Adaptive planning is off, because the stages of the query are known before it runs.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
#: Maximum number of rows of a snapshot for which Spark interprets the query plan instead of compiling it.
FEW_ROWS = 50_000
_CHANGES = "holdfast_changes"
#: Maximum bytes of keys and values of changes that are joined in memory.
#: Larger changes are sorted for the join, and Spark may spill them to disk. The result is the same.
FEW_BYTES = 16 << 20
#: With these settings, Spark uses a hash join without a sort if the table is three times as large as the changes.
#: A broadcast join is not possible, because neither side of this MERGE can be broadcast.
_BY_HASH = {"spark.sql.join.preferSortMergeJoin": "false", "spark.sql.autoBroadcastJoinThreshold": str(FEW_BYTES)}


def aligned_plans(spark: SparkSession, rows: int | None = None) -> AbstractContextManager[None]:
    """Context manager in which Spark joins tables by their partitions (``store_partition``), without an exchange.

    ``rows`` is the expected number of rows, None if unknown. For at most ``FEW_ROWS`` rows, Spark interprets the query
    plan instead of compiling it.
    """
    return _configured(spark, _ALIGNED if rows is None or rows > FEW_ROWS else _ALIGNED | _INTERPRETED)


def names_by_case(spark: SparkSession) -> AbstractContextManager[None]:
    """Context manager in which Spark treats column names as case-sensitive, as they are in JSON."""
    return _configured(spark, {"spark.sql.caseSensitive": "true"})


@contextmanager
def _configured(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    seen = {name: spark.conf.get(name, None) for name in values}
    before = {name: was for name, was in seen.items() if was != values[name]}
    for name in before:
        spark.conf.set(name, values[name])
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def joined_in_memory(changed: DataFrame) -> DataFrame:
    """Adds a hint for joins: Spark hashes these rows in memory, so that the larger table needs no sort."""
    return changed.hint("shuffle_hash")


def merging(spark: SparkSession, *, few: bool) -> AbstractContextManager[None]:
    """Context manager in which a MERGE with few changes uses a hash join.

    Settings are needed, because MERGE ignores hints.
    """
    return _configured(spark, _BY_HASH if few else {})


def merge(
    spark: SparkSession,
    folded: DataFrame,
    table: str,
    branch: str,
    schema: StoreSchema | None = None,
    *,
    few: bool = False,
) -> None:
    """Merge the newest change of each key into a branch of the table.

    ``few`` is True if the changes have at most ``FEW_BYTES`` bytes. Then Spark joins them in memory.
    """
    typed_rows(folded, schema, keep=("op",)).createOrReplaceTempView(_CHANGES)
    try:
        with merging(spark, few=few):
            spark.sql(merge_statement(table, branch, [name for name, _, _ in typed_columns(schema)]))
    finally:
        spark.catalog.dropTempView(_CHANGES)


def merge_statement(table: str, branch: str, typed: Sequence[str] = ()) -> str:
    """The MERGE statement in SQL that applies the temporary view of changes to a branch."""
    names = [name for name, _, _ in COLUMNS] + list(typed)
    written = ", ".join(f"t.`{name}` = s.`{name}`" for name in names if name not in ("store_partition", "key"))
    columns, values = ", ".join(f"`{name}`" for name in names), ", ".join(f"s.`{name}`" for name in names)
    return (
        f"MERGE INTO {branch_table(table, branch)} t USING {_CHANGES} s "
        "ON t.store_partition = s.store_partition AND t.key = s.key "
        f"WHEN MATCHED AND s.op IN ('{DELETE}', '{BASE_DELETE}') THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {written} "
        f"WHEN NOT MATCHED AND s.op IN ('{PUT}', '{BASE}') THEN INSERT ({columns}) VALUES ({values})"
    )


def replace_all(rows: DataFrame, table: str, branch: str, schema: StoreSchema | None = None) -> None:
    """Replace the content of a branch by rows with (store_partition, key, value, offset, timestamp).

    Columns of the table that are not in the schema become null.
    """
    typed = typed_rows(rows, schema)
    gone = [field for field in rows.sparkSession.table(quoted(table)).schema.fields if field.name not in typed.columns]
    whole = typed.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in gone))
    writer = whole.sortWithinPartitions("store_partition", "key").writeTo(branch_table(table, branch))
    writer.option("fanout-enabled", "true").overwrite(F.lit(True))


def current_rows(rows: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
    """Rows of (store_partition, key, value, offset, timestamp), converted to the fixed columns of the current table.

    If the rows have the column ``decoded``, the column ``json`` is taken from it for values that SQL can't decode.
    """
    if DECODED not in rows.columns:
        return rows.selectExpr(*CURRENT, *keep)
    fixed = (each.replace(JSON, json_of(decoded=DECODED)) for each in CURRENT)
    return rows.selectExpr(*fixed, *keep)


def typed_rows(rows: DataFrame, schema: StoreSchema | None, keep: Sequence[str] = ()) -> DataFrame:
    """The rows with the fixed columns and the typed columns of the current table."""
    plain = current_rows(rows, keep)
    return plain if schema is None else type_rows(plain, schema).drop("why")


def with_differences(wanted: DataFrame, known: DataFrame) -> DataFrame:
    """Joins the keys of the store (``wanted``) with the keys of the history (``known``), one row for each key.

    The column ``differs`` is true if store and history have different values for the key. ``value`` is the store's
    value, null if the store does not have the key. Offset and timestamp come from the history, null if values differ.
    """
    decoded = [DECODED] if DECODED in wanted.columns else []
    left = wanted.selectExpr("store_partition", "key", "value", *decoded)
    right = known.selectExpr(
        "store_partition", "key", "value AS known", "offset AS known_offset", "timestamp AS known_timestamp"
    )
    return left.join(right, ["store_partition", "key"], "full_outer").selectExpr(
        "store_partition",
        "key",
        "value",
        "NOT (value <=> known) AS differs",
        "if(value <=> known, known_offset, NULL) AS offset",
        "if(value <=> known, known_timestamp, NULL) AS timestamp",
        *decoded,
    )


def from_table(rows: DataFrame) -> DataFrame:
    """Converts rows of the current table to the columns of folded changes (newest change of each key).

    The column ``generation`` has the number of the changelog, which rises each time the changelog is created again. The
    rows get generation 0, so that every change from the changelog counts as newer.
    """
    moved = ("0 AS generation", "offset", "changelog_timestamp AS timestamp", f"'{PUT}' AS op")
    return rows.selectExpr("store_partition", *moved, "key", "value", f"json AS {DECODED}")


def known_after(before: DataFrame, fed: DataFrame) -> DataFrame:
    """The live keys after the changes in ``fed`` are applied to ``before``, which has rows of the current table."""
    decoded = (DECODED,) if DECODED in fed.columns else ()
    columns = ("store_partition", "generation", "offset", "timestamp", "op", "key", "value", *decoded)
    return live(fold(from_table(before).select(*columns).unionByName(fed.select(*columns))))
