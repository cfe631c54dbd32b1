"""Chooses the tags and branches of a table that have expired. Pure; ``assets.spark.maintenance`` drops them.

The meaning of a name decides, not only the age of its version: a quiet store has one version for many time partitions,
and a new branch may begin at an old version.

Invariants:
    - The newest snapshot of a table never expires, nor the newest full one, whatever the settings are.
    - Versions that were made from the history never count as snapshots; they are kept as long as their time's tag.
    - A version with a kept tag keeps its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.processors.snapshots.manifest import CHANGELOG, CHECKPOINT, HISTORY
from holdfast.processors.snapshots.names import BRANCH, SNAPSHOT_TAG, TIME_TAG, created_at, time_of


@dataclass(frozen=True, slots=True)
class Retention:
    """How long tags and branches are kept.

    Args:
        snapshots: The number of newest snapshots that keep their tag, at any age.
        snapshot_days: The age, days, up to which all other snapshots keep theirs.
        time_days: The age, days, up to which tags of time partitions are kept.
        branch_hours: The age, hours, up to which a branch of an unpublished snapshot is kept.
    """

    snapshots: int
    snapshot_days: float
    time_days: float
    branch_hours: float


@dataclass(frozen=True, slots=True)
class Reference:
    """A tag or a branch, and the table version it points at: commit time (with a zone), number, and snapshot source."""

    name: str
    committed_at: datetime
    version: int = 0
    source: str | None = None


def expired_references(
    references: Iterable[Reference], kept: Retention, now: datetime, needed: Collection[int] = ()
) -> tuple[str, ...]:
    """The expired tags and branches, oldest first; names that Holdfast does not make never expire.

    Tags of the versions ``needed`` also stay, because an unfinished apply reads these versions.
    """
    ordered = sorted(references, key=lambda each: (each.committed_at, each.name), reverse=True)
    snapshots = [each for each in ordered if each.name.startswith(SNAPSHOT_TAG) and each.source != HISTORY]
    past = [each for each in ordered if each.name.startswith(SNAPSHOT_TAG) and each.source == HISTORY]
    full = next((each for each in snapshots if each.source in (CHECKPOINT, CHANGELOG)), None)
    old_times = [each for each in ordered if each.name.startswith(TIME_TAG) and _time_is_over(each, kept, now)]
    in_use = {each.version for each in ordered if each.name.startswith(TIME_TAG) and each not in old_times}
    branches = [each for each in ordered if each.name.startswith(BRANCH)]
    old = [
        each
        for each in snapshots[max(1, kept.snapshots) :]
        if each is not full and _older(each.committed_at, now, days=kept.snapshot_days)
    ]
    old += [
        each for each in past if each.version not in in_use and _older(each.committed_at, now, days=kept.snapshot_days)
    ]
    old += old_times
    old += [each for each in branches if _older(_made(each), now, days=kept.branch_hours / 24)]
    gone = sorted(old, key=lambda each: (each.committed_at, each.name))
    return tuple(each.name for each in gone if each.version not in needed)


def _time_is_over(tag: Reference, kept: Retention, now: datetime) -> bool:
    """Whether both the time partition and its version are old: either may have been tagged today."""
    newest = max(tag.committed_at, time_of(tag.name) or tag.committed_at)
    return _older(newest, now, days=kept.time_days)


def _made(branch: Reference) -> datetime:
    return created_at(branch.name) or branch.committed_at


def _older(moment: datetime, now: datetime, *, days: float) -> bool:
    return now - moment > timedelta(days=days)
