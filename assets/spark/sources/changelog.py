"""Reads the committed records of a changelog as a Spark DataFrame, from a fixed range of offsets in each partition.

Invariants:
    - Every partition has a fixed start and end, so each read of a range gives the same records.
    - A record in an unknown format makes the read fail, and is never skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.clients.java_settings import java_settings
from holdfast.processors.engine.changelog.codec_table import CODECS, CODED
from holdfast.processors.engine.changelog.codecs import Codec
from holdfast.processors.engine.changelog.format import KEY_VERSION, VALUE_VERSION
from holdfast.processors.snapshots.facts import ChangelogNow

#: Milliseconds after which Spark fails the read of a partition that returns no record.
POLL_TIMEOUT_MS = 20_000
#: Maximum milliseconds that a broker waits for more records. The time is short, because all records of a range exist
#: already. Most ranges end with a transaction marker; there, a fetch finds no record and waits for this whole time.
FETCH_WAIT_MS = 20


def _numbers(codecs: Iterable[Codec]) -> str:
    return ", ".join(f"X'{each.number:02x}'" for each in codecs)


#: SQL: the list of the codecs that this release of Holdfast knows.
KNOWN_CODECS = _numbers(CODECS.values())
#: SQL condition that is true for a value that only Python, not SQL, can decode.
IS_CODED = f"substring(value, 2, 1) IN ({_numbers(CODED)})"
#: SQL condition that is true if this code knows the formats of the record's key and value.
READABLE = (
    f"(coalesce(substring(key, 1, 1) = X'{KEY_VERSION:02x}', false) AND (value IS NULL OR ("
    f"substring(value, 1, 1) = X'{VALUE_VERSION:02x}' AND "
    f"substring(value, 2, 1) IN ({KNOWN_CODECS}))))"
)
#: SQL condition that is true if the record has data; a meta record has the input offsets of a commit instead.
IS_DATA = "key IS NULL OR substring(key, 1, 1) <> X'00'"


class ChangelogUnreadable(HoldfastError):
    """A changelog contains a record in a format that this code does not know."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets ``[start, end)`` of one changelog partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChangelogSource:
    """The Kafka cluster of a changelog.

    ``look`` is a function that returns the changelog's present facts; None if the topic does not exist.
    """

    bootstrap: str
    client_config: Mapping[str, Any]
    look: Callable[[], ChangelogNow | None]


def read_changelog(
    spark: SparkSession, topic: str, ranges: Sequence[PartitionRange], source: ChangelogSource
) -> DataFrame:
    """The committed records of the ranges, without meta records (which contain only the input offsets of a commit).

    The columns are store_partition, offset, timestamp, key and value. ``ranges`` must have every partition of the
    topic.
    """
    reader = spark.read.format("kafka").option("subscribe", topic)
    options = {
        "kafka.bootstrap.servers": source.bootstrap,
        "startingOffsets": json.dumps({topic: {str(part.partition): part.start for part in ranges}}),
        "endingOffsets": json.dumps({topic: {str(part.partition): part.end for part in ranges}}),
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
        "kafka.max.partition.fetch.bytes": "8388608",
        "kafka.fetch.max.bytes": "52428800",
        "kafka.max.poll.records": "5000",
        **{f"kafka.{name}": value for name, value in java_settings(source.client_config).items()},
    }
    for name, value in options.items():
        reader = reader.option(name, value)
    found = reader.load().selectExpr("partition AS store_partition", "offset", "timestamp", "key", "value")
    return found.where(IS_DATA)


def require_readable(records: DataFrame, topic: str) -> None:
    """Raises ChangelogUnreadable if a record (store_partition, offset, key, value) has an unknown format."""
    strange = records.where(f"NOT {READABLE}").groupBy("store_partition").agg({"*": "count", "offset": "min"})
    refuse_strange(topic, [(row["store_partition"], row["count(1)"], row["min(offset)"]) for row in strange.collect()])


def refuse_strange(topic: str, strange: Sequence[tuple[int, int, int]]) -> None:
    """Raises ChangelogUnreadable if ``strange`` is not empty.

    ``strange`` describes records in an unknown format, as (partition, number of such records, their first offset).
    """
    if strange:
        partition, _, offset = min(strange)
        raise ChangelogUnreadable(
            f"Changelog {topic}[{partition}] has a record of an unknown format at offset {offset} "
            f"({sum(records for _, records, _ in strange)} such records in all); expected key version {KEY_VERSION}, "
            f"value version {VALUE_VERSION}. Nothing was published.",
            action="Use the Holdfast version that wrote the record; if none did, find the other program that writes to "
            "the changelog.",
            topic=topic,
            partition=partition,
            offset=offset,
        )
