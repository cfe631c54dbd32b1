"""The shape of warehouse tables; built here and nowhere else. Their names are of ``processors.snapshots.names``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from holdfast.infra.warehouse.catalog import TableUnknown
from holdfast.processors.snapshots.names import procedure_name, quoted, snapshots_name, table_name

__all__ = ["COLUMNS", "HISTORY_COLUMNS", "QUARANTINE_COLUMNS", "SNAPSHOT_COLUMNS", "create_history", "create_table"]
__all__ += ["create_quarantine", "create_snapshots", "procedure_name", "quoted", "require_table", "table_name"]
__all__ += ["table_shape"]

Column = tuple[str, str, str]

#: Column name, SQL type and meaning, of the table of a store; typed columns come after these.
COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("key", "binary", "changelog key"),
    ("value", "binary", "stored value with its envelope"),
    ("message_key", "string", "key of the messages"),
    ("state_key", "string", "key within that state"),
    ("json", "string", "the value, when it is JSON"),
    ("offset", "bigint", "changelog offset of the value; null when a checkpoint gave it"),
    ("changelog_timestamp", "timestamp", "when it was committed to the changelog; null when a checkpoint gave it"),
    ("event_timestamp", "timestamp", "event time of the message that wrote it"),
)

#: Of the table of every change: ``put`` and ``delete`` are records of the changelog, ``base`` and ``base_delete`` say
#: what the store held or lacked as of an offset, when it is not known at which one that was written.
HISTORY_COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("generation", "int", "counts the changelogs that the store has had"),
    ("offset", "bigint", "changelog offset"),
    ("timestamp", "timestamp", "when it was committed to the changelog; when the snapshot was taken for base rows"),
    ("op", "string", "put, delete, base or base_delete"),
    ("key", "binary", "changelog key"),
    ("value", "binary", "stored value with its envelope; null when deleted"),
    ("message_key", "string", "key of the messages"),
    ("state_key", "string", "key within that state"),
)

QUARANTINE_COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("offset", "bigint", "changelog offset; null when a checkpoint gave it"),
    ("key", "binary", "changelog key"),
    ("value", "binary", "stored value with its envelope"),
    ("why", "string", "why it could not be read"),
    ("snapshot_id", "string", "the snapshot that met it"),
    ("changelog_timestamp", "timestamp", "when it was committed to the changelog; null when a checkpoint gave it"),
)

#: One row for each partition of each snapshot of a processor.
SNAPSHOT_COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("snapshot_id", "string", "the snapshot"),
    ("store", "string", "the store"),
    ("table_name", "string", "the table of the store"),
    ("source", "string", "incremental, changelog, checkpoint or history"),
    ("base", "string", "the snapshot that it builds on"),
    ("why", "string", "why that source"),
    ("taken_at", "timestamp", "when the owner was at these offsets"),
    ("code_version", "string", "of the processor"),
    ("state_format", "string", "of keys and values"),
    ("schema_version", "int", "of the table"),
    ("topic", "string", "the changelog"),
    ("topic_id", "string", "its id"),
    ("generation", "int", "counts the changelogs that the store has had"),
    ("log_start", "bigint", "where the log began"),
    ("start_offset", "bigint", "read from here"),
    ("end_offset", "bigint", "read up to here: the state is as of this offset"),
    ("records", "bigint", "records read"),
    ("tombstones", "bigint", "deletions read"),
    ("live_keys", "bigint", "keys in the table"),
    ("fingerprint", "string", "of what the table holds"),
    ("inputs", "string", "input offsets that belong to the end, as JSON"),
    ("quarantined", "bigint", "values that could not be read"),
)

_METADATA = {
    "write.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_APPEND_ONLY = {"format-version": "2", **_METADATA}
_MERGED = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.merge.distribution-mode": "none",
    **_METADATA,
}


def create_table(spark: SparkSession, table: str) -> None:
    """Create the table of a store if it is not there."""
    _create(spark, table, COLUMNS, _MERGED)


def create_history(spark: SparkSession, table: str) -> None:
    """Create the table of every change if it is not there."""
    _create(spark, table, HISTORY_COLUMNS, _APPEND_ONLY)


def create_quarantine(spark: SparkSession, table: str) -> None:
    """Create the table of unreadable values if it is not there."""
    _create(spark, table, QUARANTINE_COLUMNS, _APPEND_ONLY)


def create_snapshots(spark: SparkSession, processor: str) -> str:
    """Create the table of a processor's snapshots if it is not there; returns its name."""
    table = snapshots_name(processor)
    _create(spark, table, SNAPSHOT_COLUMNS, _APPEND_ONLY)
    return table


def require_table(spark: SparkSession, table: str) -> None:
    """Refuse a table that is not there.

    Raises:
        TableUnknown: It is not.
    """
    if not spark.catalog.tableExists(quoted(table)):
        raise TableUnknown(
            f"The warehouse has no table {table}.",
            action="Correct the names of processor and store, or materialise the store's snapshot asset first.",
            table=table,
        )


def _create(spark: SparkSession, table: str, columns: Sequence[Column], properties: Mapping[str, str]) -> None:
    shape = ", ".join(f"`{name}` {kind} COMMENT '{comment}'" for name, kind, comment in columns)
    shown = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
    namespace = quoted(table.rsplit(".", 1)[0])
    _make(spark, f"CREATE NAMESPACE IF NOT EXISTS {namespace}", lambda: spark.catalog.databaseExists(namespace))
    _make(
        spark,
        f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({shape}) USING iceberg "
        f"PARTITIONED BY (store_partition) TBLPROPERTIES ({shown})",
        lambda: spark.catalog.tableExists(quoted(table)),
    )


def _make(spark: SparkSession, statement: str, is_there: Callable[[], bool]) -> None:
    """Run what makes something; another run that made it just then is no failure.

    Iceberg's JDBC catalog looks first and inserts then: who comes second is told of a duplicate key, as a failure
    of SQL, by words that each database chooses, and not that the thing exists.
    """
    try:
        spark.sql(statement)
    except Exception:
        if not is_there():
            raise


def table_shape(spark: SparkSession, name: str) -> list[Column]:
    """The columns that a table has: the fixed ones, then the typed ones."""
    fields = spark.table(quoted(name)).schema.fields
    return [(each.name, each.dataType.simpleString(), each.metadata.get("comment", "")) for each in fields]
