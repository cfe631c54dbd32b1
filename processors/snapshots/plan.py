"""Chooses the source from which a snapshot of a store is read, and gives the reason. Pure: it depends on facts only.

    incremental   the changelog after the newest snapshot, merged into that snapshot
    checkpoint    all keys of the worker's RocksDB checkpoint
    changelog     the whole changelog, reduced to the newest value of each key

Invariants:
    - A snapshot has the state at the offsets of the worker's checkpoint. The same facts give the same snapshot id.
    - A source that may lose a deletion, or differ from the worker's state, is never chosen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

from holdfast.infra.errors import HoldfastError
from holdfast.processors.snapshots.facts import ChangelogNow, HistoryHead, LogPartition, SnapshotFacts, StorePoint
from holdfast.processors.snapshots.manifest import CHANGELOG, CHECKPOINT, INCREMENTAL, SnapshotManifest
from holdfast.processors.snapshots.names import table_name

#: Records count as safe from deletion during this fraction of a compaction lag or retention time. The rest is a margin,
#: because the clocks of the broker and of this machine may differ.
WINDOW_PART_SAFE = 0.75
#: Maximum seconds between two full snapshots. An error in an incremental snapshot stays in the table until the next
#: full snapshot.
FULL_EVERY_S = 7 * 86_400.0
_CHECKPOINT_FIRST = (
    "Materialise the store's state asset, which takes a checkpoint; then materialise its snapshot asset."
)


class Wanted(StrEnum):
    """The source that the user requests; ``FULL`` is a checkpoint or, if there is none, the whole changelog."""

    AUTO = "auto"
    FULL = "full"
    CHECKPOINT = "checkpoint"
    CHANGELOG = "changelog"


class SnapshotImpossible(HoldfastError):
    """No source of rows is certain to give exactly the state of the worker's checkpoint."""


class ChangelogMoved(HoldfastError):
    """The changelog changed after the plan was made and before its read ended; nothing was published."""


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """One partition of a planned snapshot.

    The table is written from the changelog offsets ``start`` up to, not including, ``end``. The history table is
    written from ``feed_start`` on.
    """

    partition: int
    topic_id: str
    log_start: int
    start: int
    end: int
    feed_start: int
    path: str
    #: Time of the partition's checkpoint, seconds since 1970.
    taken_at: float
    inputs: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incremental:
    """A source: the changelog records after a published snapshot, which are merged into that snapshot."""

    base: SnapshotManifest
    name: ClassVar[str] = INCREMENTAL


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """A source: all keys of the worker's checkpoint, read from its files."""

    name: ClassVar[str] = CHECKPOINT


@dataclass(frozen=True, slots=True)
class FromChangelog:
    """A source: the whole changelog, reduced to the newest value of each key."""

    name: ClassVar[str] = CHANGELOG


#: The source of a snapshot; its ``name`` is used in manifests and texts.
SnapshotSource = Incremental | FromCheckpoint | FromChangelog


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """One snapshot to write.

    ``published`` is true if the newest snapshot already has these offsets; ``snapshot_id`` is then its id. ``taken_at``
    is the time of the earliest checkpoint, ``latest_at`` the time of the latest (seconds since 1970).
    """

    snapshot_id: str
    processor: str
    store: str
    source: SnapshotSource
    why: str
    base: SnapshotManifest | None
    history: HistoryHead | None
    topic: str
    generation: int
    taken_at: float
    latest_at: float
    code_version: str
    state_format: str
    schema_version: int
    partitions: tuple[PlannedPartition, ...]
    published: bool = False

    @property
    def table(self) -> str:
        """The full name of the store's table."""
        return table_name(self.processor, self.store)

    @property
    def ends(self) -> dict[int, int]:
        """Changelog partition -> offset of the snapshot."""
        return {part.partition: part.end for part in self.partitions}

    @property
    def builds_on(self) -> SnapshotManifest | None:
        """The snapshot into which this incremental snapshot is merged; None for a full snapshot."""
        return self.source.base if isinstance(self.source, Incremental) else None


def plan_snapshot(
    facts: SnapshotFacts, wanted: Wanted = Wanted.AUTO, *, full_every_s: float = FULL_EVERY_S
) -> SnapshotPlan:
    """Returns the plan of the next snapshot.

    Args:
        facts: The facts about checkpoint, changelog and table.
        wanted: The requested source.
        full_every_s: Maximum age of the last full snapshot, seconds. If that snapshot is older, the planned snapshot is
            full.

    Raises:
        SnapshotImpossible: The requested source does not certainly give the state of the checkpoint. Or no source was
            requested, and no source certainly gives this state.
    """
    points = _whole_vector(facts)
    base = facts.table.base
    if base is not None and wanted is Wanted.AUTO and _at_the_same_offsets(base, points, facts):
        why = "nothing was committed since the newest snapshot"
        return _plan(facts, points, _source_of(base), why, published=True)
    against = next(_against_incremental(facts, points, wanted, full_every_s), None)
    if against is None:
        assert base is not None, "there is a reason against building on nothing"
        return _plan(facts, points, Incremental(base), _what_is_new(base, points))
    no_files = _against_checkpoint(facts, points)
    no_log = _against_changelog(facts, points)
    if no_files is None and wanted is not Wanted.CHANGELOG:
        return _plan(facts, points, FromCheckpoint(), f"full, because {against}")
    if no_log is None and wanted is not Wanted.CHECKPOINT:
        return _plan(facts, points, FromChangelog(), f"full, because {against}")
    reasons = [f"not incremental, because {against}"]
    reasons += [f"not from the checkpoint, because {no_files}"] if no_files and wanted is not Wanted.CHANGELOG else []
    reasons += [f"not from the changelog, because {no_log}"] if no_log and wanted is not Wanted.CHECKPOINT else []
    raise SnapshotImpossible(
        f"No snapshot of store {facts.store} of {facts.processor} can be taken: {'; '.join(reasons)}.",
        action=_CHECKPOINT_FIRST,
        processor=facts.processor,
        store=facts.store,
        reasons=reasons,
    )


def check_read(plan: SnapshotPlan, after: ChangelogNow | None, began: float, ended: float) -> None:
    """Raises ChangelogMoved if the changelog changed after the plan was made.

    ``after`` is the changelog after the read, None if the topic no longer exists. ``began`` and ``ended`` are the times
    of the read, in seconds since 1970.

    Raises:
        ChangelogMoved: The changelog was truncated or recreated, or compaction may have removed records before the
            read.
    """
    read = [part for part in plan.partitions if min(part.start, part.feed_start) < part.end]
    if not read:
        return
    why = _moved(plan, read, after, began, ended)
    if why is not None:
        raise ChangelogMoved(
            f"Snapshot {plan.snapshot_id} of {plan.table}: {why}. Nothing was published.",
            action=_CHECKPOINT_FIRST,
            table=plan.table,
            snapshot=plan.snapshot_id,
        )


def has_every_change(plan: SnapshotPlan, changelog: ChangelogNow | None, ended: float) -> bool:
    """Whether the history table gets every change since the base.

    It lacks a change if compaction may have removed the record.
    """
    base = plan.base
    if base is None or changelog is None or base.generation != plan.generation:
        return False
    fed = all(part.feed_start <= base.ends.get(part.partition, -1) for part in plan.partitions)
    quiet = all(part.end == base.ends.get(part.partition) for part in plan.partitions)
    return fed and (quiet or 0 <= ended - base.taken_at < changelog.compaction_lag_s * WINDOW_PART_SAFE)


def _whole_vector(facts: SnapshotFacts) -> tuple[StorePoint, ...]:
    """Returns the checkpoint and the changelog offset of each partition; offset 0 if the changelog partition is empty.

    Raises SnapshotImpossible if a checkpoint has offsets of a changelog that was deleted and created again since.
    """
    if not facts.points:
        raise SnapshotImpossible(
            f"There is no checkpoint of store {facts.store} of {facts.processor}.",
            action=_CHECKPOINT_FIRST,
            processor=facts.processor,
            store=facts.store,
        )
    known = {point.partition for point in facts.points}
    log = facts.changelog.partitions if facts.changelog is not None else {}
    missing = {number: part for number, part in log.items() if number not in known}
    held = [number for number, part in sorted(missing.items()) if part.end > 0]
    if held:
        raise SnapshotImpossible(
            f"Partitions {', '.join(map(str, held))} of store {facts.store} of {facts.processor} are in no checkpoint, "
            "but their changelog is not empty.",
            action="Wait until all tasks run (`holdfast status`), then materialise the store's state asset and its "
            "snapshot asset.",
            processor=facts.processor,
            store=facts.store,
            partitions=held,
        )
    first = facts.points[0]
    newest = max((point for point in facts.points if point.end), key=lambda each: each.taken_at, default=first)
    topic_id = facts.changelog.topic_id if facts.changelog is not None else newest.topic_id
    former = [point for point in facts.points if point.end and point.topic_id != topic_id]
    if former:
        numbers = ", ".join(str(point.partition) for point in former)
        raise SnapshotImpossible(
            f"The checkpoints of partitions {numbers} of store {facts.store} of {facts.processor} belong to a former "
            f"changelog (topic id {former[0].topic_id}); expected {topic_id}, the id that {first.topic} has now.",
            action=_CHECKPOINT_FIRST,
            processor=facts.processor,
            store=facts.store,
            partitions=[point.partition for point in former],
            seen=former[0].topic_id,
            expected=topic_id,
        )
    empty = [StorePoint(number, "", first.topic, topic_id, 0, first.taken_at) for number in missing]
    known_points = (point if point.end else replace(point, topic_id=topic_id) for point in facts.points)
    return tuple(sorted((*known_points, *empty), key=lambda point: point.partition))


def _at_the_same_offsets(base: SnapshotManifest, points: tuple[StorePoint, ...], facts: SnapshotFacts) -> bool:
    return (
        not base.from_history
        and base.ends == {point.partition: point.end for point in points}
        and base.topic_ids == {point.partition: point.topic_id for point in points}
        and base.schema_version == facts.schema_version
        and base.state_format == facts.state_format
    )


def _against_incremental(
    facts: SnapshotFacts, points: tuple[StorePoint, ...], wanted: Wanted, full_every_s: float
) -> Iterator[str]:
    """The reasons why the changelog cannot be merged into the newest published snapshot; empty if it can."""
    if wanted is not Wanted.AUTO:
        yield "a full snapshot was requested"
    base = facts.table.base
    if base is None:
        yield "it is the first snapshot"
        return
    if base.from_history:
        yield f"the newest version, {base.snapshot_id}, was made from the history, not from the store"
    if base.schema_version != facts.schema_version:
        yield f"the table has schema version {facts.schema_version}, the newest snapshot has {base.schema_version}"
    if base.state_format != facts.state_format:
        yield f"state has format {facts.state_format}, the newest snapshot has {base.state_format}"
    before, after = len(base.partitions), len(points)
    if base.ends.keys() != {point.partition for point in points}:
        yield f"the store has {after} partitions, the newest snapshot has {before}: keys moved to other partitions"
        return
    for point in points:
        if point.topic_id != base.topic_ids[point.partition]:
            yield f"the changelog was recreated (topic id {point.topic_id}, before {base.topic_ids[point.partition]})"
        if point.end < base.ends[point.partition]:
            yield (
                f"the offset of partition {point.partition} went back from {base.ends[point.partition]} to {point.end}"
            )
    if facts.table.history is None:
        yield "its history is empty: it was renamed or deleted"
    elif _generation(facts, points) != base.generation:
        yield "an interrupted run fed the history from another changelog, or beyond this checkpoint"
    full_at = facts.table.full_at
    if full_at is None or not 0 <= facts.now - full_at < full_every_s:
        yield "the last full snapshot is " + ("unknown" if full_at is None else f"{_age(facts.now - full_at)} old")
    moved = {point.partition: point for point in points if point.end > base.ends[point.partition]}
    if not moved:
        return
    yield from _against_reading(facts, moved, base.ends)
    changelog = facts.changelog
    assert changelog is not None
    age, window = facts.now - base.taken_at, changelog.delete_retention_s * WINDOW_PART_SAFE
    if not 0 <= age < window:
        yield (
            f"the newest snapshot is {_age(age)} old, and the changelog is sure to keep deletions for {_age(window)} "
            "only (75 % of delete.retention.ms)"
        )


def _against_checkpoint(facts: SnapshotFacts, points: tuple[StorePoint, ...]) -> str | None:
    gone = [str(point.partition) for point in points if point.end and not point.files]
    return f"its files of partitions {', '.join(gone)} are not on this machine" if gone else None


def _against_changelog(facts: SnapshotFacts, points: tuple[StorePoint, ...]) -> str | None:
    held = {point.partition: point for point in points if point.end}
    return next(_against_reading(facts, held, dict.fromkeys(held, 0)), None) if held else None


def _against_reading(
    facts: SnapshotFacts, points: Mapping[int, StorePoint], starts: Mapping[int, int]
) -> Iterator[str]:
    """Yields the reasons why a read of the changelog from ``starts`` would not give the checkpoint's state.

    Yields nothing if the read gives that state.
    """
    changelog = facts.changelog
    if changelog is None:
        yield "the changelog is missing"
        return
    if changelog.is_source:
        yield (
            f"the table is restored from {changelog.topic}, where Kafka may compact a row before its newer one is "
            "processed: only a checkpoint has all rows"
        )
        return
    if changelog.deletes_by_age:
        yield "the changelog's cleanup.policy deletes by age or size: keys vanish from it without a deletion record"
    for number, point in points.items():
        log = changelog.partitions.get(number, LogPartition(0, 0))
        if log.start > starts[number]:
            yield f"partition {number} of the changelog begins at offset {log.start}, after {starts[number]}"
        if log.end < point.end:
            yield f"partition {number} of the changelog ends at offset {log.end}, before the checkpoint's {point.end}"
        if not _exact(point.end, log, facts.now - point.taken_at, changelog):
            yield (
                f"the checkpoint is {_age(facts.now - point.taken_at)} old: compaction may have removed values that "
                f"were overwritten later (min.compaction.lag.ms keeps them for {_age(changelog.compaction_lag_s)})"
            )


def _exact(end: int, log: LogPartition, age: float, changelog: ChangelogNow) -> bool:
    """Whether a read of a partition up to ``end`` gives the state at ``end``.

    Compaction removes a value only when a later record has the same key. The read is therefore exact if no record after
    ``end`` exists. One offset after ``end`` may exist: the transaction marker of the last commit. The read is also
    exact while ``min.compaction.lag.ms`` protects all records from compaction.
    """
    return log.end - end <= 1 or 0 <= age < changelog.compaction_lag_s * WINDOW_PART_SAFE


def _moved(
    plan: SnapshotPlan, read: list[PlannedPartition], after: ChangelogNow | None, began: float, ended: float
) -> str | None:
    if after is None or any(part.topic_id != after.topic_id for part in read):
        return "the changelog was recreated between plan and read"
    for part in read:
        log = after.partitions.get(part.partition, LogPartition(0, 0))
        first = min(part.start, part.feed_start)
        if log.start > first:
            return f"partition {part.partition} of the changelog was truncated to {log.start} while it was read"
    if isinstance(plan.source, FromCheckpoint):
        return None
    for part in read:
        log = after.partitions[part.partition]
        if not _exact(part.end, log, ended - plan.taken_at, after):
            after_s = _age(ended - plan.taken_at)
            return f"the read ended {after_s} after the checkpoint, so compaction may have removed records"
    since = began if plan.builds_on is None else plan.builds_on.taken_at
    if ended - since >= after.delete_retention_s * WINDOW_PART_SAFE:
        return f"the read ended after {_age(ended - since)}, and deletions stay {_age(after.delete_retention_s)} only"
    return None


def _source_of(published: SnapshotManifest) -> SnapshotSource:
    """The source (incremental, checkpoint or changelog) that a published snapshot was read from."""
    match published.source:
        case Incremental.name:
            return Incremental(published)
        case FromCheckpoint.name:
            return FromCheckpoint()
        case FromChangelog.name:
            return FromChangelog()
    raise ValueError(f"snapshot {published.snapshot_id} was not read from the store: {published.source}")


def _what_is_new(base: SnapshotManifest, points: tuple[StorePoint, ...]) -> str:
    new = sum(point.end - base.ends[point.partition] for point in points)
    return f"{new:,} offsets of the changelog are new since snapshot {base.snapshot_id}"


def _generation(facts: SnapshotFacts, points: tuple[StorePoint, ...]) -> int:
    """The changelog's generation: a number that increases each time the changelog is deleted and created again.

    Offsets of two generations cannot be compared.
    """
    head, base = facts.table.history, facts.table.base
    if head is None or (base is not None and head.generation < base.generation):
        return 1 if base is None else base.generation + 1
    same = head.topic_ids == {point.partition: point.topic_id for point in points}
    back = any(point.end < head.ends.get(point.partition, 0) for point in points)
    return head.generation if same and not back else head.generation + 1


def _plan(
    facts: SnapshotFacts, points: tuple[StorePoint, ...], source: SnapshotSource, why: str, *, published: bool = False
) -> SnapshotPlan:
    base, head, generation = facts.table.base, facts.table.history, _generation(facts, points)
    covered = head.ends if head is not None and head.generation == generation else {}
    parts = []
    for point in points:
        changelog = facts.changelog
        log = changelog.partitions.get(point.partition) if changelog is not None else None
        known = changelog is not None and log is not None and changelog.topic_id == point.topic_id
        readable = known and not (changelog is not None and changelog.is_source)
        log_start = log.start if log is not None and readable else point.end
        reach = min(point.end, log.end) if log is not None and readable else 0
        feed = max(log_start, covered.get(point.partition, 0)) if reach == point.end else point.end
        start = _start(source, point, log_start)
        parts.append(
            PlannedPartition(
                partition=point.partition,
                topic_id=point.topic_id,
                log_start=log_start,
                start=start,
                end=point.end,
                feed_start=min(feed, point.end),
                path=point.path,
                taken_at=point.taken_at,
                inputs=point.inputs,
                sources=point.sources,
            )
        )
    described = [
        *(table_name(facts.processor, facts.store), source.name, base.snapshot_id if base is not None else None),
        *(generation, facts.schema_version, points[0].topic),
        [(part.partition, part.topic_id, part.end) for part in parts],
    ]
    made = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
    return SnapshotPlan(
        snapshot_id=base.snapshot_id if published and base is not None else made,
        processor=facts.processor,
        store=facts.store,
        source=source,
        why=why,
        base=base,
        history=head,
        topic=points[0].topic,
        generation=generation,
        taken_at=min(point.taken_at for point in points),
        latest_at=max(point.taken_at for point in points),
        code_version=facts.code_version,
        state_format=facts.state_format,
        schema_version=facts.schema_version,
        partitions=tuple(parts),
        published=published,
    )


def _start(source: SnapshotSource, point: StorePoint, log_start: int) -> int:
    """The changelog offset of a partition from which on records are written to the table."""
    match source:
        case Incremental(base):
            return base.ends[point.partition]
        case FromChangelog():
            return log_start
        case FromCheckpoint():
            return point.end


def _age(seconds: float) -> str:
    if abs(seconds) < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"
