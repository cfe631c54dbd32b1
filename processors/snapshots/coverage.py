"""Computes the time spans for which the history table of a store has every change (covered spans). Pure functions.

A past version is the store's table at a past time. It is built from a published snapshot (the base) and the changes
after it.

Invariants:
    - The checkpoints of a snapshot's partitions have different times. A covered span begins at the latest checkpoint of
      its first snapshot, and ends at the earliest checkpoint of its last snapshot.
    - All checkpoints of the base are at or before the time of the past version.
    - A past version covers no time, and is never a base.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from holdfast.infra.errors import HoldfastError
from holdfast.processors.snapshots.manifest import SnapshotManifest


class NotCovered(HoldfastError):
    """The history does not have all changes around this time. Fields: ``table``, ``at``, ``spans``."""


class MomentUnclear(HoldfastError):
    """The argument is not a single point in time."""


def seconds_of(moment: datetime | float) -> float:
    """Converts a time (a number of seconds since 1970, or a datetime with a zone) to seconds since 1970.

    Raises:
        MomentUnclear: A datetime without a zone, or another type.
    """
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.timestamp()
    if isinstance(moment, int | float):
        return float(moment)
    raise MomentUnclear(
        f"{moment!r} is not one moment: expected a datetime with a zone, or seconds since 1970.",
        action="Add a zone, for example `datetime(2026, 11, 21, 20, tzinfo=UTC)`.",
    )


def with_ends(found: Iterable[tuple[SnapshotManifest, float]]) -> list[SnapshotManifest]:
    """Returns the manifests of a table, each with ``latest_at``: an upper bound for the times of all its checkpoints.

    Manifests of earlier versions of Holdfast have only the earliest checkpoint time. Their bound is the commit time of
    the table version, because checkpoints are made before the commit. With a single partition, the bound is the
    earliest time, which is also the latest.

    In these old manifests, ``covers_from`` is the earliest checkpoint time of the first snapshot. This is too early,
    so the result has the bound of the first snapshot that still exists instead.

    Args:
        found: Each manifest with the commit time of its version, seconds since 1970.
    """
    known = [(each, _bound(each, committed_at)) for each, committed_at in found]
    begins: dict[tuple[int, float], float] = {}
    for each, latest in known:
        if not each.from_history:
            span = (each.generation, each.covers_from)
            begins[span] = min(latest, begins.get(span, latest))
    ended = []
    for each, latest in known:
        if each.latest_at is not None or each.from_history:
            ended.append(each)
            continue
        begin = max(each.covers_from, begins[each.generation, each.covers_from])
        ended.append(replace(each, latest_at=latest, covers_from=begin))
    return ended


def _bound(manifest: SnapshotManifest, committed_at: float) -> float:
    if manifest.latest_at is not None:
        return manifest.latest_at
    return manifest.taken_at if len(manifest.partitions) == 1 else max(manifest.taken_at, committed_at)


def spans(manifests: Iterable[SnapshotManifest]) -> list[tuple[float, float]]:
    """The covered time spans, oldest first, in seconds since 1970; adjacent spans are joined."""
    joined: list[tuple[float, float]] = []
    found = ((each.covers_from, each.taken_at) for each in manifests if not each.from_history)
    for begin, end in sorted(span for span in found if span[0] <= span[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def covering(manifests: Sequence[SnapshotManifest], at: float, table: str) -> SnapshotManifest:
    """The oldest published snapshot of a table whose covered span contains ``at`` (seconds since 1970).

    Raises:
        NotCovered: No span contains the time; the message names the covered spans.
    """
    published = [each for each in manifests if not each.from_history]
    fitting = [each for each in published if each.covers_from <= at <= each.taken_at]
    if fitting:
        return min(fitting, key=lambda each: each.taken_at)
    known = spans(manifests)
    begins = min((each.covers_from for each in published), default=None)
    if begins is None:
        extent, action = "it has no snapshots yet", "Materialise the snapshot asset for the current time first."
    elif at < begins:
        extent = f"it reaches back to {shown(begins)}"
        action = "Choose a later time; the warehouse has no data from before its first snapshot."
    elif not known or at > known[-1][1]:
        since = f"it begins at {shown(begins)}, the latest checkpoint of its first snapshot"
        extent = f"it reaches up to {shown(known[-1][1])}" if known else since
        action = "Materialise the store's state asset, which takes a checkpoint; then materialise this asset again."
    else:
        extent = f"it has every change {', and '.join(_span(begin, end) for begin, end in known)}"
        action = f"Choose a time within these spans. {_why_gap(manifests, at)}"
    raise NotCovered(
        f"The history of {table} does not have every change around {shown(at)}: {extent}.",
        action=action,
        table=table,
        at=at,
        spans=known,
    )


def _span(begin: float, end: float) -> str:
    """A covered time span as text.

    If begin and end are equal, the span is a single point in time. This is so for the first snapshot, and for a
    snapshot if the history lacks changes directly before it.
    """
    return f"from {shown(begin)} to {shown(end)}" if begin < end else f"at {shown(begin)}, when a snapshot was taken"


def _why_gap(manifests: Sequence[SnapshotManifest], at: float) -> str:
    """The reason why the history lacks changes around the time ``at``, and the way to avoid this, as text."""
    taken = [each for each in manifests if not each.from_history]
    before = max((each for each in taken if each.taken_at < at), key=lambda each: each.taken_at, default=None)
    after = min((each for each in taken if each.taken_at > at), key=lambda each: each.taken_at, default=None)
    if before is not None and after is not None and before.generation != after.generation:
        return (
            "The changelog was recreated between two snapshots, so no log has the changes between them. Take a "
            "snapshot just before a changelog is recreated."
        )
    return "Snapshots that follow each other within 75 % of the changelog's min.compaction.lag.ms leave no gap."


def base_for(manifests: Iterable[SnapshotManifest], at: float, known: SnapshotManifest) -> SnapshotManifest | None:
    """The newest snapshot on which a version for the time ``at`` can be built (the base); None if no snapshot fits.

    A snapshot fits if all its checkpoints were taken at or before that time. It must also have the same changelog and
    partitions as ``known``, the snapshot whose span covers the time. A snapshot without a known time of its latest
    checkpoint does not fit.
    """
    older = [
        each
        for each in manifests
        if not each.from_history
        and each.latest_at is not None
        and each.latest_at <= at
        and (each.generation, each.topic_ids) == (known.generation, known.topic_ids)
    ]
    return max(older, key=lambda each: each.taken_at, default=None)


def shown(at: float) -> str:
    """A time as text, in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
