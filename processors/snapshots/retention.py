"""Which tags and branches of a table have had their time: a pure decision, before anything is deleted.

Invariants:
    - The newest snapshot of a table is never let go of, whatever the settings say.
    - What has a tag keeps its files: only what no kept tag leads to can expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.processors.snapshots.names import BRANCH, SNAPSHOT_TAG, TIME_TAG


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long what is kept.

    Args:
        snapshots: So many of the newest snapshots keep their tag,
        snapshot_days: and all that are younger than so many days.
        time_days: Tags of time partitions are kept for so many days.
        branch_hours: A branch of a snapshot that was never published goes after so many hours.
    """

    snapshots: int
    snapshot_days: float
    time_days: float
    branch_hours: float


@dataclass(frozen=True, slots=True)
class Reference:
    """A tag or a branch, and when the version that it leads to was committed (with a zone)."""

    name: str
    committed_at: datetime


def expired_references(references: Iterable[Reference], kept: Retention, now: datetime) -> tuple[str, ...]:
    """The tags and branches to let go of, the oldest first; names that are not Holdfast's are somebody else's."""
    ordered = sorted(references, key=lambda each: (each.committed_at, each.name), reverse=True)
    snapshots = [each for each in ordered if each.name.startswith(SNAPSHOT_TAG)]
    times = [each for each in ordered if each.name.startswith(TIME_TAG)]
    branches = [each for each in ordered if each.name.startswith(BRANCH)]
    old = [each for each in snapshots[max(1, kept.snapshots) :] if _older(each, now, days=kept.snapshot_days)]
    old += [each for each in times if _older(each, now, days=kept.time_days)]
    old += [each for each in branches if _older(each, now, days=kept.branch_hours / 24)]
    return tuple(each.name for each in sorted(old, key=lambda each: (each.committed_at, each.name)))


def _older(reference: Reference, now: datetime, *, days: float) -> bool:
    return now - reference.committed_at > timedelta(days=days)
