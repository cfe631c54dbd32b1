"""The history table of a store, with one row for each change in the changelog.

To fold the history means to keep the newest row of each key up to a time. The result is the store's state at that time.
In this module, a *snapshot* is Holdfast's snapshot of the store. An Iceberg snapshot of the history table is called a
*version*.

Invariants:
    - The folded history equals the current table. If the state of a full snapshot differs from the folded history, the
      snapshot appends rows with op ``base`` and ``base_delete``.
    - A change is appended only once, because the summary of a version records the end offsets of the history. A
      snapshot whose changes are already in the history appends nothing.
    - A tag protects the version with these end offsets from expiry. A history with rows but without such a version is
      an error, and is never treated as an empty history.
    - Spark SQL decodes JSON. A value of another codec is decoded by Python once, when it enters the history, and the
      column ``decoded`` keeps its JSON text. So the table and both views need no Python. A history has the column as
      soon as its store has such a value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.assets.spark.catalog.versions import Versions, branch_table, set_tag
from holdfast.assets.spark.sources.changelog import IS_CODED, READABLE, ChangelogSource, PartitionRange, read_changelog
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.codec_table import BY_NUMBER, CODED
from holdfast.processors.engine.changelog.format import CODEC_JSON, FormatUnknown
from holdfast.processors.engine.changelog.stored_values import json_text
from holdfast.processors.snapshots.facts import HistoryHead
from holdfast.processors.snapshots.manifest import ID_PROPERTY
from holdfast.processors.snapshots.names import REACH_TAG, procedure_name, quoted
from holdfast.processors.snapshots.plan import SnapshotPlan

#: The property in the summary of a version (Iceberg snapshot) of the history table. It has the changelog offsets up to
#: which the history is complete.
REACH_PROPERTY = "holdfast.history"
PUT, DELETE, BASE, BASE_DELETE = "put", "delete", "base", "base_delete"
#: SQL condition that is true for a row that is a changelog record.
LOGGED = f"op IN ('{PUT}', '{DELETE}')"
#: SQL expression: the ``op`` of a history row that is made from a changelog record.
OP = f"if(value IS NULL, '{DELETE}', '{PUT}')"
#: SQL condition that is true for a row with a value, not a deletion.
LIVE = f"op IN ('{PUT}', '{BASE}')"

_IS_LOGGED = f"if({LOGGED}, 1, 0) AS logged"
_LENGTH = "try_cast(conv(hex(substring(key, 2, 4)), 16, 10) AS int)"
#: SQL expression: the message key as text. Bytes that are not valid UTF-8 become the replacement character.
MESSAGE_KEY = f"make_valid_utf8(cast(substring(key, 6, {_LENGTH}) AS string))"
STATE_KEY = f"make_valid_utf8(cast(substring(key, 6 + {_LENGTH}, length(key)) AS string))"
#: SQL: the event time in a stored value, milliseconds since 1970; the codec stores it as a signed 8-byte integer.
EVENT_MS = "try_cast(conv(hex(substring(value, 3, 8)), 16, -10) AS bigint)"
#: Smallest and greatest event time (ms since 1970) that become timestamps: years 1 to 9999, which all readers support.
EVENT_MS_FIRST, EVENT_MS_LAST = -62_135_596_800_000, 253_402_300_799_999
#: The column of the history with the JSON text of values that are neither JSON nor raw bytes.
DECODED = "decoded"


def json_of(value: str = "value", decoded: str = "") -> str:
    """SQL: the JSON text of a stored value; null for raw bytes. ``decoded`` names the column with decoded texts."""
    text = f"decode(substring({value}, 11, length({value})), 'UTF-8')"
    return f"if(substring({value}, 2, 1) = X'{CODEC_JSON:02x}', {text}, {decoded or 'NULL'})"


#: SQL: the value as JSON text, if SQL can decode it.
JSON = json_of()
IN_RANGE = f"{EVENT_MS} BETWEEN {EVENT_MS_FIRST} AND {EVENT_MS_LAST}"
#: SQL: the fixed columns of the current table, computed from key, value, offset and timestamp.
CURRENT = (
    "store_partition",
    "key",
    "value",
    f"{MESSAGE_KEY} AS message_key",
    f"{STATE_KEY} AS state_key",
    f"{JSON} AS json",
    "offset",
    "timestamp AS changelog_timestamp",
    f"if({IN_RANGE}, timestamp_millis({EVENT_MS}), NULL) AS event_timestamp",
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of one partition's changes: changelog records, how many are tombstones, and bytes of keys and values."""

    records: int = 0
    tombstones: int = 0
    size: int = 0
    #: Number of records in an unknown format. The next field, ``first_strange``, is the first of their offsets.
    strange: int = 0
    first_strange: int | None = None
    #: Number of values that only Python can decode, because SQL lacks a function for their codec.
    coded: int = 0


class HistoryUnclear(HoldfastError):
    """A history table has rows, but none of its versions records up to which offsets the history is complete."""


def reaching_version(versions: Versions) -> int | None:
    """The newest version (Iceberg snapshot) of the history table whose summary has the history's end offsets, or None.

    The version is on the branch main, or has the tag ``REACH_TAG``. The tagged version is returned only if main has the
    same number of rows: then no row was appended after the tag.
    """
    found = next((each for each in versions.ancestors() if REACH_PROPERTY in versions.summaries[each]), None)
    kind, tagged = versions.refs.get(REACH_TAG, ("", 0))
    if found is not None or kind != "TAG" or REACH_PROPERTY not in versions.summaries.get(tagged, {}):
        return found
    return tagged if versions.rows(tagged) == versions.rows() else None


def history_head(versions: Versions, table: str) -> HistoryHead | None:
    """The changelog offsets up to which a history table is complete; None if the table is empty.

    They are read from the summary of a version (Iceberg snapshot) of the history table.

    Raises:
        HistoryUnclear: The history has rows, but no version's summary has the property with the end offsets.
    """
    version = reaching_version(versions)
    if version is None and versions.rows():
        apart = procedure_name(f"{table}_apart")
        raise HistoryUnclear(
            f"The history {table} has {versions.rows():,} rows, and none of its versions says how far it reaches: "
            "another program expired the version that did.",
            action=f"Keep it under another name, by Spark SQL: ALTER TABLE {quoted(table)} RENAME TO {apart}; "
            "then materialise the snapshot asset. Its snapshot is full, and begins a new history. Nothing is lost.",
            table=table,
        )
    if version is None:
        return None
    summary = versions.summaries[version]
    reach = json.loads(summary[REACH_PROPERTY])
    ids = {int(number): str(topic_id) for number, topic_id in reach["topic_ids"].items()}
    ends = {int(number): int(end) for number, end in reach["ends"].items()}
    return HistoryHead(summary[ID_PROPERTY], int(reach["generation"]), ids, ends)


def tag_newest_changes(spark: SparkSession, table: str) -> None:
    """Tag the version (Iceberg snapshot) whose summary has the history's end offsets, so that it does not expire."""
    version = reaching_version(Versions.of(spark, table))
    if version is not None:
        set_tag(spark, table, REACH_TAG, version)


def has_fed(versions: Versions, snapshot_id: str) -> bool:
    """Whether main of the history table already has the changes that the Holdfast snapshot ``snapshot_id`` appends."""
    return any(versions.summaries[version].get(ID_PROPERTY) == snapshot_id for version in versions.ancestors())


def changes(
    spark: SparkSession, plan: SnapshotPlan, source: ChangelogSource, *, coded: bool = False
) -> DataFrame | None:
    """The changelog records that are missing in the history; None if nothing is missing.

    ``coded`` says whether the history has the column ``decoded``.
    """
    if all(part.feed_start >= part.end for part in plan.partitions):
        return None
    ranges = [PartitionRange(part.partition, part.feed_start, part.end) for part in plan.partitions]
    read = read_changelog(spark, plan.topic, ranges, source)
    return as_history(with_decoded(read) if coded else read, plan.generation, OP)


def as_history(rows: DataFrame, generation: int, op: str) -> DataFrame:
    """Rows of (store_partition, offset, timestamp, key, value), converted to the columns of the history.

    The column ``decoded`` is kept if the rows have it.
    """
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
        *_decoded_of(rows),
    )


def _decoded_of(rows: DataFrame) -> tuple[str, ...]:
    return (DECODED,) if DECODED in rows.columns else ()


def append_history(rows: DataFrame, table: str, branch: str, plan: SnapshotPlan) -> None:
    """Append rows, if any, to the branch of the history table that this attempt at a snapshot writes.

    The summary of the new version (Iceberg snapshot) records up to which offsets the history is now complete.
    """
    reach = {
        "generation": plan.generation,
        "topic_ids": {str(part.partition): part.topic_id for part in plan.partitions},
        "ends": {str(part.partition): part.end for part in plan.partitions},
    }
    writer = rows.writeTo(branch_table(table, branch)).option("fanout-enabled", "true")
    writer = writer.option(f"snapshot-property.{ID_PROPERTY}", plan.snapshot_id)
    writer.option(f"snapshot-property.{REACH_PROPERTY}", json.dumps(reach, separators=(",", ":"))).append()


def between(generation: int, ranges: Sequence[PartitionRange]) -> str:
    """SQL condition that is true for changes of one changelog generation with offsets in one of the ranges.

    A changelog gets a new generation (number) when it is created again. A range includes its ``start``, but not its
    ``end``. A row with op ``base`` replaces all records before its offset. So for such rows, ``start`` is excluded and
    ``end`` included. The condition has only comparisons, AND, OR and NOT, so that Iceberg can skip files without
    matching rows.
    """
    tests = [
        f"(store_partition = {part.partition} AND offset >= {part.start} AND offset <= {part.end} AND "
        f"(({LOGGED} AND offset < {part.end}) OR (NOT {LOGGED} AND offset > {part.start})))"
        for part in ranges
    ]
    return f"generation = {generation} AND ({' OR '.join(tests) or 'false'})"


def counted(rows: DataFrame) -> dict[int, Counted]:
    """Maps each partition to the counts of its rows; partitions without rows are left out."""
    found = rows.groupBy("store_partition").agg(
        F.expr(f"count_if({LOGGED})").alias("records"),
        F.expr(f"count_if({LOGGED} AND value IS NULL)").alias("tombstones"),
        F.expr("sum(length(key) + coalesce(length(value), 0))").alias("size"),
        F.expr(f"count_if(NOT {READABLE})").alias("strange"),
        F.expr(f"min(if({READABLE}, NULL, offset))").alias("first_strange"),
        F.expr(f"count_if({IS_CODED})").alias("coded"),
    )
    names = ("records", "tombstones", "size", "strange", "first_strange", "coded")
    return {row["store_partition"]: Counted(*(row[name] for name in names)) for row in found.collect()}


def fold(rows: DataFrame) -> DataFrame:
    """The newest row of each key, with columns store_partition, key, op, value, offset, timestamp.

    The column ``decoded`` is kept if the rows have it.

    A base row was added by a full snapshot, from a checkpoint. If a changelog record and a base row have the same
    offset, the changelog record counts as newer. Of two base rows with the same offset, the row of the later checkpoint
    counts as newer. Offset and timestamp of a base row become null, because they belong to the checkpoint, not to the
    value. Folding one history needs no exchange in Spark, because its files are partitioned by ``store_partition``.
    """
    logged = f"`max(row)`.op IN ('{PUT}', '{DELETE}')"
    decoded = _decoded_of(rows)
    return (
        rows.selectExpr(
            "store_partition",
            "key",
            f"struct({', '.join(('generation', 'offset', _IS_LOGGED, 'timestamp', 'op', 'value', *decoded))}) AS row",
        )
        .groupBy("store_partition", "key")
        .agg({"row": "max"})
        .selectExpr(
            *("store_partition", "key", "`max(row)`.op AS op", "`max(row)`.value AS value"),
            f"if({logged}, `max(row)`.offset, NULL) AS offset",
            f"if({logged}, `max(row)`.timestamp, NULL) AS timestamp",
            *(f"`max(row)`.{name} AS {name}" for name in decoded),
        )
    )


def live(folded: DataFrame) -> DataFrame:
    """The rows of ``folded`` (the newest change of each key) that have a value. Rows without a value are deletions."""
    return folded.where(LIVE).drop("op")


# -- values that only Python decodes -----------------------------------------------------------------------------------


def has_decoded(spark: SparkSession, history: str) -> bool:
    """Whether a history table has the column ``decoded``."""
    return DECODED in spark.table(quoted(history)).columns


def add_decoded(spark: SparkSession, history: str) -> None:
    """Add the column ``decoded`` to a history table.

    It stays null in existing rows, because their values are JSON or raw bytes and need no decoding by Python.
    """
    comment = "the value as JSON text, when its codec is not JSON"
    spark.sql(f"ALTER TABLE {quoted(history)} ADD COLUMN `{DECODED}` string COMMENT '{comment}'")


def with_decoded(rows: DataFrame) -> DataFrame:
    """Adds the column ``decoded`` to rows that have the column ``value``."""
    return rows.withColumn(DECODED, _decoded(F.col("value")))


def _decoded(value: Column) -> Column:
    return F.udf(decoded_text, "string")(value)


def decoded_text(value: bytes | None) -> str | None:
    """Returns the JSON text of a value that only Python decodes; None for other values, and for a damaged value."""
    if value is None or len(value) < 2 or BY_NUMBER.get(value[1]) not in CODED:
        return None
    try:
        text = json_text(bytes(value))
    except FormatUnknown:
        return None  # The row's typed columns become null, and the row's column `why` has the reason.
    return None if text is None else text.decode()
