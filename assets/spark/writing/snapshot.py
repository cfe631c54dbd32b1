"""Writes a snapshot: the state of a store at one changelog offset per partition, as one version of its table.

A *snapshot* here is always Holdfast's snapshot of a store. An Iceberg snapshot of a table is called a *version*.

    plan ─► feed the history ─► write ─► audit ─► seal ─┬─► publish the history ─► publish the table ─► record ─► tag
            (each attempt on its own branch)            └─ readers see nothing until here

A run that is killed after any step can run again and gives the same result. If two runs write the same plan, each
writes to its own branch. The branch of one run becomes main; the other run then finds that the snapshot is published.

Invariants:
    - A published version has passed the audit: it equals the worker's checkpoint or, without one, the records read.
    - The manifest has the fingerprints that were measured on the written branch.
    - The history is published before the table. So the history may contain later changes than the table, but never
      lacks a change that the table has.
    - Readers see a renamed, dropped or recreated column only together with its values (``assets.spark.catalog.sides``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark import current, history, shapes
from holdfast.assets.spark.catalog import sides, versions
from holdfast.assets.spark.catalog.quarantine import keep_attempt, write_quarantine
from holdfast.assets.spark.catalog.records import record_snapshot, recorded_so_far
from holdfast.assets.spark.catalog.tables import create_history, create_table
from holdfast.assets.spark.fingerprint import Prints, typed_hash, typed_prints, typed_prints_after
from holdfast.assets.spark.history_views import create_views
from holdfast.assets.spark.sources import changelog
from holdfast.assets.spark.sources.changelog import ChangelogSource
from holdfast.assets.spark.typed import type_rows
from holdfast.assets.spark.writing.attempt import Work
from holdfast.assets.spark.writing.branch_audit import audit_branch
from holdfast.infra.spark.progress import Narrator
from holdfast.infra.spark.session import short_errors
from holdfast.processors.engine.schema.evolution import in_table_order
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.snapshots.chain import CHAIN_PROPERTY, chain_link
from holdfast.processors.snapshots.manifest import (
    ATTEMPT_PROPERTY,
    CHANGELOG,
    CHECKPOINT,
    ID_PROPERTY,
    INCREMENTAL,
    MANIFEST_PROPERTY,
    PartitionManifest,
    SnapshotManifest,
)
from holdfast.processors.snapshots.names import branch_name, history_name, quarantine_name, snapshot_tag
from holdfast.processors.snapshots.plan import SnapshotPlan, check_read, has_every_change

_log = structlog.get_logger("snapshot")
#: Maximum number of attempts at a snapshot if other runs, for example maintenance, change its table at the same time.
ATTEMPTS = 3
#: Source of a snapshot -> text about the rows that are read from it, for progress lines.
_READ = {INCREMENTAL: "the changed keys", CHECKPOINT: "the worker's checkpoint", CHANGELOG: "the whole changelog"}


class SnapshotClaims(Protocol):
    """Records the start and end of snapshots; Holdfast's registry implements it."""

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Mapping[str, Any], now: datetime) -> bool:
        """Record the start of a snapshot; returns False if it was already recorded."""

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: datetime) -> bool:
        """Record the end of a Holdfast snapshot, with the id of the Iceberg snapshot that contains its rows."""


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """A published snapshot; ``committed`` is False if an earlier run published it.

    ``corrections`` is the number of keys whose value came from the checkpoint, because the changelog lacked the value.
    """

    manifest: SnapshotManifest
    version: int
    committed: bool
    corrections: int
    seconds: float
    #: Total bytes of the table's files.
    size: int = 0
    #: The schema with the typed columns; for an inferred schema, the columns that this snapshot found.
    schema: StoreSchema | None = None

    @property
    def rows_per_s(self) -> float:
        """Speed of the snapshot: table rows plus changelog records, per second of its whole duration."""
        handled = self.manifest.records + (self.manifest.rows if self.manifest.source == CHECKPOINT else 0)
        return handled / max(self.seconds, 1e-9)


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
    """Write and publish the snapshot of a plan; repeated runs of one plan publish it only once.

    ``stored`` has the fingerprints of the checkpoint's partitions, which the written table must have, too. Without
    ``stored``, the table is compared with the records that were read. ``tell`` is called with a progress line every few
    seconds.

    Raises:
        ChangelogUnreadable: The changelog has records in an unknown format.
        ChangelogMoved: The changelog was truncated, recreated or compacted during the read.
        SnapshotAuditFailed: The written table differs from the checkpoint.
        TableMoved: Another run published to the table at the same time.
        SparkFailed: The read or the write failed; nothing was published.
    """
    started = time.monotonic()
    narrator = Narrator(spark, tell)
    with (
        short_errors(f"snapshot {plan.table}"),
        current.aligned_plans(spark, _rows(spark, plan, stored)),
        narrator.telling(),
    ):
        create_table(spark, plan.table)
        create_history(spark, history_name(plan.processor, plan.store))
        claims.claim_snapshot(
            plan.snapshot_id, plan.table, {"source": plan.source.name, "why": plan.why}, datetime.now(UTC)
        )
        seen = versions.Versions.of(spark, plan.table)
        found = seen.snapshot(plan.snapshot_id)
        committed, corrections, found_schema, unpublished = False, 0, schema, None
        if found is None:
            unpublished = recorded_so_far(spark, plan.processor)
            work = Work(spark, plan, source, stored, schema, doing=narrator.doing)
            committed = _publish(work)
            corrections, found_schema = work.corrections, work.schema
            if committed:
                create_views(spark, plan.processor, plan.store, work.schema)
            seen = versions.Versions.of(spark, plan.table)
            found = seen.snapshot(plan.snapshot_id)
            assert found is not None, "the snapshot was just published"
        narrator.doing(f"recording snapshot {plan.snapshot_id} of {plan.table}")
        record_snapshot(spark, found.manifest, unpublished if committed else None)
        versions.set_tag(spark, plan.table, snapshot_tag(plan.snapshot_id), found.version)
        attempt = seen.summaries[found.version].get(ATTEMPT_PROPERTY)
        if schema is not None and attempt is not None:
            keep_attempt(spark, quarantine_name(plan.processor, plan.store), plan.snapshot_id, attempt)
        _drop_branches(spark, plan, seen)
        claims.finish_snapshot(plan.snapshot_id, found.version, datetime.now(UTC))
        size = int(seen.summaries[found.version].get("total-files-size", 0))
    seconds = round(time.monotonic() - started, 3)
    result = SnapshotResult(found.manifest, found.version, committed, corrections, seconds, size, found_schema)
    _log.info("snapshot", table=plan.table, id=plan.snapshot_id, committed=committed, rows=found.manifest.rows)
    return result


def _rows(spark: SparkSession, plan: SnapshotPlan, stored: Mapping[int, Fingerprint] | None) -> int:
    """The maximum number of rows that the snapshot reads from changelog, checkpoint, base snapshot and history."""
    records = sum(max(0, part.end - min(part.start, part.feed_start)) for part in plan.partitions)
    held = sum(each.count for each in (stored or {}).values()) + (0 if plan.base is None else plan.base.rows)
    if plan.builds_on is not None or plan.history is None:
        return records + held
    return records + held + versions.Versions.of(spark, history_name(plan.processor, plan.store)).rows()


def _drop_branches(spark: SparkSession, plan: SnapshotPlan, seen: versions.Versions) -> None:
    """Delete the branches of this snapshot's attempts; maintenance deletes the branches of killed runs."""
    own = branch_name(plan.snapshot_id)
    versions.drop_branches(spark, plan.table, seen.branches(own))
    changes = history_name(plan.processor, plan.store)
    versions.drop_branches(spark, changes, versions.branches_of(spark, changes, own))


def _publish(work: Work) -> bool:
    """Write, audit and publish the snapshot; returns False if another run published it."""
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
            if not _is_base(next(seen.published(), None), plan) or attempt == ATTEMPTS - 1:
                raise
        else:
            return True
        finally:
            if work.side is not None:
                sides.forget(spark, work.side.name)
    raise AssertionError("unreachable")


def feed_history(work: Work) -> None:
    """Append the changelog records that the history lacks, on a new branch of the history table."""
    plan, table = work.plan, work.history
    new = sum(max(0, part.end - part.feed_start) for part in plan.partitions)
    work.doing(f"reading {new:,} offsets of {plan.topic} into {table}")
    seen = versions.Versions.of(work.spark, table)
    work.began, work.counted, work.appended = time.time(), None, 0
    if history.has_fed(seen, plan.snapshot_id):
        work.history_ref = versions.MAIN
        return
    head = history.history_head(seen, table)
    if head != plan.history:
        raise versions.moved(table)
    work.history_ref = versions.branch_from(work.spark, table, plan.snapshot_id, seen)
    rows = history.changes(work.spark, plan, work.source, coded=work.coded)
    if rows is None:
        rows = work.changes().where("false")
    history.append_history(rows, table, work.history_ref, plan)
    fed = history.counted(work.changes().where(history.between(plan.generation, work.feeds())))
    changelog.refuse_strange(
        plan.topic,
        [(number, each.strange, each.first_strange) for number, each in fed.items() if each.first_strange is not None],
    )
    if not work.coded and any(each.coded for each in fed.values()):
        history.add_decoded(work.spark, table)
        # The first branch lacks the decoded values, so the changes are appended again, on another branch of the
        # history.
        feed_history(work)
        return
    if work.counted_ranges() == work.feeds():
        work.counted = fed


def write_branch(work: Work) -> None:
    """Write the table's branch from the planned source.

    A full snapshot also appends the values that the history table lacks to that table.
    """
    spark, plan = work.spark, work.plan
    work.doing(f"writing {plan.table} from {_READ[plan.source.name]}")
    if plan.builds_on is not None:
        changed = work.changed()
        if open_branch(work, changed):
            put_aside(work, changed, whole=False)
            current.merge(spark, changed, work.target, work.branch, work.schema, few=work.are_few())
        else:
            fed = work.changes().where(history.between(plan.generation, work.ranges()))
            replace_branch(work, current.known_after(work.before(), fed))
    elif work.history_tells_all():
        rows = history.live(history.fold(work.changes().where(f"generation = {plan.generation}")))
        open_branch(work, rows)
        replace_branch(work, rows)
    else:
        _replace_and_correct(work)
    check_read(plan, work.source.look(), work.began, time.time())


def replace_branch(work: Work, rows: DataFrame) -> None:
    """Replace all rows of the branch; values that do not fit the columns are also written to the quarantine table."""
    put_aside(work, rows, whole=True)
    current.replace_all(rows, work.target, work.branch, work.schema)


def open_branch(work: Work, rows: DataFrame) -> bool:
    """Create the branch to write on, with the columns that the values of these rows need.

    Returns False if unchanged rows need new values in a column, for example in a column that was created again. Then
    every row of the table must be written, not only the changed rows.
    """
    spark, plan = work.spark, work.plan
    seen = versions.Versions.of(spark, plan.table)
    if not _is_base(next(seen.published(), None), plan):
        raise versions.moved(plan.table)
    inferred = work.wanted is not None and work.wanted.inferred
    work.target, work.side, work.shape, whole = plan.table, None, plan.schema_version, False
    work.schema = shapes.resolve_schema(spark, plan.table, work.wanted, current.current_rows(rows))
    shape = shapes.shape_for(spark, plan.table, work.schema, inferred=inferred)
    if not shape.in_place:
        work.side = sides.open_side(spark, plan.table, plan.snapshot_id)
        work.target = work.side.name
    shapes.reshape(spark, work.target, shape)
    if inferred and work.schema is not None:
        work.shape, work.schema = shape.version, in_table_order(work.schema, shape.steps)
        # The schema version is compared with the plan's, because an earlier attempt or another run may have changed the
        # columns after the plan was made.
        whole = plan.builds_on is not None and (shape.replaced or shape.before != plan.schema_version)
    work.begins = next(seen.ancestors(), None)
    work.branch = versions.branch_from(spark, work.target, plan.snapshot_id, seen)
    return not whole


def _is_base(newest: versions.Version | None, plan: SnapshotPlan) -> bool:
    """Whether the newest Holdfast snapshot of the store is still the base (the snapshot on which the plan builds)."""
    return (newest and newest.manifest.snapshot_id) == (plan.base and plan.base.snapshot_id)


def put_aside(work: Work, rows: DataFrame, *, whole: bool) -> None:
    """Write values that do not fit the columns to the quarantine table.

    ``whole`` is True if ``rows`` are all rows of the table, and False if they are only changes.
    """
    plan = work.plan
    work.typed, work.merged, work.quarantined = None, None, {}
    if work.schema is None:
        return
    counted, hashed = None, typed_hash(work.schema)
    typed = type_rows(current.current_rows(rows, keep=() if whole else ("op",)), work.schema)
    # One scan counts unreadable values and computes the expected fingerprints, because parsing costs more than hashing.
    if whole and hashed is not None:
        work.typed, counted = typed_prints(typed, hashed)
    elif hashed is not None and plan.base is not None and plan.base.typed_fingerprints:
        known = Prints(plan.base.fingerprints, plan.base.typed_fingerprints)
        before = versions.at_version(work.spark, work.target, work.branch)
        work.merged, counted = typed_prints_after(known, before, work.quick_to_join(typed), history.LIVE, hashed)
    quarantine = quarantine_name(plan.processor, plan.store)
    work.quarantined = write_quarantine(work.spark, quarantine, typed, plan.snapshot_id, work.branch, counted)


def _moments(plan: SnapshotPlan) -> str:
    """SQL: for a row, the time at which the checkpoint of its partition was taken."""
    times = " ".join(f"WHEN {part.partition} THEN {round(part.taken_at * 1e6)}" for part in plan.partitions)
    return f"timestamp_micros(CASE store_partition {times} END)"


def _replace_and_correct(work: Work) -> None:
    """Replace the table's rows by those of the source, and append the values that the history lacks to the history."""
    plan = work.plan
    both = _compared(work)
    try:
        differing = both.where("differs")
        if work.history_ref != versions.MAIN and work.appended:
            ends = " ".join(f"WHEN {part.partition} THEN {part.end}" for part in plan.partitions)
            rows = differing.selectExpr(
                "store_partition",
                f"cast(CASE store_partition {ends} END AS bigint) AS offset",
                f"{_moments(plan)} AS timestamp",
                "key",
                "value",
                *((history.DECODED,) if work.coded else ()),
            )
            op = f"if(value IS NULL, '{history.BASE_DELETE}', '{history.BASE}')"
            history.append_history(history.as_history(rows, plan.generation, op), work.history, work.history_ref, plan)
        rows = both.where("value IS NOT NULL")
        open_branch(work, rows)
        replace_branch(work, rows)
    finally:
        both.unpersist()


def _compared(work: Work) -> DataFrame:
    """Returns the keys of the snapshot's source and of the history, as cached rows with the column ``differs``.

    Also counts the keys whose values differ, in ``work.appended``.
    """
    both = current.with_differences(work.full(), _known(work)).persist()
    try:
        # The Spark job that computes these counts also fills the cache of ``both``.
        counts = ("count(*) AS number", f"count_if({changelog.IS_CODED}) AS coded")
        [found] = both.where("differs").selectExpr(*counts).collect()
    except BaseException:
        both.unpersist()
        raise
    work.appended = found["number"]
    if work.coded or not found["coded"]:
        return both
    # Until now, only the checkpoint has values that SQL can't decode. So the history lacks the column ``decoded``, and
    # gets it now.
    both.unpersist()
    history.add_decoded(work.spark, work.history)
    return _compared(work)


def _known(work: Work) -> DataFrame:
    """The live keys according to the history, including the records that this attempt at a snapshot has appended."""
    plan = work.plan
    unfinished = plan.history is not None and (plan.base is None or plan.history.snapshot_id != plan.base.snapshot_id)
    if plan.base is None or plan.history is None or unfinished or work.history_ref == versions.MAIN:
        return history.live(history.fold(work.changes()))
    before = versions.at_version(work.spark, plan.table, versions.MAIN)
    return current.known_after(before, work.changes().where(history.between(plan.generation, work.feeds())))


def seal(work: Work, measured: Prints) -> None:
    """Commit the snapshot's manifest (JSON description) to the branch, as a version without new rows.

    After this, the branch can be published.
    """
    plan = work.plan
    work.doing(f"sealing and publishing {plan.table}")
    counted, nothing, empty = work.fed(), history.Counted(), Fingerprint()
    typed = typed_hash(work.schema) is not None
    first = plan.history is None and work.history_ref != versions.MAIN
    if first and not work.appended:
        # Neither this attempt at the snapshot nor another run has appended rows to the history, so no corrections are
        # counted.
        work.corrections = 0
    elif plan.builds_on is None:
        base = f"op IN ('{history.BASE}', '{history.BASE_DELETE}') AND timestamp = {_moments(plan)}"
        work.corrections = work.changes().where(f"generation = {plan.generation} AND {base}").count()
    gapless = not work.corrections and has_every_change(plan, work.source.look(), time.time())
    manifest = SnapshotManifest(
        snapshot_id=plan.snapshot_id,
        processor=plan.processor,
        store=plan.store,
        table=plan.table,
        source=plan.source.name,
        base=None if plan.builds_on is None else plan.builds_on.snapshot_id,
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
                records=counted.get(part.partition, nothing).records,
                tombstones=counted.get(part.partition, nothing).tombstones,
                live_keys=measured.pairs.get(part.partition, empty).count,
                fingerprint=measured.pairs.get(part.partition, empty),
                inputs=part.inputs,
                sources=part.sources,
                quarantined=work.quarantined.get(part.partition, 0),
                typed=measured.typed.get(part.partition, empty) if typed else None,
            )
            for part in plan.partitions
        ),
        covers_from=plan.base.covers_from if gapless and plan.base is not None else plan.latest_at,
        latest_at=plan.latest_at,
    )
    seal_branch(work.spark, work.target, work.branch, manifest, plan.builds_on)


def seal_branch(
    spark: SparkSession, table: str, branch: str, manifest: SnapshotManifest, base: SnapshotManifest | None
) -> None:
    """Commit a table version (Iceberg snapshot) without new rows, whose summary has the manifest.

    The summary also names the Holdfast snapshot on which this one builds.
    """
    writer = versions.at_version(spark, table, branch).where("false").writeTo(versions.branch_table(table, branch))
    writer = writer.option(f"snapshot-property.{ID_PROPERTY}", manifest.snapshot_id)
    writer = writer.option(f"snapshot-property.{ATTEMPT_PROPERTY}", branch)
    writer = writer.option(f"snapshot-property.{CHAIN_PROPERTY}", chain_link(manifest, base))
    writer.option(f"snapshot-property.{MANIFEST_PROPERTY}", manifest.encode()).append()


def publish_history(work: Work) -> None:
    """Publish the history's branch; the table is published immediately afterwards."""
    if work.history_ref == versions.MAIN:
        return
    try:
        versions.fast_forward(work.spark, work.history, work.history_ref)
        history.tag_newest_changes(work.spark, work.history)
    except versions.TableMoved:
        if not history.has_fed(versions.Versions.of(work.spark, work.history), work.plan.snapshot_id):
            raise


def publish_table(work: Work) -> None:
    """Publish the table's branch. Only this step is visible to readers of the table."""
    versions.fast_forward(work.spark, work.target, work.branch)
    if work.side is not None:
        sides.exchange(work.spark, work.side)
