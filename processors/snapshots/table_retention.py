"""Chooses the expired tags and branches of an Iceberg table. Pure; ``assets.spark.maintenance`` deletes them.

A tag or branch does not expire just because its version (Iceberg snapshot) is old. If a store did not change, one old
version can have the recent tags of many time partitions. A recent branch can also begin at an old version.

Invariants:
    - The newest snapshot and the newest full snapshot of a table never expire, whatever the settings are.
    - A version that was built from the history (the table at a past time) does not count as a snapshot. It is kept as
      long as the tag of its time partition is kept.
    - The files of a version are not deleted while one of its tags is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.processors.snapshots.manifest import CHANGELOG, CHECKPOINT, HISTORY
from holdfast.processors.snapshots.names import BRANCH, SNAPSHOT_TAG, TIME_TAG, created_at, time_of


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits for keeping tags and branches.

    Args:
        snapshots: The tags of this many newest snapshots are kept at any age.
        snapshot_days: Maximum age of the tags of all other snapshots, days.
        time_days: Maximum age of the tags of time partitions, days.
        branch_hours: Maximum age of a branch of an unpublished snapshot, hours.
    """

    snapshots: int
    snapshot_days: float
    time_days: float
    branch_hours: float


@dataclass(frozen=True, slots=True)
class Reference:
    """A tag or branch, with the commit time (with time zone), number and snapshot source of its table version."""

    name: str
    committed_at: datetime
    version: int = 0
    source: str | None = None


def expired_references(
    references: Iterable[Reference], kept: Retention, now: datetime, needed: Collection[int] = ()
) -> tuple[str, ...]:
    """The names of expired tags and branches, oldest first. Names that Holdfast did not create never expire.

    Tags of the versions in ``needed`` also never expire, because an unfinished apply (execution of a plan) reads these
    versions.
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
    """Whether a tag's time partition and its table version are both older than ``kept.time_days``.

    A recent tag can belong to an old version or to an old time partition, so one of the two ages is not enough.
    """
    newest = max(tag.committed_at, time_of(tag.name) or tag.committed_at)
    return _older(newest, now, days=kept.time_days)


def _made(branch: Reference) -> datetime:
    return created_at(branch.name) or branch.committed_at


def _older(moment: datetime, now: datetime, *, days: float) -> bool:
    return now - moment > timedelta(days=days)
