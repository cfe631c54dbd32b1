"""A snapshot: the content of a store at one exact vector of changelog offsets, published as one table version.

    plan ─► feed the history ─► write ─► audit ─► seal ─┬─► publish the history ─► publish the table ─► record ─► tag
            (each on a branch of this attempt alone)     └─ nothing is visible until here

Killed after any step, the same plan run again converges. Two runs of one plan write to branches of their own; main
becomes one of them, and the other one finds it published.

Invariants:
    - A published version has passed the audit: it holds what the owner holds, where that is known, and what was read.
    - The manifest is sealed into the version with what was measured on the branch, as written.
    - The history is published first: it may be ahead of the table, never behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark import changelog, current, history, versions
from holdfast.assets.spark.changelog import ChangelogSource, PartitionRange, read_changelog
from holdfast.assets.spark.fingerprint import fingerprint_partitions, fingerprint_replacing
from holdfast.assets.spark.quarantine import write_quarantine
from holdfast.assets.spark.records import record_snapshot
from holdfast.assets.spark.sources import checkpoint_rows
from holdfast.assets.spark.tables import create_history, create_table
from holdfast.assets.spark.typed import evolve_table, resolve_schema, type_rows
from holdfast.assets.spark.views import create_views
from holdfast.infra.errors import HoldfastError
from holdfast.infra.spark.progress import Narrator
from holdfast.infra.spark.session import short_errors
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.snapshots.manifest import (
    CHANGELOG,
    CHECKPOINT,
    ID_PROPERTY,
    INCREMENTAL,
    MANIFEST_PROPERTY,
    PartitionManifest,
    SnapshotManifest,
)
from holdfast.processors.snapshots.names import BRANCH, history_name, quarantine_name, snapshot_tag
from holdfast.processors.snapshots.plan import SnapshotPlan, check_read, gap_free

__all__ = ["SnapshotAuditFailed", "SnapshotClaims", "SnapshotResult", "write_snapshot"]

_log = structlog.get_logger("snapshot")
#: So often a snapshot begins again when others publish to its table, such as maintenance does.
ATTEMPTS = 3
_MASK = (1 << 64) - 1
#: Which rows each source reads, for people.
_READ = {INCREMENTAL: "what changed", CHECKPOINT: "the owner's checkpoint", CHANGELOG: "the whole changelog"}


class SnapshotAuditFailed(HoldfastError):
    """What was written is not what the owner holds, or not what was read; nothing was published."""


class SnapshotClaims(Protocol):
    """Where snapshots are recorded; the registry."""

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Mapping[str, Any], now: datetime) -> bool:
        """Begin a snapshot; False when it was begun before."""
        ...

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: datetime) -> bool:
        """Record the table version that it became."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """A published snapshot; ``committed`` is False when it had been published before. ``corrections`` is how many keys
    of the history had to be set right by what the store holds, all of them when there were no changes to read."""

    manifest: SnapshotManifest
    version: int
    committed: bool
    corrections: int
    seconds: float
    #: Bytes of the table's files.
    size: int = 0
    #: The typed columns; where they are inferred, as this snapshot found them.
    schema: StoreSchema | None = None

    @property
    def rows_per_s(self) -> float:
        """Rows of the table and records of the changelog handled, for each second of the whole snapshot."""
        handled = self.manifest.records + (self.manifest.rows if self.manifest.source == CHECKPOINT else 0)
        return handled / max(self.seconds, 1e-9)


@dataclass(slots=True)
class Work:
    """One attempt: what is written, where, and what was found on the way."""

    spark: SparkSession
    plan: SnapshotPlan
    source: ChangelogSource
    stored: Mapping[int, Fingerprint] | None
    schema: StoreSchema | None
    branch: str = ""
    history_ref: str = versions.MAIN
    corrections: int = 0
    began: float = 0.0
    shape: int = 0
    counted: Mapping[int, history.Counted] | None = None
    quarantined: Mapping[int, int] = field(default_factory=dict)
    #: Told what is done from now on.
    doing: Callable[[str], None] = lambda what: None

    @property
    def history(self) -> str:
        """The table of changes."""
        return history_name(self.plan.processor, self.plan.store)

    def changes(self) -> DataFrame:
        """The history as this attempt sees it."""
        return versions.at_version(self.spark, self.history, self.history_ref)

    def ranges(self) -> list[PartitionRange]:
        """What the plan reads of the changelog."""
        return [PartitionRange(part.partition, part.start, part.end) for part in self.plan.partitions]

    def feeds(self) -> list[PartitionRange]:
        """What the history lacks of it."""
        return [PartitionRange(part.partition, part.feed_start, part.end) for part in self.plan.partitions]

    def counted_ranges(self) -> list[PartitionRange]:
        """What the manifest counts."""
        return self.feeds() if self.plan.source == CHECKPOINT else self.ranges()


def write_snapshot(
    spark: SparkSession,
    plan: SnapshotPlan,
    source: ChangelogSource,
    claims: SnapshotClaims,
    *,
    stored: Mapping[int, Fingerprint] | None = None,
    schema: StoreSchema | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> SnapshotResult:
    """Carry a plan out; again and again gives the same version once.

    Args:
        spark: The session.
        plan: What to do.
        source: Where the changelog is read.
        claims: Where it is recorded.
        stored: What the owner's checkpoint holds, by partition: nothing else is published.
        schema: What the store's values are declared to be.
        tell: Told every few seconds what is done, how far it is, and for how long.

    Raises:
        ChangelogUnreadable: The changelog has records of an unknown format.
        ChangelogMoved: It was truncated, made anew or compacted while it was read.
        SnapshotAuditFailed: What was written is not what the owner holds.
        TableMoved: Another snapshot was published meanwhile.
        SparkFailed: The read or the write failed; nothing was published.
    """
    started = time.monotonic()
    narrator = Narrator(spark, tell)
    with short_errors(f"snapshot {plan.table}"), current.aligned_plans(spark), narrator.telling():
        create_table(spark, plan.table)
        create_history(spark, history_name(plan.processor, plan.store))
        claims.claim_snapshot(plan.snapshot_id, plan.table, {"source": plan.source, "why": plan.why}, datetime.now(UTC))
        seen = versions.Versions.of(spark, plan.table)
        found = seen.snapshot(plan.snapshot_id)
        committed, corrections = False, 0
        found_schema = schema
        if found is None:
            work = Work(spark, plan, source, stored, schema, doing=narrator.doing)
            committed = _publish(work)
            corrections, found_schema = work.corrections, work.schema
            create_views(spark, plan.processor, plan.store, work.schema)
            seen = versions.Versions.of(spark, plan.table)
            found = seen.snapshot(plan.snapshot_id)
            assert found is not None, "it was published just now"
        narrator.doing(f"recording snapshot {plan.snapshot_id} of {plan.table}")
        record_snapshot(spark, found.manifest)
        versions.set_tag(spark, plan.table, snapshot_tag(plan.snapshot_id), found.version)
        _drop_branches(spark, plan, seen)
        claims.finish_snapshot(plan.snapshot_id, found.version, datetime.now(UTC))
        size = int(seen.summaries[found.version].get("total-files-size", 0))
    seconds = round(time.monotonic() - started, 3)
    result = SnapshotResult(found.manifest, found.version, committed, corrections, seconds, size, found_schema)
    _log.info("snapshot", table=plan.table, id=plan.snapshot_id, committed=committed, rows=found.manifest.rows)
    return result


def _drop_branches(spark: SparkSession, plan: SnapshotPlan, seen: versions.Versions) -> None:
    """Of this attempt, and of all that broke off: none of them can be published any more."""
    versions.drop_branches(spark, plan.table, seen.branches(BRANCH))
    changes = history_name(plan.processor, plan.store)
    versions.drop_branches(spark, changes, versions.branches_of(spark, changes, BRANCH))


def _publish(work: Work) -> bool:
    """Write, audit and publish; whether it was this attempt that did."""
    spark, plan = work.spark, work.plan
    for attempt in range(ATTEMPTS):
        try:
            feed_history(work)
            write_branch(work)
            seal(work, audit_branch(work))
            publish_history(work)
            publish_table(work)
        except versions.TableMoved:
            seen = versions.Versions.of(spark, plan.table)
            if seen.snapshot(plan.snapshot_id) is not None:
                return False
            newest = next(seen.published(), None)
            same = (newest.manifest.snapshot_id if newest else None) == (plan.base.snapshot_id if plan.base else None)
            if not same or attempt == ATTEMPTS - 1:
                raise
        else:
            return True
    raise AssertionError("unreachable")


def feed_history(work: Work) -> None:
    """Append what the changelog has and the history lacks, on a branch of the history."""
    plan, table = work.plan, work.history
    new = sum(max(0, part.end - part.feed_start) for part in plan.partitions)
    work.doing(f"reading {new:,} offsets of {plan.topic} into {table}")
    seen = versions.Versions.of(work.spark, table)
    work.began, work.counted = time.time(), None
    if history.has_fed(seen, plan.snapshot_id):
        work.history_ref = versions.MAIN
        return
    head = history.history_head(seen)
    if head != plan.history:
        raise versions.TableMoved(
            f"The history {table} was fed by another snapshot since this one was planned.",
            action="Run it again; it goes on from what is published now.",
            table=table,
        )
    work.history_ref = versions.new_branch(work.spark, table, plan.snapshot_id)
    rows = history.changes(work.spark, plan, work.source)
    if rows is None:
        rows = work.changes().where("false")
    history.append_history(rows, table, work.history_ref, plan)
    fed = history.counted(work.changes().where(history.between(plan.generation, work.feeds())))
    changelog.refuse_strange(
        plan.topic,
        [(number, each.strange, each.first_strange) for number, each in fed.items() if each.first_strange is not None],
    )
    if work.counted_ranges() == work.feeds():
        work.counted = fed


def write_branch(work: Work) -> None:
    """Make the branch of the table what the plan says; a full snapshot sets the history right, too."""
    spark, plan = work.spark, work.plan
    work.doing(f"writing {plan.table} from {_READ[plan.source]}")
    work.branch = versions.new_branch(spark, plan.table, plan.snapshot_id)
    if plan.incremental:
        changed = _changed(work)
        shape_rows(work, changed)
        current.merge(spark, changed, plan.table, work.branch, work.schema, few=_are_few(work))
    elif _history_tells_all(plan):
        fresh = work.changes().where(f"generation = {plan.generation}")
        rows = history.live(history.fold(fresh))
        shape_rows(work, rows)
        current.replace_all(rows, plan.table, work.branch, work.schema)
    else:
        _replace_and_correct(work)
    check_read(plan, work.source.look(), work.began, time.time())


def shape_rows(work: Work, rows: DataFrame) -> None:
    """Give the table the columns that these values need, and put aside, with the reason, those that don't fit."""
    spark, plan = work.spark, work.plan
    work.shape = plan.schema_version
    if work.schema is None:
        return
    plain = current.current_rows(rows)
    if work.schema.inferred:
        work.schema = resolve_schema(spark, plan.table, work.schema, plain)
        work.shape = evolve_table(spark, plan.table, work.schema)
    quarantine = quarantine_name(plan.processor, plan.store)
    work.quarantined = write_quarantine(spark, quarantine, type_rows(plain, work.schema), plan.snapshot_id)


def _moment(plan: SnapshotPlan) -> str:
    """SQL: when the owner was at the plan's offsets."""
    return f"timestamp_micros({round(plan.taken_at * 1e6)})"


def _history_tells_all(plan: SnapshotPlan) -> bool:
    """Whether the first snapshot is from the whole changelog, which the history was just fed with."""
    return plan.source == CHANGELOG and plan.history is None


def _replace_and_correct(work: Work) -> None:
    """Replace the table by what the source holds, and append to the history what its changes do not tell."""
    plan = work.plan
    wanted = _wanted(work)
    both = current.with_differences(wanted, _known(work)).persist()
    try:
        differing = both.where("differs")
        if work.history_ref != versions.MAIN and not differing.isEmpty():
            ends = " ".join(f"WHEN {part.partition} THEN {part.end}" for part in plan.partitions)
            rows = differing.selectExpr(
                "store_partition",
                f"cast(CASE store_partition {ends} END AS bigint) AS offset",
                f"{_moment(plan)} AS timestamp",
                "key",
                "value",
            )
            op = f"if(value IS NULL, '{history.BASE_DELETE}', '{history.BASE}')"
            history.append_history(history.as_history(rows, plan.generation, op), work.history, work.history_ref, plan)
        rows = both.where("value IS NOT NULL")
        shape_rows(work, rows)
        current.replace_all(rows, plan.table, work.branch, work.schema)
    finally:
        both.unpersist()


def _wanted(work: Work) -> DataFrame:
    """What the source holds."""
    plan = work.plan
    if plan.source == CHECKPOINT:
        return checkpoint_rows(work.spark, plan)
    read = read_changelog(work.spark, plan.topic, work.ranges(), work.source)
    changelog.require_readable(read, plan.topic)
    return history.live(
        history.fold(
            history.as_history(read, plan.generation, f"if(value IS NULL, '{history.DELETE}', '{history.PUT}')")
        )
    )


def _known(work: Work) -> DataFrame:
    """What the history tells, once it is fed."""
    plan = work.plan
    unfinished = plan.history is not None and (plan.base is None or plan.history.snapshot_id != plan.base.snapshot_id)
    if plan.base is None or unfinished or work.history_ref == versions.MAIN:
        return history.live(history.fold(work.changes()))
    before = versions.at_version(work.spark, plan.table, versions.MAIN)
    return current.known_after(before, work.changes().where(history.between(plan.generation, work.feeds())))


def audit_branch(work: Work) -> dict[int, Fingerprint]:
    """Measure the branch, as written, and compare it with what the owner holds; else with what was read.

    Raises:
        SnapshotAuditFailed: They differ; the published table stays as it was.
    """
    plan = work.plan
    work.doing(f"auditing {plan.table} as it was written")
    found = fingerprint_partitions(versions.at_version(work.spark, plan.table, work.branch))
    expected = work.stored if work.stored is not None else _expected(work)
    empty = Fingerprint()
    differing = [n for n in sorted({*expected, *found}) if found.get(n, empty) != expected.get(n, empty)]
    if differing:
        said = "; ".join(
            f"partition {n} has {found.get(n, empty).hex}, expected {expected.get(n, empty).hex}" for n in differing
        )
        against = "the owner's checkpoint holds" if work.stored is not None else "was read"
        raise SnapshotAuditFailed(
            f"Snapshot {plan.snapshot_id} of {plan.table} ({plan.source}) is not what {against}: {said}. Nothing was "
            "published.",
            action=f"Prove the store against its changelog: holdfast audit {plan.processor}. If they agree, take a "
            "full snapshot; if that fails, too, the storage loses or changes data.",
            table=plan.table,
            partitions=differing,
        )
    return {part.partition: found.get(part.partition, empty) for part in plan.partitions}


def _expected(work: Work) -> dict[int, Fingerprint]:
    """What has to be on the branch, computed another way than it was written."""
    plan, spark = work.plan, work.spark
    if not plan.incremental:
        if _history_tells_all(plan):
            return fingerprint_partitions(history.live(history.fold(work.changes())))
        return fingerprint_partitions(_wanted(work))
    assert plan.base is not None
    changed = current.joined_in_memory(_changed(work)) if _are_few(work) else _changed(work)
    return expected_after(plan.base, versions.at_version(spark, plan.table, versions.MAIN), changed)


def _changed(work: Work) -> DataFrame:
    """The newest row of each key that changed since the base."""
    return history.fold(work.changes().where(history.between(work.plan.generation, work.ranges())))


def _are_few(work: Work) -> bool:
    """Whether memory holds what changed."""
    return sum(counted.size for counted in _counted(work).values()) <= current.FEW_BYTES


def expected_after(base: SnapshotManifest, before: DataFrame, changed: DataFrame) -> dict[int, Fingerprint]:
    """What a merge has to give: the base's fingerprints without what was replaced, and with what is new."""
    found = fingerprint_replacing(changed, history.LIVE, before)
    nothing = (Fingerprint(), Fingerprint())
    expected = {}
    for number, known in base.fingerprints.items():
        replaced, new = found.get(number, nothing)
        expected[number] = _minus(known, replaced) + new
    return expected


def _minus(one: Fingerprint, other: Fingerprint) -> Fingerprint:
    return Fingerprint(one.count - other.count, one.xor ^ other.xor, (one.total - other.total) & _MASK)


def seal(work: Work, measured: Mapping[int, Fingerprint]) -> None:
    """Put the manifest on the branch, as a version of its own without rows."""
    plan = work.plan
    work.doing(f"sealing and publishing {plan.table}")
    counted = _counted(work)
    if not plan.incremental:
        base = f"op IN ('{history.BASE}', '{history.BASE_DELETE}') AND timestamp = {_moment(plan)}"
        work.corrections = work.changes().where(f"generation = {plan.generation} AND {base}").count()
    gapless = not work.corrections and gap_free(plan, work.source.look(), time.time())
    manifest = SnapshotManifest(
        snapshot_id=plan.snapshot_id,
        processor=plan.processor,
        store=plan.store,
        table=plan.table,
        source=plan.source,
        base=plan.base.snapshot_id if plan.incremental and plan.base is not None else None,
        why=plan.why,
        taken_at=plan.taken_at,
        code_version=plan.code_version,
        state_format=plan.state_format,
        schema_version=work.shape,
        topic=plan.topic,
        generation=plan.generation,
        partitions=tuple(
            PartitionManifest(
                partition=part.partition,
                topic_id=part.topic_id,
                log_start=part.log_start,
                start=part.start,
                end=part.end,
                records=counted.get(part.partition, history.Counted()).records,
                tombstones=counted.get(part.partition, history.Counted()).tombstones,
                live_keys=measured[part.partition].count,
                fingerprint=measured[part.partition],
                inputs=part.inputs,
                sources=part.sources,
                quarantined=work.quarantined.get(part.partition, 0),
            )
            for part in plan.partitions
        ),
        covers_from=plan.base.covers_from if gapless and plan.base is not None else plan.taken_at,
    )
    seal_branch(work.spark, plan.table, work.branch, manifest)


def seal_branch(spark: SparkSession, table: str, branch: str, manifest: SnapshotManifest) -> None:
    """A version without rows, whose summary has the manifest."""
    (
        versions.at_version(spark, table, branch)
        .where("false")
        .writeTo(versions.branch_table(table, branch))
        .option(f"snapshot-property.{ID_PROPERTY}", manifest.snapshot_id)
        .option(f"snapshot-property.{MANIFEST_PROPERTY}", manifest.encode())
        .append()
    )


def _counted(work: Work) -> Mapping[int, history.Counted]:
    """What was read, by partition: the rows of the history in what the manifest counts; looked at once."""
    if work.counted is None:
        tests = history.between(work.plan.generation, work.counted_ranges())
        work.counted = history.counted(work.changes().where(tests))
    return work.counted


def publish_history(work: Work) -> None:
    """The changes become visible; the table follows at once."""
    if work.history_ref == versions.MAIN:
        return
    try:
        versions.fast_forward(work.spark, work.history, work.history_ref)
    except versions.TableMoved:
        if not history.has_fed(versions.Versions.of(work.spark, work.history), work.plan.snapshot_id):
            raise


def publish_table(work: Work) -> None:
    """The one step that readers of the table see: main becomes the branch."""
    versions.fast_forward(work.spark, work.plan.table, work.branch)
