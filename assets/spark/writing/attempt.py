"""One attempt to write a snapshot of a store: its inputs, its Iceberg branches, and the rows that its steps read.

A *snapshot* here is Holdfast's snapshot of a store. An Iceberg snapshot of a table is called a *table version*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark import current, history
from holdfast.assets.spark.catalog import sides, versions
from holdfast.assets.spark.fingerprint import Prints
from holdfast.assets.spark.history import Counted
from holdfast.assets.spark.sources import changelog
from holdfast.assets.spark.sources.changelog import ChangelogSource, PartitionRange
from holdfast.assets.spark.sources.checkpoint_source import checkpoint_rows
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.snapshots.names import history_name
from holdfast.processors.snapshots.plan import FromChangelog, FromCheckpoint, SnapshotPlan


@dataclass(slots=True)
class Work:
    """One attempt to write a snapshot of a store: its inputs, the Iceberg branches that it writes, and its counts."""

    spark: SparkSession
    plan: SnapshotPlan
    source: ChangelogSource
    stored: Mapping[int, Fingerprint] | None
    #: The schema that the store declares, if any. The next field, ``schema``, is the schema with which this attempt at
    #: a snapshot really writes. The two differ if columns are inferred from the values.
    wanted: StoreSchema | None
    schema: StoreSchema | None = None
    #: The name of the table to write: the store's table, or a side table if the columns change.
    target: str = ""
    side: sides.Side | None = None
    branch: str = ""
    #: The table version (Iceberg snapshot) from which this attempt's branch was created. Another run may move main
    #: afterwards.
    begins: int | None = None
    history_ref: str = versions.MAIN
    corrections: int = 0
    #: Number of rows that this attempt at a snapshot appended to the history table, because the table lacked them.
    appended: int = 0
    began: float = 0.0
    shape: int = 0
    counted: Mapping[int, Counted] | None = None
    quarantined: Mapping[int, int] = field(default_factory=dict)
    #: Store partition -> fingerprint (hash) of the typed columns of all rows; None if this attempt writes only changed
    #: rows.
    typed: Mapping[int, Fingerprint] | None = None
    #: The fingerprints (hashes of all rows) that the table must have after the merge. None if they were not computed
    #: while changes were parsed.
    merged: Prints | None = None
    #: Function that reports the start of a step.
    doing: Callable[[str], None] = lambda step: None

    @property
    def history(self) -> str:
        """The name of the history table."""
        return history_name(self.plan.processor, self.plan.store)

    @property
    def coded(self) -> bool:
        """Whether the history has the column ``decoded``, because the store has values that SQL can't decode."""
        return history.has_decoded(self.spark, self.history)

    def changes(self) -> DataFrame:
        """The rows of the history table on the branch that this attempt writes."""
        return versions.at_version(self.spark, self.history, self.history_ref)

    def ranges(self) -> list[PartitionRange]:
        """The ranges of changelog offsets whose changes this attempt writes to the store's table."""
        return [PartitionRange(part.partition, part.start, part.end) for part in self.plan.partitions]

    def feeds(self) -> list[PartitionRange]:
        """The ranges of changelog offsets that this attempt appends to the history, because the history lacks them."""
        return [PartitionRange(part.partition, part.feed_start, part.end) for part in self.plan.partitions]

    def counted_ranges(self) -> list[PartitionRange]:
        """The ranges of changelog offsets whose records are counted in the manifest (JSON description)."""
        return self.feeds() if isinstance(self.plan.source, FromCheckpoint) else self.ranges()

    def changed(self) -> DataFrame:
        """The newest row of each key that changed after the base (the snapshot on which this attempt builds)."""
        return history.fold(self.changes().where(history.between(self.plan.generation, self.ranges())))

    def fed(self) -> Mapping[int, Counted]:
        """Maps each store partition to the counts of its changes, for the snapshot's manifest (JSON description).

        Only the first call of an attempt computes the counts, with Spark.
        """
        if self.counted is None:
            tests = history.between(self.plan.generation, self.counted_ranges())
            self.counted = history.counted(self.changes().where(tests))
        return self.counted

    def before(self) -> DataFrame:
        """All rows of the table version (Iceberg snapshot) from which the branch was created, with its columns."""
        assert self.begins is not None
        return versions.at_version(self.spark, self.plan.table, self.begins)

    def quick_to_join(self, changed: DataFrame) -> DataFrame:
        """The rows ``changed``; if they are few, with a hint that tells Spark to join them by hash in memory."""
        return current.joined_in_memory(changed) if self.are_few() else changed

    def are_few(self) -> bool:
        """Whether the changes that this attempt writes are small enough for a join in memory."""
        return sum(counted.size for counted in self.fed().values()) <= current.FEW_BYTES

    def history_tells_all(self) -> bool:
        """Whether this attempt starts the history table from the whole changelog, so that no change is missing."""
        return isinstance(self.plan.source, FromChangelog) and self.plan.history is None

    def full(self) -> DataFrame:
        """All live keys, read from the source of a full snapshot: the checkpoint or the changelog."""
        plan = self.plan
        if isinstance(plan.source, FromCheckpoint):
            rows = checkpoint_rows(self.spark, plan)
            return history.with_decoded(rows) if self.coded else rows
        read = changelog.read_changelog(self.spark, plan.topic, self.ranges(), self.source)
        changelog.require_readable(read, plan.topic)
        read = history.with_decoded(read) if self.coded else read
        return history.live(history.fold(history.as_history(read, plan.generation, history.OP)))
