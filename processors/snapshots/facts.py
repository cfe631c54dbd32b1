"""The facts for a snapshot's plan: the worker's checkpoint, the changelog and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.processors.snapshots.manifest import SnapshotManifest


@dataclass(frozen=True, slots=True)
class StorePoint:
    """One partition of a store in a checkpoint: the folder of its files, and its offsets.

    ``taken_at`` is in wall-clock seconds since 1970; ``files``: the files are still on this machine.
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
    """One partition of the current changelog; ``end`` is the last stable offset."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChangelogNow:
    """The current changelog.

    Args:
        topic: Its name.
        topic_id: The id that Kafka gave the topic at its creation.
        partitions: Its offsets by partition.
        delete_retention_s: Seconds for which compaction keeps deletions.
        compaction_lag_s: Seconds for which compaction keeps every record.
        deletes_by_age: Whether the topic's cleanup policy also deletes by age or size.
        is_source: Whether the topic belongs to a table that is restored from it. Its ends are then the group's
            committed offsets, and snapshots are made from checkpoints, because Kafka may compact a row that is not
            processed yet.
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
    """The end of the history: that of the newest snapshot, or later after a snapshot run was interrupted."""

    snapshot_id: str
    generation: int
    topic_ids: Mapping[int, str]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TableNow:
    """The table before the snapshot: ``base`` is the newest snapshot, ``full_at`` the time of the newest full one."""

    base: SnapshotManifest | None = None
    full_at: float | None = None
    history: HistoryHead | None = None


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """All facts of a plan; ``changelog`` is None if the topic is missing, ``now`` is wall-clock seconds since 1970."""

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
    """The newest checkpoint of each partition of a store, ordered by partition; ``checkpoints`` are newest first."""
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
