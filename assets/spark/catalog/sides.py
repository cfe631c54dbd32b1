"""Side tables, with which readers see a change of a table's columns only together with the changed values.

All branches of an Iceberg table have the same present columns. If a column is renamed, dropped or recreated for a
branch, it also changes for readers of main. For this reason, such a change is made on a side table. A side table is a
second name in the catalog for the table's metadata, with the same files, Iceberg snapshots and column ids.

    register ─► change the columns ─► write, audit, seal on its branch ─► its main moves ─► exchange ─► forget
                                                                                            │
    readers of the table see nothing until here: one update of the catalog moves the table to the side's metadata

Invariants:
    - The exchange happens only if no other run committed to the table after the side was registered.
    - Until the exchange, the side's metadata is in a separate folder, which a search for lost tables does not read.
    - A side table is removed only from the catalog, and its files are never deleted, because the table uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from holdfast.assets.spark.catalog.metadata import pointers_of
from holdfast.assets.spark.catalog.tables import create_namespace
from holdfast.assets.spark.catalog.versions import moved
from holdfast.infra.spark.session import CATALOG
from holdfast.processors.snapshots.names import (
    SIDES,
    created_at,
    new_side_name,
    procedure_name,
    quoted,
    sides_prefix,
)

_METADATA_PATH = "write.metadata.path"


@dataclass(frozen=True, slots=True)
class Side:
    """A side table: its name, the original table's name, and the original's metadata file when it was opened."""

    name: str
    table: str
    seen: str


def open_side(spark: SparkSession, table: str, snapshot_id: str) -> Side:
    """Register a side table for one attempt at a snapshot; at first, it has the metadata of the original table."""
    name = new_side_name(table, snapshot_id, datetime.now(UTC))
    seen = pointers_of(spark).place(_within(table))
    create_namespace(spark, SIDES)
    spark.sql(
        f"CALL {CATALOG}.system.register_table(table => '{procedure_name(name)}', metadata_file => '{seen}')"
    ).collect()
    apart = f"{seen.rpartition('/')[0]}/{name.rpartition('.')[2]}"
    spark.sql(f"ALTER TABLE {quoted(name)} SET TBLPROPERTIES ('{_METADATA_PATH}'='{apart}')")
    return Side(name, table, seen)


def exchange(spark: SparkSession, side: Side) -> None:
    """Publish a side table: the original table gets the columns and the main branch of the side table.

    Raises:
        TableMoved: Another run committed to the table after the side was opened.
    """
    pointers = pointers_of(spark)
    # Compare before UNSET TBLPROPERTIES writes the side's metadata file to the table's folder. If the catalog is lost,
    # the newest file in that folder is used, so a refused side must not leave a file there.
    if pointers.place(_within(side.table)) == side.seen:
        spark.sql(f"ALTER TABLE {quoted(side.name)} UNSET TBLPROPERTIES ('{_METADATA_PATH}')")
        if pointers.exchange(_within(side.table), side.seen, pointers.place(_within(side.name))):
            return
    raise moved(side.table)


def forget(spark: SparkSession, name: str) -> None:
    """Remove a side table from the catalog; its files are not deleted."""
    spark.sql(f"DROP TABLE IF EXISTS {quoted(name)}")


def forget_old(spark: SparkSession, table: str, older_than: timedelta, now: datetime) -> int:
    """Remove old side tables of this table from the catalog, where killed runs left them; returns their number."""
    if not spark.catalog.databaseExists(quoted(SIDES)):
        return 0
    rows = spark.sql(f"SHOW TABLES IN {quoted(SIDES)} LIKE '{sides_prefix(table)}*'").collect()
    names = [f"{SIDES}.{row['tableName']}" for row in rows]
    old = [name for name in names if now - (created_at(name) or now) > older_than]
    for name in old:
        forget(spark, name)
    return len(old)


def _within(table: str) -> str:
    """A table's name without the catalog's name."""
    return table.partition(".")[2]
