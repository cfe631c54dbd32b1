"""Columns, properties and creation of all warehouse tables; their names are in ``processors.snapshots.names``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from holdfast.assets.spark.metadata import exists
from holdfast.infra.warehouse.catalog import TableUnknown
from holdfast.processors.snapshots.names import quoted, snapshots_name

Column = tuple[str, str, str]

#: Name, SQL type and comment of a store table's fixed columns; typed columns follow them.
COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("key", "binary", "changelog key"),
    ("value", "binary", "stored value with its envelope"),
    ("message_key", "string", "key of the messages"),
    ("state_key", "string", "key within the state of the message key"),
    ("json", "string", "the value as text, when it is JSON"),
    ("offset", "bigint", "changelog offset of the value; null when a checkpoint gave the value"),
    ("changelog_timestamp", "timestamp", "time of the changelog record; null when a checkpoint gave the value"),
    ("event_timestamp", "timestamp", "event time of the message that wrote the value"),
)

#: The columns of the history. ``put`` and ``delete`` are changelog records. ``base`` and ``base_delete`` come from a
#: full snapshot: the store had, or lacked, this value at the offset. The record that wrote the value is not known.
HISTORY_COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("generation", "int", "number of the changelog: 1, and one more after each recreation"),
    ("offset", "bigint", "changelog offset"),
    ("timestamp", "timestamp", "time of the changelog record; of base rows, time of the checkpoint"),
    ("op", "string", "put, delete, base or base_delete"),
    ("key", "binary", "changelog key"),
    ("value", "binary", "stored value with its envelope; null when deleted"),
    ("message_key", "string", "key of the messages"),
    ("state_key", "string", "key within the state of the message key"),
)

QUARANTINE_COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("offset", "bigint", "changelog offset; null when a checkpoint gave the value"),
    ("key", "binary", "changelog key"),
    ("value", "binary", "stored value with its envelope"),
    ("why", "string", "why the value could not be read"),
    ("snapshot_id", "string", "the snapshot that read the value"),
    ("changelog_timestamp", "timestamp", "time of the changelog record; null when a checkpoint gave the value"),
    ("attempt", "string", "branch of the attempt that read the value; null in rows of earlier versions"),
)

#: One row for each partition of each snapshot of a processor.
SNAPSHOT_COLUMNS: tuple[Column, ...] = (
    ("store_partition", "int", "changelog partition"),
    ("snapshot_id", "string", "the snapshot"),
    ("store", "string", "the store"),
    ("table_name", "string", "the table of the store"),
    ("source", "string", "incremental, changelog, checkpoint or history"),
    ("base", "string", "the snapshot that an incremental one builds on"),
    ("why", "string", "reason for the source"),
    ("taken_at", "timestamp", "time of the earliest checkpoint"),
    ("code_version", "string", "code version of the processor"),
    ("state_format", "string", "format of keys and values"),
    ("schema_version", "int", "schema version of the table"),
    ("topic", "string", "the changelog"),
    ("topic_id", "string", "topic id of the changelog"),
    ("generation", "int", "number of the changelog: 1, and one more after each recreation"),
    ("log_start", "bigint", "first offset of the log"),
    ("start_offset", "bigint", "first offset that was read"),
    ("end_offset", "bigint", "offset of the state: records before it are included"),
    ("records", "bigint", "records read"),
    ("tombstones", "bigint", "deletions read"),
    ("live_keys", "bigint", "keys in the table"),
    ("fingerprint", "string", "fingerprint of the keys and values in the table"),
    ("inputs", "string", "next input offsets at the end offset, as JSON"),
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
    """Create the table of a store if it is missing."""
    _create(spark, table, COLUMNS, _MERGED)


def create_history(spark: SparkSession, table: str) -> None:
    """Create the history of a store if it is missing."""
    _create(spark, table, HISTORY_COLUMNS, _APPEND_ONLY)


def create_quarantine(spark: SparkSession, table: str) -> None:
    """Create the quarantine of a store if it is missing, and add the columns that an older quarantine lacks."""
    _create(spark, table, QUARANTINE_COLUMNS, _APPEND_ONLY)
    there = spark.table(quoted(table)).columns
    for name, kind, comment in QUARANTINE_COLUMNS:
        if name not in there:
            spark.sql(f"ALTER TABLE {quoted(table)} ADD COLUMN `{name}` {kind} COMMENT '{comment}'")


def create_snapshots(spark: SparkSession, processor: str) -> str:
    """Create the table of a processor's snapshots if it is missing; returns its name."""
    table = snapshots_name(processor)
    _create(spark, table, SNAPSHOT_COLUMNS, _APPEND_ONLY)
    return table


def require_table(spark: SparkSession, table: str) -> None:
    """Refuse a table that does not exist.

    Raises:
        TableUnknown: The table does not exist.
    """
    if not exists(spark, table):
        raise TableUnknown(
            f"The warehouse has no table {table}.",
            action="Correct the names of processor and store, or materialise the store's snapshot asset.",
            table=table,
        )


def _create(spark: SparkSession, table: str, columns: Sequence[Column], properties: Mapping[str, str]) -> None:
    if exists(spark, table):
        return
    shape = ", ".join(f"`{name}` {kind} COMMENT '{comment}'" for name, kind, comment in columns)
    shown = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
    create_namespace(spark, table.rsplit(".", 1)[0])
    _make(
        spark,
        f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({shape}) USING iceberg "
        f"PARTITIONED BY (store_partition) TBLPROPERTIES ({shown})",
        lambda: exists(spark, table),
    )


def create_namespace(spark: SparkSession, namespace: str) -> None:
    """Create a namespace, named with its catalog, if it is missing."""
    name = quoted(namespace)
    _make(spark, f"CREATE NAMESPACE IF NOT EXISTS {name}", lambda: spark.catalog.databaseExists(name))


def _make(spark: SparkSession, statement: str, is_there: Callable[[], bool]) -> None:
    """Run a CREATE statement; it may fail if another run creates the same object at the same moment.

    Iceberg's JDBC catalog checks, then inserts. The second of two runs gets the database's duplicate-key error, not an
    "already exists" error.
    """
    try:
        spark.sql(statement)
    except Exception:
        if not is_there():
            raise


def table_shape(spark: SparkSession, name: str) -> list[Column]:
    """The columns of a table: the fixed ones, then the typed ones."""
    fields = spark.table(quoted(name)).schema.fields
    return [(each.name, each.dataType.simpleString(), each.metadata.get("comment", "")) for each in fields]
