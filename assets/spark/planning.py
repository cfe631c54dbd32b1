"""Reads facts about a store's table and history table, as input for the plan of a Holdfast snapshot."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holdfast.assets.spark.catalog.tables import create_history, create_table
from holdfast.assets.spark.catalog.versions import Versions
from holdfast.assets.spark.history import history_head
from holdfast.assets.spark.shapes import schema_version, shape_for
from holdfast.infra.spark.session import short_errors
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.snapshots.facts import TableNow
from holdfast.processors.snapshots.manifest import CHANGELOG, CHECKPOINT
from holdfast.processors.snapshots.names import history_name, table_name


def look_at_table(spark: SparkSession, processor: str, store: str) -> TableNow:
    """The facts of a store's table and history table; creates each of the two tables if it is missing.

    Raises:
        FormatUnknown: A later release of Holdfast wrote the newest snapshot.
        HistoryUnclear: The history has rows, but no summary of its Iceberg snapshots has its end offsets.
        SparkFailed: The catalog cannot be read.
    """
    table, changes = table_name(processor, store), history_name(processor, store)
    with short_errors(f"look at {table}"):
        create_table(spark, table)
        create_history(spark, changes)
        published = [each.manifest for each in Versions.of(spark, table).published()]
        full = (each.taken_at for each in published if each.source in (CHANGELOG, CHECKPOINT))
        head = history_head(Versions.of(spark, changes), changes)
    return TableNow(next(iter(published), None), next(full, None), head)


def planned_shape(spark: SparkSession, processor: str, store: str, schema: StoreSchema | None) -> int:
    """The schema version that the table will have after the snapshot; this function changes no column.

    For an inferred schema, the present schema version is returned, because the columns are known only when a snapshot
    reads the values.

    Raises:
        SchemaChangeRefused: A column cannot be converted to the type in the schema; the table is unchanged.
        SparkFailed: The catalog cannot be read or written.
    """
    table = table_name(processor, store)
    with short_errors(f"look at the columns of {table}"):
        create_table(spark, table)
        if schema is not None and schema.inferred:
            return schema_version(spark, table)
        return shape_for(spark, table, schema).version
