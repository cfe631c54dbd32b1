"""Views over a store's history, in the same catalog: what held when, and what changed.

    <store>_scd2   one row for each value of each key: valid_from, valid_to (null while it holds), their offsets
    <store>_feed   one row for each change: insert, update or delete, with the value and the JSON before it

The order of changes is that of offsets. Times are those of the changelog, made to never go back within a key. ``exact``
is false where a full snapshot found a value, or missed one, that no record told of: it changed at that time or before.

Invariants:
    - The rows of ``<store>_scd2`` that hold now are the rows of the store's table.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark.tables import require_table
from holdfast.assets.spark.typed import typed_columns, typed_query
from holdfast.processors.engine.changelog.format import CODEC_JSON
from holdfast.processors.engine.schema.types import StoreSchema, tick
from holdfast.processors.snapshots.coverage import seconds_of
from holdfast.processors.snapshots.names import history_name, quoted, views_of

#: A key's changes in their order; what a snapshot found as of an offset was so before the record at that offset.
_ORDER = "PARTITION BY store_partition, key ORDER BY generation, `offset`, if(op IN ('put', 'delete'), 1, 0)"
_JSON = (
    f"if(substring(value, 2, 1) = X'{CODEC_JSON:02x}', "
    "decode(substring(value, 11, length(value)), 'UTF-8'), NULL) AS json"
)


def create_views(spark: SparkSession, processor: str, store: str, schema: StoreSchema | None) -> tuple[str, str]:
    """Make both views, with the typed columns of the schema, where they are not there as they should be; their names.

    Args:
        spark: The session.
        processor: Whose store.
        store: The store, which has a history.
        schema: As it was resolved for the store's table; None for no typed columns.
    """
    history = quoted(history_name(processor, store))
    scd2, feed = views_of(processor, store)
    for view, query in ((scd2, scd2_query(history, schema)), (feed, feed_query(history, schema))):
        if not _is_made(spark, view, query):
            spark.sql(f"CREATE OR REPLACE VIEW {quoted(view)} AS {query}")
    return scd2, feed


def _is_made(spark: SparkSession, view: str, query: str) -> bool:
    """Whether a view is there with this query; each making of it would leave a file more in the warehouse."""
    try:
        shown = spark.sql(f"SHOW CREATE TABLE {quoted(view)}").collect()[0][0]
    except AnalysisException:  # it is not there
        return False
    return str(shown).rstrip().endswith(f"AS\n{query}")


def _changes(history: str) -> str:
    """The rows of a history that changed something, each with the one before it, as of its time."""
    told = f"SELECT *, lag(op) OVER ({_ORDER}) AS op_before, lag(value) OVER ({_ORDER}) AS value_before FROM {history}"
    # What a snapshot found as it was known already is no change.
    return (
        f"SELECT * EXCEPT (timestamp), max(timestamp) OVER ({_ORDER} ROWS UNBOUNDED PRECEDING) AS timestamp "
        f"FROM ({told}) WHERE op IN ('put', 'delete') AND NOT (op = 'delete' AND value_before IS NULL) "
        "OR op = 'base' AND NOT value <=> value_before OR op = 'base_delete' AND value_before IS NOT NULL"
    )


def scd2_query(history: str, schema: StoreSchema | None) -> str:
    """The query of ``<store>_scd2`` over a table as SQL names it."""
    spans = (
        "SELECT store_partition, generation, key, value, message_key, state_key, op, "
        "`offset` AS offset_from, timestamp AS valid_from, "
        f"lead(`offset`) OVER ({_ORDER}) AS offset_to, lead(timestamp) OVER ({_ORDER}) AS valid_to "
        f"FROM ({_changes(history)})"
    )
    held = f"SELECT *, {_JSON} FROM ({spans}) WHERE value IS NOT NULL"
    columns = [
        *("store_partition", "generation", "message_key", "state_key", "offset_from", "offset_to"),
        *("valid_from", "valid_to", "valid_to IS NULL AS is_current", "op = 'put' AS exact", "key", "value", "json"),
        *(tick(name) for name, _, _ in typed_columns(schema)),
    ]
    return f"SELECT {', '.join(columns)}, why FROM ({typed_query(held, schema)})"


def feed_query(history: str, schema: StoreSchema | None) -> str:
    """The query of ``<store>_feed`` over a table as SQL names it; typed columns are of the new value."""
    before = _JSON.replace("value", "value_before").replace(" AS json", " AS json_before")
    changed = f"SELECT *, {_JSON}, {before} FROM ({_changes(history)})"
    change = "CASE WHEN value IS NULL THEN 'delete' WHEN value_before IS NULL THEN 'insert' ELSE 'update' END AS change"
    columns = [
        *("store_partition", "generation", "`offset`", "timestamp", change, "message_key", "state_key"),
        *("op IN ('put', 'delete') AS exact", "key", "value", "value_before", "json", "json_before"),
        *(tick(name) for name, _, _ in typed_columns(schema)),
    ]
    return f"SELECT {', '.join(columns)}, why FROM ({typed_query(changed, schema)})"


def held_at(spark: SparkSession, processor: str, store: str, at: datetime | float, key: str | None = None) -> DataFrame:
    """What a store held at a moment, with its typed columns: rows of ``<store>_scd2``.

    What the history does not cover is not refused here; ``state_at`` of ``assets.spark.past`` does that.

    Args:
        spark: The session.
        processor: Whose store.
        store: The store.
        at: By the changelog's times: a datetime with a zone, or seconds since 1970.
        key: One key of messages; None for all.

    Raises:
        TableUnknown: The store has no history: it was never published.
        MomentUnclear: A datetime without a zone.
    """
    view = views_of(processor, store)[0]
    moment = f"timestamp_micros({round(seconds_of(at) * 1_000_000)})"
    require_table(spark, history_name(processor, store))
    rows = spark.table(quoted(view)).where(f"valid_from <= {moment} AND (valid_to > {moment} OR valid_to IS NULL)")
    return rows if key is None else rows.where(rows["message_key"] == key)
