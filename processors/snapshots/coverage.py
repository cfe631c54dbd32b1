"""The moments that the history covers: it has every change from an earlier snapshot to a later one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from holdfast.infra.errors import HoldfastError
from holdfast.processors.snapshots.manifest import HISTORY, SnapshotManifest


class NotCovered(HoldfastError):
    """The history lacks changes around this moment; fields: table, at, spans."""


class MomentUnclear(HoldfastError):
    """The argument is not one moment in time."""


def seconds_of(moment: datetime | float) -> float:
    """A moment, given as seconds since 1970 or as a datetime with a zone, as those seconds.

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


def spans(manifests: Iterable[SnapshotManifest]) -> list[tuple[float, float]]:
    """The covered spans of time, oldest first, joined where they touch; seconds since 1970."""
    joined: list[tuple[float, float]] = []
    found = ((each.covers_from, each.taken_at) for each in manifests if each.source != HISTORY)
    for begin, end in sorted(found):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def covering(manifests: Sequence[SnapshotManifest], at: float, table: str) -> SnapshotManifest:
    """The oldest of a table's published snapshots whose covered span contains ``at`` (seconds since 1970).

    Raises:
        NotCovered: No span contains it; the message names the covered spans.
    """
    fitting = [each for each in manifests if each.source != HISTORY and each.covers_from <= at <= each.taken_at]
    if fitting:
        return min(fitting, key=lambda each: each.taken_at)
    known = spans(manifests)
    if not known:
        extent, action = "it has no snapshots yet", "Materialise the snapshot asset for the current time first."
    elif at < known[0][0]:
        extent = f"it reaches back to {shown(known[0][0])}"
        action = "Choose a later time; the warehouse has no data from before its first snapshot."
    elif at > known[-1][1]:
        extent = f"it reaches up to {shown(known[-1][1])}"
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
    """A span as text. The first snapshot, and one after a gap, covers only its own moment."""
    return f"from {shown(begin)} to {shown(end)}" if begin < end else f"at {shown(begin)}, when a snapshot was taken"


def _why_gap(manifests: Sequence[SnapshotManifest], at: float) -> str:
    """The cause of a gap between two snapshots, and the way to avoid it."""
    taken = [each for each in manifests if each.source != HISTORY]
    before = max((each for each in taken if each.taken_at < at), key=lambda each: each.taken_at, default=None)
    after = min((each for each in taken if each.taken_at > at), key=lambda each: each.taken_at, default=None)
    if before is not None and after is not None and before.generation != after.generation:
        return (
            "The changelog was recreated between two snapshots, so no log has the changes between them. Take a "
            "snapshot just before a changelog is recreated."
        )
    return "Snapshots that follow each other within 75 % of the changelog's min.compaction.lag.ms leave no gap."


def nearest(manifests: Iterable[SnapshotManifest], at: float) -> SnapshotManifest | None:
    """The newest snapshot that was taken at or before this moment; None if there is none."""
    older = [each for each in manifests if each.taken_at <= at]
    return max(older, key=lambda each: each.taken_at, default=None)


def shown(at: float) -> str:
    """A moment as text, in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
