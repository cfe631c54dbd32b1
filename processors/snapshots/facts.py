"""What is known before a snapshot is planned: the owner's checkpoint, the changelog now, and the table so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.processors.snapshots.manifest import SnapshotManifest


@dataclass(frozen=True, slots=True)
class StorePoint:
    """One partition of a store at a checkpoint: its files, and the offsets that it is at.

    ``taken_at`` is when (wall-clock seconds since 1970), ``files`` whether the copy is still to be read.
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
    """One partition of the changelog now; ``end`` is the last stable offset."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChangelogNow:
    """The changelog now; ``delete_retention_s`` and ``compaction_lag_s`` are how long compaction leaves deletions, and
    everything, in peace; ``deletes_by_age`` says that its cleanup policy is not compaction alone."""

    topic: str
    topic_id: str
    partitions: Mapping[int, LogPartition]
    delete_retention_s: float
    compaction_lag_s: float
    deletes_by_age: bool = False


@dataclass(frozen=True, slots=True)
class HistoryHead:
    """How far the table of changes reaches: normally as far as the newest snapshot, further when one broke off."""

    snapshot_id: str
    generation: int
    topic_ids: Mapping[int, str]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TableNow:
    """The table so far: ``base`` is the newest published snapshot, ``full_at`` when the newest full one was taken."""

    base: SnapshotManifest | None = None
    full_at: float | None = None
    history: HistoryHead | None = None


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Everything that a plan is made from. ``changelog`` is None when the topic is not there; ``now`` is wall-clock
    seconds since 1970."""

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
    """The newest checkpoint of each partition of a store; in order of partitions.

    Args:
        checkpoints: Manifests of the owners' checkpoints, newest first.
        store: The store.
    """
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
