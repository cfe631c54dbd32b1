"""A changelog as a DataFrame: an exact range of committed offsets.

Invariants:
    - Every partition has a literal start and end; what is read is the same however often it is read.
    - A record that can't be understood fails the read; it is never left out in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import CODEC_BYTES, CODEC_JSON, KEY_VERSION, VALUE_VERSION
from holdfast.processors.snapshots.facts import ChangelogNow

#: Spark gives a partition up when it gets nothing for so long, in milliseconds.
POLL_TIMEOUT_MS = 20_000

#: SQL: whether this code knows the formats of a record's key and value.
READABLE = (
    f"(coalesce(substring(key, 1, 1) = X'{KEY_VERSION:02x}', false) AND (value IS NULL OR ("
    f"substring(value, 1, 1) = X'{VALUE_VERSION:02x}' AND "
    f"substring(value, 2, 1) IN (X'{CODEC_JSON:02x}', X'{CODEC_BYTES:02x}'))))"
)
#: Meta records are no state.
IS_DATA = "key IS NULL OR substring(key, 1, 1) <> X'00'"


class ChangelogUnreadable(HoldfastError):
    """A changelog holds a record of a format that this code does not know."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets ``[start, end)`` of one changelog partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChangelogSource:
    """Where changelogs are read, and how to look at this one again: ``look`` gives None when the topic is gone."""

    bootstrap: str
    client_config: Mapping[str, Any]
    look: Callable[[], ChangelogNow | None]


def read_changelog(
    spark: SparkSession, topic: str, ranges: Sequence[PartitionRange], source: ChangelogSource
) -> DataFrame:
    """Columns store_partition, offset, timestamp, key, value of the ranges: committed records, without meta records.

    Args:
        spark: The session.
        topic: The changelog.
        ranges: Every partition of the topic.
        source: Where it is read.
    """
    reader = spark.read.format("kafka").option("subscribe", topic)
    options = {
        "kafka.bootstrap.servers": source.bootstrap,
        "startingOffsets": json.dumps({topic: {str(part.partition): part.start for part in ranges}}),
        "endingOffsets": json.dumps({topic: {str(part.partition): part.end for part in ranges}}),
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": "8388608",
        "kafka.fetch.max.bytes": "52428800",
        "kafka.max.poll.records": "5000",
        **{f"kafka.{name}": str(value) for name, value in source.client_config.items()},
    }
    for name, value in options.items():
        reader = reader.option(name, value)
    found = reader.load().selectExpr("partition AS store_partition", "offset", "timestamp", "key", "value")
    return found.where(IS_DATA)


def require_readable(records: DataFrame, topic: str) -> None:
    """Refuse records of an unknown format.

    Args:
        records: With columns store_partition, offset, key, value.
        topic: The changelog, for the message.

    Raises:
        ChangelogUnreadable: Names the first such record.
    """
    strange = records.where(f"NOT {READABLE}").groupBy("store_partition").agg({"*": "count", "offset": "min"})
    refuse_strange(topic, [(row["store_partition"], row["count(1)"], row["min(offset)"]) for row in strange.collect()])


def refuse_strange(topic: str, strange: Sequence[tuple[int, int, int]]) -> None:
    """The same, of what was looked at already.

    Args:
        topic: The changelog.
        strange: Of each partition that has such records: its number, how many, and the offset of the first.

    Raises:
        ChangelogUnreadable: There is one.
    """
    if strange:
        partition, _, offset = min(strange)
        raise ChangelogUnreadable(
            f"Changelog {topic}[{partition}] has a record of an unknown format at offset {offset} "
            f"({sum(records for _, records, _ in strange)} records are concerned); expected key version "
            f"{KEY_VERSION}, value version {VALUE_VERSION}. Nothing was published.",
            action="Run the Holdfast version that wrote it, or find out who else writes to the changelog.",
            topic=topic,
            partition=partition,
            offset=offset,
        )
