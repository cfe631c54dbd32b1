"""The history of a store: every change, appended while the changelog has it, and folded to the state at a moment.

Invariants:
    - Folding the history gives the current table: what a full snapshot knows and the changes do not tell is appended
      as rows ``base`` and ``base_delete``.
    - A change is appended once: how far the history reaches is in its summary, and a snapshot's id is looked up first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.assets.spark.changelog import READABLE, ChangelogSource, PartitionRange, read_changelog
from holdfast.assets.spark.versions import Versions, branch_table
from holdfast.processors.engine.changelog.format import CODEC_JSON
from holdfast.processors.snapshots.facts import HistoryHead
from holdfast.processors.snapshots.manifest import ID_PROPERTY
from holdfast.processors.snapshots.plan import SnapshotPlan

#: In the summary of the history's versions: how far it reaches.
REACH_PROPERTY = "holdfast.history"
PUT, DELETE, BASE, BASE_DELETE = "put", "delete", "base", "base_delete"
#: SQL: whether a row is a record of the changelog.
TOLD = f"op IN ('{PUT}', '{DELETE}')"
#: SQL: whether a row leaves a value.
LIVE = f"op IN ('{PUT}', '{BASE}')"

_LENGTH = "try_cast(conv(hex(substring(key, 2, 4)), 16, 10) AS int)"
#: Keys of messages are bytes; what is no text in them is shown as the replacement character.
MESSAGE_KEY = f"make_valid_utf8(cast(substring(key, 6, {_LENGTH}) AS string))"
STATE_KEY = f"make_valid_utf8(cast(substring(key, 6 + {_LENGTH}, length(key)) AS string))"
_EVENT_MS = "try_cast(conv(hex(substring(value, 3, 8)), 16, 10) AS bigint)"
JSON = f"if(substring(value, 2, 1) = X'{CODEC_JSON:02x}', decode(substring(value, 11, length(value)), 'UTF-8'), NULL)"
#: The columns of the current table that are made from key, value, offset and timestamp.
CURRENT = (
    "store_partition",
    "key",
    "value",
    f"{MESSAGE_KEY} AS message_key",
    f"{STATE_KEY} AS state_key",
    f"{JSON} AS json",
    "offset",
    "timestamp AS changelog_timestamp",
    f"if({_EVENT_MS} IS NULL, NULL, timestamp_millis({_EVENT_MS})) AS event_timestamp",
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Of one partition's changes: records and deletions that the changelog had, bytes of all keys and values, and
    records of a format that this code does not know, with the offset of the first of them."""

    records: int = 0
    tombstones: int = 0
    size: int = 0
    strange: int = 0
    first_strange: int | None = None


def history_head(versions: Versions) -> HistoryHead | None:
    """How far the history reaches, from its newest summary that says so."""
    for version in versions.ancestors():
        summary = versions.summaries[version]
        if REACH_PROPERTY in summary:
            reach = json.loads(summary[REACH_PROPERTY])
            ids = {int(number): str(topic_id) for number, topic_id in reach["topic_ids"].items()}
            ends = {int(number): int(end) for number, end in reach["ends"].items()}
            return HistoryHead(summary[ID_PROPERTY], int(reach["generation"]), ids, ends)
    return None


def has_fed(versions: Versions, snapshot_id: str) -> bool:
    """Whether this snapshot's changes are in the published history."""
    return any(versions.summaries[version].get(ID_PROPERTY) == snapshot_id for version in versions.ancestors())


def changes(spark: SparkSession, plan: SnapshotPlan, source: ChangelogSource) -> DataFrame | None:
    """The records that the history lacks; None when the changelog has none of them."""
    if all(part.feed_start >= part.end for part in plan.partitions):
        return None
    ranges = [PartitionRange(part.partition, part.feed_start, part.end) for part in plan.partitions]
    read = read_changelog(spark, plan.topic, ranges, source)
    return as_history(read, plan.generation, f"if(value IS NULL, '{DELETE}', '{PUT}')")


def as_history(rows: DataFrame, generation: int, op: str) -> DataFrame:
    """Rows of (store_partition, offset, timestamp, key, value) as the table of changes has them."""
    return rows.selectExpr(
        "store_partition",
        f"{generation} AS generation",
        "offset",
        "timestamp",
        f"{op} AS op",
        "key",
        "value",
        f"{MESSAGE_KEY} AS message_key",
        f"{STATE_KEY} AS state_key",
    )


def append_history(rows: DataFrame, table: str, branch: str, plan: SnapshotPlan) -> None:
    """Append to the snapshot's branch of the history; may be no rows at all."""
    reach = {
        "generation": plan.generation,
        "topic_ids": {str(part.partition): part.topic_id for part in plan.partitions},
        "ends": {str(part.partition): part.end for part in plan.partitions},
    }
    (
        rows.writeTo(branch_table(table, branch))
        .option("fanout-enabled", "true")
        .option(f"snapshot-property.{ID_PROPERTY}", plan.snapshot_id)
        .option(f"snapshot-property.{REACH_PROPERTY}", json.dumps(reach, separators=(",", ":")))
        .append()
    )


def between(generation: int, ranges: Sequence[PartitionRange]) -> str:
    """SQL: the rows that tell what happened from ``start`` on, and up to ``end``.

    A row ``base`` at an offset is about everything before it, so it counts after ``start`` and up to ``end``. Only
    comparisons with AND and OR: Iceberg then leaves out every file that has nothing of it.
    """
    tests = [
        f"(store_partition = {part.partition} AND offset >= {part.start} AND offset <= {part.end} AND "
        f"(({TOLD} AND offset < {part.end}) OR (NOT {TOLD} AND offset > {part.start})))"
        for part in ranges
    ]
    return f"generation = {generation} AND ({' OR '.join(tests) or 'false'})"


def counted(rows: DataFrame) -> dict[int, Counted]:
    """What is among rows of the history, by partition; partitions without any are left out."""
    found = rows.groupBy("store_partition").agg(
        F.expr(f"count_if({TOLD})").alias("records"),
        F.expr(f"count_if({TOLD} AND value IS NULL)").alias("tombstones"),
        F.expr("sum(length(key) + coalesce(length(value), 0))").alias("size"),
        F.expr(f"count_if(NOT {READABLE})").alias("strange"),
        F.expr(f"min(if({READABLE}, NULL, offset))").alias("first_strange"),
    )
    names = ("records", "tombstones", "size", "strange", "first_strange")
    return {row["store_partition"]: Counted(*(row[name] for name in names)) for row in found.collect()}


def fold(rows: DataFrame) -> DataFrame:
    """The newest row of each key: store_partition, key, op, value, offset, timestamp.

    At one offset a change is newer than what is said to hold as of it; of such a row, offset and timestamp are null,
    since they are not the value's. Rows of one table of changes are folded without an exchange, since they lie by
    ``store_partition``.
    """
    told = f"`max(row)`.op IN ('{PUT}', '{DELETE}')"
    return (
        rows.selectExpr(
            "store_partition",
            "key",
            f"struct(generation, offset, if({TOLD}, 1, 0) AS told, op, value, timestamp) AS row",
        )
        .groupBy("store_partition", "key")
        .agg({"row": "max"})
        .selectExpr(
            *("store_partition", "key", "`max(row)`.op AS op", "`max(row)`.value AS value"),
            f"if({told}, `max(row)`.offset, NULL) AS offset",
            f"if({told}, `max(row)`.timestamp, NULL) AS timestamp",
        )
    )


def live(folded: DataFrame) -> DataFrame:
    """Of a fold, the keys that have a value."""
    return folded.where(LIVE).drop("op")
