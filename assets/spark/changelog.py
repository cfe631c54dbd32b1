"""A changelog as DataFrames: an exact range of committed offsets, folded to the newest value of each key.

Invariants:
    - Every partition has a literal start and end; what is read is the same however often it is read.
    - A record that can't be understood fails the read; it is never left out in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from infra.errors import HoldfastError
from processors.changelog.format import CODEC_BYTES, CODEC_JSON, KEY_VERSION, VALUE_VERSION

#: Spark gives a partition up when it gets nothing for so long, in milliseconds.
POLL_TIMEOUT_MS = 20_000

_READABLE = (
    f"coalesce(substring(key, 1, 1) = X'{KEY_VERSION:02x}', false) AND (value IS NULL OR ("
    f"substring(value, 1, 1) = X'{VALUE_VERSION:02x}' AND "
    f"substring(value, 2, 1) IN (X'{CODEC_JSON:02x}', X'{CODEC_BYTES:02x}')))"
)


class ChangelogUnreadable(HoldfastError):
    """A changelog holds a record of a format that this code does not know."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets ``[start, end)`` of one changelog partition, and which topic that is about."""

    partition: int
    start: int
    end: int
    topic: str
    topic_id: str


def read_changelog(
    spark: SparkSession, ranges: Sequence[PartitionRange], bootstrap: str, client_config: Mapping[str, Any]
) -> DataFrame:
    """Columns partition, offset, timestamp, key, value of the ranges, committed records only.

    Args:
        spark: The session.
        ranges: Every partition of one topic.
        bootstrap: Kafka's bootstrap servers.
        client_config: Security settings, as librdkafka names them.
    """
    topic = ranges[0].topic
    reader = spark.read.format("kafka").option("subscribe", topic).option("kafka.bootstrap.servers", bootstrap)
    options = {
        "startingOffsets": json.dumps({topic: {str(part.partition): part.start for part in ranges}}),
        "endingOffsets": json.dumps({topic: {str(part.partition): part.end for part in ranges}}),
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": "8388608",
        "kafka.fetch.max.bytes": "52428800",
        "kafka.max.poll.records": "5000",
        **{f"kafka.{name}": str(value) for name, value in client_config.items()},
    }
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load().select("partition", "offset", "timestamp", "key", "value")


def fold_changelog(records: DataFrame) -> DataFrame:
    """One row for each key that ever was: its newest record, how many there were, and the first unreadable offset.

    ``value`` is null for a deleted key. Meta records (keys of format 0) are left out.
    """
    return (
        records.where("key IS NULL OR substring(key, 1, 1) <> X'00'")
        .selectExpr("*", f"if({_READABLE}, NULL, offset) AS strange")
        .groupBy("partition", "key")
        .agg(
            *_expressions(
                "max(struct(offset, timestamp, value)) AS newest",
                "count(1) AS updates",
                "count_if(value IS NULL) AS tombstones",
                "min(strange) AS strange",
            )
        )
        .selectExpr(
            "partition AS store_partition",
            "key",
            "newest.value AS value",
            "newest.offset AS offset",
            "newest.timestamp AS changelog_timestamp",
            "updates",
            "tombstones",
            "strange",
        )
    )


def require_readable(folded: DataFrame, topic: str) -> None:
    """Refuse a fold that met records of an unknown format.

    Raises:
        ChangelogUnreadable: Names the first such record.
    """
    strange = folded.where("strange IS NOT NULL").selectExpr(
        "count(1) AS keys", "min(struct(strange, store_partition)) AS first"
    )
    row = strange.collect()[0]
    if row["keys"]:
        partition, offset = row["first"]["store_partition"], row["first"]["strange"]
        raise ChangelogUnreadable(
            f"Changelog {topic}[{partition}] has a record of an unknown format at offset {offset} "
            f"({row['keys']} keys are concerned); expected key version {KEY_VERSION}, value version {VALUE_VERSION}.",
            action="Run the Holdfast version that wrote it, or find out who else writes to the changelog.",
            topic=topic,
            partition=partition,
            offset=offset,
        )


def live_rows(folded: DataFrame) -> DataFrame:
    """The keys that have a value, with the columns of the warehouse table."""
    length = "conv(hex(substring(key, 2, 4)), 16, 10)"
    event_ms = "conv(hex(substring(value, 3, 8)), 16, 10)"
    return folded.where("value IS NOT NULL").selectExpr(
        "store_partition",
        "key",
        "value",
        f"decode(substring(key, 6, cast({length} AS int)), 'UTF-8') AS message_key",
        f"decode(substring(key, 6 + cast({length} AS int), length(key)), 'UTF-8') AS state_key",
        f"if(substring(value, 2, 1) = X'{CODEC_JSON:02x}', decode(substring(value, 11, length(value)), 'UTF-8'), NULL)"
        " AS json",
        "offset",
        "changelog_timestamp",
        f"if(try_cast({event_ms} AS bigint) IS NULL, NULL, timestamp_millis(try_cast({event_ms} AS bigint)))"
        " AS event_timestamp",
    )


def _expressions(*texts: str) -> list[Any]:
    from pyspark.sql import functions

    return [functions.expr(text) for text in texts]
