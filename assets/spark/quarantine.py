"""The quarantine: a table of a store's values that could not be read, with the reason.

The store's table has these rows, too, as key, value and JSON; their typed columns are null there.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark.tables import QUARANTINE_COLUMNS, create_quarantine
from holdfast.processors.engine.schema.types import tick
from holdfast.processors.snapshots.names import quoted


def write_quarantine(
    spark: SparkSession, table: str, rows: DataFrame, snapshot_id: str, counted: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Write the unreadable rows among those of ``type_rows``; a second write of a snapshot replaces the first.

    The table is created with its first row. Returns store partition -> number of unreadable rows, where there are some;
    ``counted`` is that, if it is known.
    """
    strange = _as_quarantined(_unreadable(rows), snapshot_id)
    if counted is None:
        strange = strange.persist()
    try:
        found = dict(_counted(strange) if counted is None else counted)
        there = spark.catalog.tableExists(quoted(table))
        if not found and not there:
            return found
        create_quarantine(spark, table)
        mine = f"snapshot_id = '{snapshot_id}'"
        if there and not spark.table(quoted(table)).where(mine).isEmpty():
            spark.sql(f"DELETE FROM {quoted(table)} WHERE {mine}")
        if found:
            writer = strange.writeTo(quoted(table)).option("fanout-enabled", "true")
            writer.option("snapshot-property.holdfast.id", snapshot_id).append()
        return found
    finally:
        if counted is None:
            strange.unpersist()


def _counted(strange: DataFrame) -> dict[int, int]:
    return {row["store_partition"]: row["count"] for row in strange.groupBy("store_partition").count().collect()}


def _unreadable(rows: DataFrame) -> DataFrame:
    """The rows where ``why`` is not null.

    An explode, not a filter: Spark pushes a filter below the projections and then parses each value once for each
    mention in ``why``, six times or more (SPARK-47672). It pushes nothing below an explode.
    """
    others = [tick(name) for name in rows.columns if name != "why"]
    return rows.selectExpr(*others, "explode(if(why IS NULL, CAST(array() AS array<string>), array(why))) AS why")


def _as_quarantined(rows: DataFrame, snapshot_id: str) -> DataFrame:
    given = {"snapshot_id": f"'{snapshot_id}' AS snapshot_id"}
    columns = [
        given.get(name) or (f"`{name}`" if name in rows.columns else f"CAST(NULL AS {kind}) AS `{name}`")
        for name, kind, _ in QUARANTINE_COLUMNS
    ]
    return rows.selectExpr(*columns)
