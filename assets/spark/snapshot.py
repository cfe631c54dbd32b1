"""A snapshot: the content of a store at one exact vector of changelog offsets, published as one table version.

    plan ─► branch ─► write ─► audit ─► fast-forward ─► tag
Killed after any step, the same plan run again converges: until the fast-forward nothing is visible, after it only the
tag is missing. The same plan run again after that commits nothing.

Invariants:
    - The snapshot id is a hash of table, topic ids and ranges; equal input is an equal snapshot.
    - A published version has passed the audit: its fingerprints are those of the fold.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from assets.spark.changelog import PartitionRange, fold_changelog, live_rows, read_changelog, require_readable
from assets.spark.fingerprint import fingerprint_partitions
from assets.spark.tables import create_table, procedure_name, quoted, table_name
from infra.errors import HoldfastError
from infra.spark.session import CATALOG, short_errors
from processors.state.fingerprint import Fingerprint

__all__ = ["PartitionRange", "PartitionResult", "SnapshotPlan", "SnapshotResult", "plan_snapshot", "write_snapshot"]

_log = structlog.get_logger("snapshot")


class SnapshotAuditFailed(HoldfastError):
    """What was written is not what was read; nothing was published."""


class SnapshotClaims(Protocol):
    """Where snapshots are recorded; the registry."""

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Mapping[str, Any], now: datetime) -> bool:
        """Begin a snapshot; False when it was begun before."""
        ...

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: datetime) -> bool:
        """Record the table version that it became."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What to snapshot, exactly."""

    table: str
    ranges: tuple[PartitionRange, ...]

    @property
    def snapshot_id(self) -> str:
        """Equal for equal table, topic ids and ranges."""
        described = json.dumps([self.table, [asdict(part) for part in self.ranges]])
        return hashlib.sha256(described.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """One changelog partition of a snapshot."""

    partition: int
    start: int
    end: int
    rows_read: int
    tombstones: int
    live_keys: int
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """A published snapshot; ``committed`` is False when it had been published before."""

    snapshot_id: str
    table: str
    iceberg_snapshot_id: int
    committed: bool
    rows: int
    partitions: tuple[PartitionResult, ...]
    seconds: float

    @property
    def fingerprints(self) -> dict[int, Fingerprint]:
        """By changelog partition."""
        return {part.partition: part.fingerprint for part in self.partitions}

    @property
    def rows_per_s(self) -> float:
        """Changelog records read for each second of the whole snapshot."""
        return sum(part.rows_read for part in self.partitions) / max(self.seconds, 1e-9)


def plan_snapshot(processor: str, store: str, ranges: Sequence[PartitionRange]) -> SnapshotPlan:
    """The plan for one store; ranges in partition order."""
    return SnapshotPlan(table_name(processor, store), tuple(sorted(ranges, key=lambda part: part.partition)))


def write_snapshot(
    spark: SparkSession,
    plan: SnapshotPlan,
    bootstrap: str,
    client_config: Mapping[str, Any],
    claims: SnapshotClaims,
) -> SnapshotResult:
    """Carry a plan out; again and again gives the same version once.

    Raises:
        ChangelogUnreadable: The changelog has records of an unknown format.
        SnapshotAuditFailed: What was written is not what was read.
        SparkFailed: The read or the write failed; nothing was published.
    """
    started = time.monotonic()
    with short_errors(f"snapshot {plan.table}"):
        create_table(spark, plan.table)
        claims.claim_snapshot(plan.snapshot_id, plan.table, {"offsets": _offsets(plan)}, datetime.now(UTC))
        found = published(spark, plan)
        committed = found is None
        if found is None:
            write_branch(spark, plan, bootstrap, client_config)
            audit_branch(spark, plan)
            publish_branch(spark, plan)
            found = published(spark, plan)
            assert found is not None
        tag(spark, plan, found[0])
        claims.finish_snapshot(plan.snapshot_id, found[0], datetime.now(UTC))
    result = _result(plan, *found, committed=committed, seconds=time.monotonic() - started)
    _log.info("snapshot", table=plan.table, id=plan.snapshot_id, committed=committed, rows=result.rows)
    return result


def published(spark: SparkSession, plan: SnapshotPlan) -> tuple[int, dict[str, str]] | None:
    """The version of main's history that is this snapshot, with its summary; None when there is none."""
    rows = spark.sql(
        f"SELECT s.snapshot_id, s.summary FROM {quoted(plan.table)}.snapshots s "
        f"JOIN {quoted(plan.table)}.history h ON s.snapshot_id = h.snapshot_id AND h.is_current_ancestor "
        f"WHERE s.summary['holdfast.id'] = '{plan.snapshot_id}'"
    ).collect()
    return (rows[0]["snapshot_id"], dict(rows[0]["summary"])) if rows else None


def write_branch(spark: SparkSession, plan: SnapshotPlan, bootstrap: str, client_config: Mapping[str, Any]) -> None:
    """Read, fold, and replace the content of the snapshot's own branch."""
    folded = fold_changelog(read_changelog(spark, plan.ranges, bootstrap, client_config)).persist()
    try:
        require_readable(folded, plan.ranges[0].topic)
        live = live_rows(folded)
        results = _measure(folded, live, plan)
        spark.sql(f"ALTER TABLE {quoted(plan.table)} CREATE OR REPLACE BRANCH `{_branch(plan)}`")
        writer = (
            live.sortWithinPartitions("store_partition", "key")
            .writeTo(f"{quoted(plan.table)}.`branch_{_branch(plan)}`")
            .option("fanout-enabled", "true")
        )
        for name, value in _summary(plan, results).items():
            writer = writer.option(f"snapshot-property.{name}", value)
        writer.overwrite(F.lit(True))
    finally:
        folded.unpersist()


def audit_branch(spark: SparkSession, plan: SnapshotPlan) -> None:
    """Compare the branch, as written, with what was folded.

    Raises:
        SnapshotAuditFailed: They differ; the published table stays as it was.
    """
    summary = spark.sql(
        f"SELECT s.summary FROM {quoted(plan.table)}.snapshots s JOIN {quoted(plan.table)}.refs r "
        f"ON s.snapshot_id = r.snapshot_id WHERE r.name = '{_branch(plan)}'"
    ).collect()[0]["summary"]
    expected = json.loads(summary["holdfast.fingerprints"])
    branch = spark.sql(f"SELECT * FROM {quoted(plan.table)} VERSION AS OF '{_branch(plan)}'")
    written = {str(part): print_.hex for part, print_ in fingerprint_partitions(branch).items()}
    empty = Fingerprint().hex
    differing = [part for part, text in expected.items() if written.get(part, empty) != text]
    differing += [part for part in written if part not in expected]
    if differing:
        raise SnapshotAuditFailed(
            f"Snapshot {plan.snapshot_id} of {plan.table}: partitions {', '.join(differing)} were written with other "
            "fingerprints than were read. Nothing was published.",
            action="Run the snapshot again; if it fails again, the storage loses or changes data.",
            table=plan.table,
            partitions=",".join(differing),
        )


def publish_branch(spark: SparkSession, plan: SnapshotPlan) -> None:
    """The one visible step: main becomes the branch."""
    table = procedure_name(plan.table)
    spark.sql(f"CALL {CATALOG}.system.fast_forward('{table}', 'main', '{_branch(plan)}')").collect()


def tag(spark: SparkSession, plan: SnapshotPlan, iceberg_snapshot_id: int) -> None:
    """Name the version for ever, and take the branch away."""
    spark.sql(
        f"ALTER TABLE {quoted(plan.table)} CREATE TAG IF NOT EXISTS `snap-{plan.snapshot_id}` "
        f"AS OF VERSION {iceberg_snapshot_id}"
    )
    spark.sql(f"ALTER TABLE {quoted(plan.table)} DROP BRANCH IF EXISTS `{_branch(plan)}`")


def table_fingerprints(spark: SparkSession, plan: SnapshotPlan) -> dict[int, Fingerprint]:
    """The fingerprints of the published version, computed from the table itself."""
    with short_errors(f"audit {plan.table}"):
        rows = spark.sql(f"SELECT * FROM {quoted(plan.table)} VERSION AS OF 'snap-{plan.snapshot_id}'")
        found = fingerprint_partitions(rows)
    return {part.partition: found.get(part.partition, Fingerprint()) for part in plan.ranges}


def _branch(plan: SnapshotPlan) -> str:
    return f"audit_{plan.snapshot_id}"


def _offsets(plan: SnapshotPlan) -> dict[str, int]:
    return {str(part.partition): part.end for part in plan.ranges}


def _measure(folded: DataFrame, live: DataFrame, plan: SnapshotPlan) -> list[PartitionResult]:
    prints = fingerprint_partitions(live)
    counted = {
        row["store_partition"]: row
        for row in folded.groupBy("store_partition")
        .agg(F.sum("updates").alias("updates"), F.sum("tombstones").alias("tombstones"))
        .collect()
    }
    results = []
    for part in plan.ranges:
        row = counted.get(part.partition)
        print_ = prints.get(part.partition, Fingerprint())
        read, deleted = (row["updates"], row["tombstones"]) if row is not None else (0, 0)
        results.append(PartitionResult(part.partition, part.start, part.end, read, deleted, print_.count, print_))
    return results


def _summary(plan: SnapshotPlan, results: Sequence[PartitionResult]) -> dict[str, str]:
    return {
        "holdfast.id": plan.snapshot_id,
        "holdfast.topic": plan.ranges[0].topic,
        "holdfast.offsets": json.dumps(_offsets(plan)),
        "holdfast.topic-ids": json.dumps({str(part.partition): part.topic_id for part in plan.ranges}),
        "holdfast.rows": json.dumps({str(part.partition): part.live_keys for part in results}),
        "holdfast.read": json.dumps({str(part.partition): [part.rows_read, part.tombstones] for part in results}),
        "holdfast.fingerprints": json.dumps({str(part.partition): part.fingerprint.hex for part in results}),
    }


def _result(
    plan: SnapshotPlan, iceberg_snapshot_id: int, summary: Mapping[str, str], *, committed: bool, seconds: float
) -> SnapshotResult:
    prints = json.loads(summary["holdfast.fingerprints"])
    read = json.loads(summary["holdfast.read"])
    parts = []
    for part in plan.ranges:
        count, xor, total = prints[str(part.partition)].split("-")
        rows_read, tombstones = read[str(part.partition)]
        print_ = Fingerprint(int(count), int(xor, 16), int(total, 16))
        parts.append(PartitionResult(part.partition, part.start, part.end, rows_read, tombstones, print_.count, print_))
    return SnapshotResult(
        plan.snapshot_id,
        plan.table,
        iceberg_snapshot_id,
        committed,
        sum(part.live_keys for part in parts),
        tuple(parts),
        round(seconds, 3),
    )
