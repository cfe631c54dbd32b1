"""Columns and properties of all warehouse tables, and their creation.

The names of tables are built in ``processors.snapshots.names``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from holdfast.assets.spark.catalog.metadata import exists
from holdfast.infra.warehouse.catalog import TableUnknown
from holdfast.processors.snapshots.names import quoted, snapshots_name

Column = tuple[str, str, str]

#: The fixed columns of a store's table as (name, SQL type, comment); typed columns follow them.
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

#: The columns of the history. Rows with op ``put`` and ``delete`` are changelog records.
#: Rows with op ``base`` and ``base_delete`` come from a full snapshot, and their changelog record is unknown.
#: At the row's offset, the store had this value (``base``), or no value (``base_delete``).
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

#: The columns of a processor's table of snapshots, which has one row for each partition of each snapshot.
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
    """Create the history table of a store if it is missing."""
    _create(spark, table, HISTORY_COLUMNS, _APPEND_ONLY)


def create_quarantine(spark: SparkSession, table: str) -> None:
    """Create the quarantine table of a store if it is missing.

    If an earlier release of Holdfast created it, add the columns that it lacks.
    """
    _create(spark, table, QUARANTINE_COLUMNS, _APPEND_ONLY)
    there = spark.table(quoted(table)).columns
    for name, kind, comment in QUARANTINE_COLUMNS:
        if name not in there:
            spark.sql(f"ALTER TABLE {quoted(table)} ADD COLUMN `{name}` {kind} COMMENT '{comment}'")


def create_snapshots(spark: SparkSession, processor: str) -> str:
    """Create the table that lists a processor's Holdfast snapshots, if it is missing; returns the table's name."""
    table = snapshots_name(processor)
    _create(spark, table, SNAPSHOT_COLUMNS, _APPEND_ONLY)
    return table


def require_table(spark: SparkSession, table: str) -> None:
    """Raises an error if a table does not exist.

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
    """Create a namespace if it is missing; the name must include the catalog."""
    name = quoted(namespace)
    _make(spark, f"CREATE NAMESPACE IF NOT EXISTS {name}", lambda: spark.catalog.databaseExists(name))


def _make(spark: SparkSession, statement: str, is_there: Callable[[], bool]) -> None:
    """Run a CREATE statement; an error is ignored if the object exists afterwards, because another run created it.

    Iceberg's JDBC catalog first checks and then inserts. So if two runs create an object at once, one gets the
    database's duplicate-key error instead of an "already exists" error.
    """
    try:
        spark.sql(statement)
    except Exception:
        if not is_there():
            raise


def table_shape(spark: SparkSession, name: str) -> list[Column]:
    """The columns of a table as (name, SQL type, comment); first the fixed columns, then the typed columns."""
    fields = spark.table(quoted(name)).schema.fields
    return [(each.name, each.dataType.simpleString(), each.metadata.get("comment", "")) for each in fields]
