"""Chooses the tags and branches of a table that have expired. Pure; ``assets.spark.maintenance`` drops them.

Invariants:
    - The newest snapshot of a table never expires, whatever the settings are.
    - A version with a kept tag keeps its files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.processors.snapshots.names import BRANCH, SNAPSHOT_TAG, TIME_TAG


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
    """A tag or a branch, and the commit time of its version (with a zone)."""

    name: str
    committed_at: datetime


def expired_references(references: Iterable[Reference], kept: Retention, now: datetime) -> tuple[str, ...]:
    """The expired tags and branches, oldest first; names that Holdfast does not make never expire."""
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
