"""Which moments of the past the history can give: those between snapshots that it has every change of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from holdfast.infra.errors import HoldfastError
from holdfast.processors.snapshots.manifest import HISTORY, SnapshotManifest


class NotCovered(HoldfastError):
    """The history does not have every change around this moment; fields: table, at, spans."""


class MomentUnclear(HoldfastError):
    """What was given for a moment is none."""


def seconds_of(moment: datetime | float) -> float:
    """A moment as seconds since 1970.

    Args:
        moment: Those seconds, or a datetime with a zone.

    Raises:
        MomentUnclear: It has no zone, or is neither.
    """
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.timestamp()
    if isinstance(moment, int | float):
        return float(moment)
    raise MomentUnclear(
        f"{moment!r} is not one moment: expected a datetime with a zone, or seconds since 1970.",
        action="Give it a zone, for example datetime(2026, 11, 21, 20, tzinfo=UTC).",
    )


def spans(manifests: Iterable[SnapshotManifest]) -> list[tuple[float, float]]:
    """The spans of time that are covered, oldest first, joined where they touch (seconds since 1970)."""
    joined: list[tuple[float, float]] = []
    found = ((each.covers_from, each.taken_at) for each in manifests if each.source != HISTORY)
    for begin, end in sorted(found):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def covering(manifests: Sequence[SnapshotManifest], at: float, table: str) -> SnapshotManifest:
    """The oldest snapshot whose span has this moment in it.

    Args:
        manifests: The published snapshots of the table.
        at: Seconds since 1970.
        table: For the message.

    Raises:
        NotCovered: None has; the message says from when on, and up to when, there are.
    """
    fitting = [each for each in manifests if each.source != HISTORY and each.covers_from <= at <= each.taken_at]
    if fitting:
        return min(fitting, key=lambda each: each.taken_at)
    known = spans(manifests)
    if not known:
        said, action = "it has no snapshots yet", "Materialise the snapshot asset for the current time first."
    elif at < known[0][0]:
        said = f"it reaches back to {shown(known[0][0])}"
        action = "Ask for a later time; what was before the first snapshot is not known to the warehouse."
    elif at > known[-1][1]:
        said = f"it reaches up to {shown(known[-1][1])}"
        action = "Materialise the store's state asset (it takes a checkpoint), then this again."
    else:
        said = f"it has every change {', and '.join(_told(begin, end) for begin, end in known)}"
        action = f"Ask for a time in what it has. {_why_gap(manifests, at)}"
    raise NotCovered(
        f"The history of {table} does not have every change around {shown(at)}: {said}.",
        action=action,
        table=table,
        at=at,
        spans=known,
    )


def _told(begin: float, end: float) -> str:
    """A span, for people. A snapshot that follows none, or a gap, is known at its own moment only."""
    return f"from {shown(begin)} to {shown(end)}" if begin < end else f"at {shown(begin)}, when a snapshot was taken"


def _why_gap(manifests: Sequence[SnapshotManifest], at: float) -> str:
    """Why nothing is known of a moment between two snapshots, and what leaves no such gap another time."""
    taken = [each for each in manifests if each.source != HISTORY]
    before = max((each for each in taken if each.taken_at < at), key=lambda each: each.taken_at, default=None)
    after = min((each for each in taken if each.taken_at > at), key=lambda each: each.taken_at, default=None)
    if before is not None and after is not None and before.generation != after.generation:
        return (
            "The changelog was made anew between two snapshots: what was written between the last one of the old "
            "changelog and the first one of the new is in no log; take a snapshot just before a changelog is remade."
        )
    return "Snapshots that follow each other within 75 % of the changelog's min.compaction.lag.ms leave no gap."


def nearest(manifests: Iterable[SnapshotManifest], at: float) -> SnapshotManifest | None:
    """The newest snapshot that was taken at this moment or before it."""
    older = [each for each in manifests if each.taken_at <= at]
    return max(older, key=lambda each: each.taken_at, default=None)


def shown(at: float) -> str:
    """A moment, for people."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
