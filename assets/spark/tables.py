"""The names and the shape of warehouse tables; built here and nowhere else."""

from __future__ import annotations

from pyspark.sql import SparkSession

from infra.spark.session import CATALOG

#: Column name, SQL type and meaning.
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("store_partition", "int", "changelog partition"),
    ("key", "binary", "changelog key"),
    ("value", "binary", "stored value with its envelope"),
    ("message_key", "string", "key of the messages"),
    ("state_key", "string", "key within that state"),
    ("json", "string", "the value, when it is JSON"),
    ("offset", "bigint", "changelog offset of the value"),
    ("changelog_timestamp", "timestamp", "when it was committed to the changelog"),
    ("event_timestamp", "timestamp", "event time of the message that wrote it"),
)

_PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def table_name(processor: str, store: str) -> str:
    """The table of a store, as people and other engines write it."""
    return f"{CATALOG}.{processor}.{store}"


def quoted(table: str) -> str:
    """A table name as SQL has it, whatever characters it has."""
    return ".".join(f"`{part}`" for part in table.split(".", 2))


def procedure_name(table: str) -> str:
    """A table name as catalog procedures take it, without the catalog."""
    return ".".join(f"`{part}`" for part in table.split(".", 2)[1:])


def create_table(spark: SparkSession, table: str) -> None:
    """Create the table of a store if it is not there."""
    namespace = quoted(table.rsplit(".", 1)[0])
    columns = ", ".join(f"`{name}` {kind} COMMENT '{comment}'" for name, kind, comment in COLUMNS)
    properties = ", ".join(f"'{name}'='{value}'" for name, value in _PROPERTIES.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({columns}) USING iceberg "
        f"PARTITIONED BY (store_partition) TBLPROPERTIES ({properties})"
    )
