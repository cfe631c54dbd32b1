"""Data classes with the input for planning a snapshot: the workers' checkpoints, the changelog and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.processors.snapshots.manifest import SnapshotManifest


@dataclass(frozen=True, slots=True)
class StorePoint:
    """One partition of a store in a checkpoint: the folder of its files, and the offsets of its state.

    ``taken_at`` is in seconds since 1970. ``files`` is true if the checkpoint's files still exist on this machine.
    """

    partition: int
    path: str
    topic: str
    topic_id: str
    end: int
    taken_at: float
    inputs: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    files: bool = True


@dataclass(frozen=True, slots=True)
class LogPartition:
    """The offsets of one partition of the present changelog: its first offset, and its ``end``.

    ``end`` is the last stable offset; for a table's source topic, it is the group's committed offset.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChangelogNow:
    """The present changelog of a store.

    Args:
        topic: Name of the topic.
        topic_id: The id that Kafka gave the topic at its creation.
        partitions: Partition -> offsets.
        delete_retention_s: Minimum seconds for which compaction keeps tombstones.
        compaction_lag_s: Minimum seconds for which compaction keeps every record.
        deletes_by_age: Whether the topic's cleanup policy also deletes by age or size.
        is_source: Whether the topic is the source topic of a table, from which the table is restored. The end of each
            partition is then the group's committed offset. Snapshots of such a table are made from checkpoints, because
            Kafka may compact a row before it is processed.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, LogPartition]
    delete_retention_s: float
    compaction_lag_s: float
    deletes_by_age: bool = False
    is_source: bool = False


@dataclass(frozen=True, slots=True)
class HistoryHead:
    """The changelog offset of each partition up to which the history table has every change.

    These are the offsets of the newest snapshot. They are greater if a later run wrote changes to the history, and was
    then interrupted before it published its snapshot.
    """

    snapshot_id: str
    generation: int
    topic_ids: Mapping[int, str]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TableNow:
    """The store's table before the new snapshot is written.

    ``base`` is the newest snapshot. ``full_at`` is the time of the newest full snapshot.
    """

    base: SnapshotManifest | None = None
    full_at: float | None = None
    history: HistoryHead | None = None


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """All facts from which a snapshot is planned.

    ``changelog`` is None if the topic is missing; ``now`` is in seconds since 1970.
    """

    processor: str
    store: str
    points: tuple[StorePoint, ...]
    changelog: ChangelogNow | None
    table: TableNow
    code_version: str
    state_format: str
    schema_version: int
    now: float


def points_of(checkpoints: Sequence[Mapping[str, Any]], store: str) -> tuple[StorePoint, ...]:
    """The newest checkpoint of each partition of a store, sorted by partition; ``checkpoints`` must be newest first."""
    found: dict[int, StorePoint] = {}
    for checkpoint in checkpoints:
        for task in checkpoint["tasks"]:
            at = task["stores"].get(store)
            if at is None or not at.get("changelog"):
                continue
            point = StorePoint(
                partition=task["partition"],
                path=task["path"],
                topic=at["changelog"],
                topic_id=at["topic_id"],
                end=at["offset"],
                taken_at=float(checkpoint["taken_at"]),
                inputs=dict(task.get("inputs", {})),
                sources=dict(task.get("sources", {})),
            )
            found.setdefault(point.partition, point)
    return tuple(found[partition] for partition in sorted(found))
