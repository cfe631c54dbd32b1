"""A changelog topic in memory. It has the records that Kafka would have, and returns committed records of a range.

Offsets, aborted records and markers are as the broker makes them. The log cleaner removes at once all records that
Kafka may remove later: records with a newer record of the same key, and old tombstones. It spares records that are
younger than the compaction lag, and tombstones within their retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.assets.spark.sources.changelog import PartitionRange
from holdfast.processors.snapshots.facts import ChangelogNow, LogPartition

HOUR = 3600.0
#: Kafka's settings: ``min.compaction.lag.ms`` as processors set it, and the default of ``delete.retention.ms``.
LAG_S, RETENTION_S = HOUR, 24 * HOUR


class OffsetsLost(Exception):
    """Raised for a read of offsets that the topic does not have. Spark's Kafka source fails in this case, too."""


@dataclass(slots=True)
class Record:
    """A committed record of the changelog."""

    offset: int
    at: float
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Log:
    """One partition of the topic, from a creation of the topic to its deletion."""

    start: int = 0
    end: int = 0
    records: list[Record] = field(default_factory=list)

    def append(self, at: float, entries: Sequence[tuple[bytes, bytes | None]], *, commit: bool) -> None:
        """Append a transaction: its records, the meta record, and the marker."""
        for key, value in entries:
            if commit:
                self.records.append(Record(self.end, at, key, value))
            self.end += 1
        self.end += 2

    def clean(self, now: float) -> None:
        """Compact all records that are older than the compaction lag."""
        cleanable = [each for each in self.records if each.at < now - LAG_S]
        last = {each.key: each.offset for each in cleanable}
        first_dirty = cleanable[-1].offset + 1 if cleanable else 0
        self.records = [
            each
            for each in self.records
            if each.offset >= first_dirty
            or (each.offset == last[each.key] and (each.value is not None or each.at >= now - RETENTION_S))
        ]

    def truncate(self, start: int) -> None:
        """Delete the records of the partition before an offset."""
        self.start = max(self.start, min(start, self.end))
        self.records = [each for each in self.records if each.offset >= self.start]


class MemoryChangelog:
    """The changelog topic of a store, in memory. ``life`` is the number of times that the topic was created."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic, self.life = topic, 1
        self.logs = [Log() for _ in range(partitions)]

    @property
    def topic_id(self) -> str:
        """The topic id that the broker gave at the newest creation of the topic."""
        return f"id-{self.life}"

    def recreate(self) -> None:
        """Delete the topic and create it again, empty."""
        self.life += 1
        self.logs = [Log() for _ in self.logs]

    def look(self) -> ChangelogNow:
        """Return the changelog's facts, in the form that ``gathering.changelog_now`` returns."""
        ends = {number: LogPartition(log.start, log.end) for number, log in enumerate(self.logs)}
        return ChangelogNow(self.topic, self.topic_id, ends, RETENTION_S, LAG_S)

    def frame(self, spark: Any, ranges: Sequence[PartitionRange]) -> Any:
        """The rows that ``read_changelog`` would return for these ranges.

        Raises:
            OffsetsLost: The topic lacks some of these offsets.
        """
        rows = []
        for each in ranges:
            log = self.logs[each.partition]
            if each.start < each.end and (each.start < log.start or each.end > log.end):
                raise OffsetsLost(f"{self.topic}[{each.partition}] has [{log.start}, {log.end}), wanted {each}")
            rows += [(each.partition, record) for record in log.records if each.start <= record.offset < each.end]
        shown = [
            f"({number}, {record.offset}L, timestamp_millis({round(record.at * 1000)}L), {blob(record.key)}, "
            f"{blob(record.value)})"
            for number, record in rows
        ]
        return values(spark, "store_partition, offset, timestamp, key, value", shown, "(0, 0L, now(), X'', X'')")


def blob(value: bytes | None) -> str:
    """A SQL literal for these bytes."""
    return "CAST(NULL AS BINARY)" if value is None else f"X'{value.hex()}'"


def values(spark: Any, names: str, rows: Sequence[str], like: str) -> Any:
    """Return a DataFrame of SQL values, which needs no Spark job.

    ``like`` is a row that gives the types if there are no rows.
    """
    where = "" if rows else " WHERE false"
    return spark.sql(f"SELECT * FROM VALUES {', '.join(rows) or like} AS t({names}){where}")
