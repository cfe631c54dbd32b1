"""Creates two views over a store's history, in the same catalog: values with their validity time, and changes.

    <store>_scd2   one row for each value of each key: valid_from, valid_to (null if still valid), the offsets of both
    <store>_feed   one row for each change: insert, update or delete, with the previous value and JSON

Changes are ordered by offset. Times are the changelog's timestamps. If the timestamp of a change is smaller than that
of an earlier change of the key, the greatest earlier timestamp is used instead. ``exact`` is false for a change that
only a full snapshot contains, because the change happened at the row's time or before it.

Invariants:
    - The current rows of ``<store>_scd2`` are the rows of the store's table.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark.catalog.metadata import view_queries
from holdfast.assets.spark.catalog.tables import require_table
from holdfast.assets.spark.history import DECODED, has_decoded, json_of
from holdfast.assets.spark.typed import typed_columns, typed_query
from holdfast.processors.engine.schema.types import StoreSchema, tick
from holdfast.processors.snapshots.coverage import seconds_of
from holdfast.processors.snapshots.names import history_name, quoted, views_of

#: The order of one key's changes. At equal offsets, a value from a full snapshot comes before a changelog record.
_ORDER = "PARTITION BY store_partition, key ORDER BY generation, `offset`, if(op IN ('put', 'delete'), 1, 0)"


def create_views(spark: SparkSession, processor: str, store: str, schema: StoreSchema | None) -> tuple[str, str]:
    """Create both views of a store that has a history table; replace an existing view only if its query changed.

    Returns the names of the views.
    """
    coded = has_decoded(spark, history_name(processor, store))
    history = quoted(history_name(processor, store))
    scd2, feed = views_of(processor, store)
    queries = (scd2, scd2_query(history, schema, coded=coded)), (feed, feed_query(history, schema, coded=coded))
    for view, query in queries:
        # A view is replaced only if its query changed, because each replacement adds a file to the warehouse.
        if query not in view_queries(spark, view):
            spark.sql(f"CREATE OR REPLACE VIEW {quoted(view)} AS {query}")
    return scd2, feed


def _changes(history: str, *, coded: bool) -> str:
    """SQL: the rows of a history table that changed a value, each with the previous value.

    ``coded`` says whether the history has the column ``decoded``.
    """
    before = ("op", "value", DECODED) if coded else ("op", "value")
    lags = ", ".join(f"lag({name}) OVER ({_ORDER}) AS {name}_before" for name in before)
    rows = f"SELECT *, {lags} FROM {history}"
    # A row from a full snapshot is no change if its value equals the previous value.
    return (
        f"SELECT * EXCEPT (timestamp), max(timestamp) OVER ({_ORDER} ROWS UNBOUNDED PRECEDING) AS timestamp "
        f"FROM ({rows}) WHERE op IN ('put', 'delete') AND NOT (op = 'delete' AND value_before IS NULL) "
        "OR op = 'base' AND NOT value <=> value_before OR op = 'base_delete' AND value_before IS NOT NULL"
    )


def scd2_query(history: str, schema: StoreSchema | None, *, coded: bool = False) -> str:
    """The query of ``<store>_scd2``; ``history`` is the quoted table name."""
    spans = (
        f"SELECT store_partition, generation, key, value, {f'{DECODED}, ' if coded else ''}message_key, state_key, op, "
        "`offset` AS offset_from, timestamp AS valid_from, "
        f"lead(`offset`) OVER ({_ORDER}) AS offset_to, lead(timestamp) OVER ({_ORDER}) AS valid_to "
        f"FROM ({_changes(history, coded=coded)})"
    )
    held = f"SELECT *, {json_of(decoded=DECODED if coded else '')} AS json FROM ({spans}) WHERE value IS NOT NULL"
    columns = [
        *("store_partition", "generation", "message_key", "state_key", "offset_from", "offset_to"),
        *("valid_from", "valid_to", "valid_to IS NULL AS is_current", "op = 'put' AS exact", "key", "value", "json"),
        *(tick(name) for name, _, _ in typed_columns(schema)),
    ]
    return f"SELECT {', '.join(columns)}, why FROM ({typed_query(held, schema)})"


def feed_query(history: str, schema: StoreSchema | None, *, coded: bool = False) -> str:
    """The query of ``<store>_feed``; ``history`` is the quoted table name.

    The typed columns belong to the value after the change.
    """
    after = f"{json_of(decoded=DECODED if coded else '')} AS json"
    before = f"{json_of('value_before', f'{DECODED}_before' if coded else '')} AS json_before"
    changed = f"SELECT *, {after}, {before} FROM ({_changes(history, coded=coded)})"
    change = "CASE WHEN value IS NULL THEN 'delete' WHEN value_before IS NULL THEN 'insert' ELSE 'update' END AS change"
    columns = [
        *("store_partition", "generation", "`offset`", "timestamp", change, "message_key", "state_key"),
        *("op IN ('put', 'delete') AS exact", "key", "value", "value_before", "json", "json_before"),
        *(tick(name) for name, _, _ in typed_columns(schema)),
    ]
    return f"SELECT {', '.join(columns)}, why FROM ({typed_query(changed, schema)})"


def held_at(spark: SparkSession, processor: str, store: str, at: datetime | float, key: str | None = None) -> DataFrame:
    """Returns the rows of ``<store>_scd2`` that were valid at one time, for one message key or for all keys.

    ``at`` is a time in the changelog's timestamps: a datetime with a zone, or seconds since 1970. Unlike
    ``assets.spark.past.state_at``, this function accepts a time that the history does not cover.

    Raises:
        TableUnknown: The store has no history, because it was never published.
        MomentUnclear: A datetime without a zone.
    """
    view = views_of(processor, store)[0]
    moment = f"timestamp_micros({round(seconds_of(at) * 1_000_000)})"
    require_table(spark, history_name(processor, store))
    rows = spark.table(quoted(view)).where(f"valid_from <= {moment} AND (valid_to > {moment} OR valid_to IS NULL)")
    return rows if key is None else rows.where(rows["message_key"] == key)
