"""The quarantine table of a store: values that could not be read, with the reason.

The store's table also has these rows, with key, value and JSON, but their typed columns are null.

Invariants:
    - Each row belongs to one attempt at a snapshot, which is identified by its branch. Parallel attempts may judge
      values differently, so no attempt changes the rows of another attempt. After publication, the rows of the
      published attempt are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark.catalog.metadata import exists
from holdfast.assets.spark.catalog.tables import QUARANTINE_COLUMNS, create_quarantine
from holdfast.processors.engine.schema.types import tick
from holdfast.processors.snapshots.names import quoted


def write_quarantine(
    spark: SparkSession,
    table: str,
    rows: DataFrame,
    snapshot_id: str,
    attempt: str,
    counted: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Write the unreadable rows of ``type_rows`` to the quarantine table, for this attempt at a snapshot.

    The table is created when there is a first row. Returns a mapping: store partition with unreadable rows -> their
    number. If the caller has already computed this mapping, it passes the mapping as ``counted``.
    """
    strange = _as_quarantined(_unreadable(rows), snapshot_id, attempt)
    if counted is None:
        strange = strange.persist()
    try:
        found = dict(_counted(strange) if counted is None else counted)
        if found:
            create_quarantine(spark, table)
            writer = strange.writeTo(quoted(table)).option("fanout-enabled", "true")
            writer.option("snapshot-property.holdfast.id", snapshot_id).append()
        return found
    finally:
        if counted is None:
            strange.unpersist()


def keep_attempt(spark: SparkSession, table: str, snapshot_id: str, attempt: str) -> None:
    """Delete the quarantined rows that belong to other attempts at the snapshot, after one attempt was published."""
    if exists(spark, table) and "attempt" in spark.table(quoted(table)).columns:
        others = f"snapshot_id = '{snapshot_id}' AND attempt <> '{attempt}'"
        if not spark.table(quoted(table)).where(others).isEmpty():
            spark.sql(f"DELETE FROM {quoted(table)} WHERE {others}")


def _counted(strange: DataFrame) -> dict[int, int]:
    return {row["store_partition"]: row["count"] for row in strange.groupBy("store_partition").count().collect()}


def _unreadable(rows: DataFrame) -> DataFrame:
    """Returns the rows with an unreadable value: their column ``why`` has the reason and is not null.

    The rows are selected by an explode, not by a filter. Spark would evaluate a filter before the projections, and so
    parse each value six times or more (SPARK-47672). It moves no expression before an explode.
    """
    others = [tick(name) for name in rows.columns if name != "why"]
    return rows.selectExpr(*others, "explode(if(why IS NULL, CAST(array() AS array<string>), array(why))) AS why")


def _as_quarantined(rows: DataFrame, snapshot_id: str, attempt: str) -> DataFrame:
    given = {"snapshot_id": f"'{snapshot_id}' AS snapshot_id", "attempt": f"'{attempt}' AS attempt"}
    columns = [
        given.get(name) or (f"`{name}`" if name in rows.columns else f"CAST(NULL AS {kind}) AS `{name}`")
        for name, kind, _ in QUARANTINE_COLUMNS
    ]
    return rows.selectExpr(*columns)
