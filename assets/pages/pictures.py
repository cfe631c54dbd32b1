"""Draws the picture on each asset's page, as Markdown.

processor   lag and restore time of each task
changelog   number of offsets between start and end at each check, one bar for each check
state       keys of each partition
snapshot    keys and offsets of each partition, and the last snapshots
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.assets.pages.drawing import (
    BLUE,
    GREEN,
    GREY,
    PALE,
    RED,
    Bar,
    bars,
    box,
    label,
    markdown,
    note,
    scaled,
    svg,
)
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.snapshots.coverage import shown
from holdfast.processors.snapshots.facts import ChangelogNow
from holdfast.processors.snapshots.manifest import SnapshotManifest

#: Maximum number of snapshots, and maximum number of partitions, in one picture.
SNAPSHOTS_MAX, PARTITIONS_MAX = 20, 32
#: Maximum number of runs of a changelog's check in one picture: a month, because the check runs every night.
CHECKS_MAX = 31


def snapshot_picture(
    manifest: SnapshotManifest, changelog: ChangelogNow | None, snapshots: Sequence[SnapshotManifest]
) -> str:
    """The picture of a snapshot as Markdown, with a headline.

    ``snapshots`` are the published snapshots, newest first.
    """
    base = f", base {manifest.base}" if manifest.base else ""
    headline = (
        f"**{manifest.snapshot_id}** at {shown(manifest.taken_at)}{base}: {manifest.source}, {manifest.rows:,} keys "
        f"in {len(manifest.partitions)} partitions"
    )
    return f"{headline}\n\n{markdown(snapshot_svg(manifest, changelog, snapshots), 'the snapshot')}"


def snapshot_svg(
    manifest: SnapshotManifest, changelog: ChangelogNow | None, snapshots: Sequence[SnapshotManifest]
) -> str:
    """The picture of a snapshot as SVG."""
    offsets = ("Offsets by partition: log start, base, snapshot, head", list(_offsets(manifest, changelog)))
    last = (f"Keys and deletions of the last {SNAPSHOTS_MAX} snapshots", list(_last(snapshots)))
    return svg([("Keys by partition", list(_keys(manifest))), offsets, last])


def _keys(manifest: SnapshotManifest) -> Iterator[str]:
    most = max((part.live_keys for part in manifest.partitions), default=0) or 1
    for part in manifest.partitions[:PARTITIONS_MAX]:
        width = scaled(part.live_keys, most)
        yield label(f"partition {part.partition}") + box(0, width, BLUE) + note(width, f"{part.live_keys:,}")


def _offsets(manifest: SnapshotManifest, changelog: ChangelogNow | None) -> Iterator[str]:
    for part in manifest.partitions[:PARTITIONS_MAX]:
        log = changelog.partitions.get(part.partition) if changelog is not None else None
        head = max(part.end, log.end if log is not None else 0)
        end, base = scaled(part.end, head), scaled(part.start, head)
        start = scaled(min(part.log_start, part.end), head)
        row = label(f"partition {part.partition}") + box(0, start, RED, opacity="0.25")
        row += box(start, scaled(head, head), PALE) + box(start, base, GREY) + box(base, end, GREEN)
        yield row + note(scaled(head, head), f"{part.log_start:,} · {part.start:,} · {part.end:,} · {head:,}")


def _last(snapshots: Sequence[SnapshotManifest]) -> Iterator[str]:
    drawn = snapshots[:SNAPSHOTS_MAX]
    most = max((each.rows for each in drawn), default=0) or 1
    for each in drawn:
        gone = sum(part.tombstones for part in each.partitions)
        width = scaled(each.rows, most)
        text = f"{each.rows:,} keys, {gone:,} deletions, {each.source}"
        yield label(shown(each.taken_at)[:16]) + box(0, width, BLUE) + note(width, text)


def processor_picture(statuses: Sequence[ProcessorStatus]) -> str:
    """Lag and restore time of each task, as Markdown with a headline; empty if there are no tasks."""
    tasks = sorted((task for status in statuses for task in status.tasks), key=lambda task: (task.partition, task.task))
    if not tasks:
        return ""
    lags = [(task, [at.lag for at in task.inputs.values()]) for task in tasks]
    lag_rows = [
        Bar(task.task, sum(known), f"{sum(known):,} records" if len(known) == len(each) else "not known yet")
        for task, each in lags
        for known in [[lag for lag in each if lag is not None]]
    ]
    restores = [
        Bar(task.task, task.restored_s, f"{task.restored_s:,.1f} s, {task.restored:,} records", GREEN) for task in tasks
    ]
    slowest = max(task.restored_s for task in tasks)
    headline = f"**{len(tasks)} tasks**: {sum(row.value for row in lag_rows):,.0f} records behind; the slowest restore "
    drawn = svg([("Lag by task", bars(lag_rows)), ("Restore by task, when it started", bars(restores))])
    return f"{headline}took {slowest:,.1f} s\n\n{markdown(drawn, 'lag and restore by task')}"


def skew(counts: Mapping[int, int]) -> float:
    """Number of keys in the fullest partition divided by the mean; 1 if all partitions are equal or empty."""
    total = sum(counts.values())
    return round(max(counts.values()) * len(counts) / total, 3) if total else 1.0


def state_picture(store: str, counts: Mapping[int, int]) -> str:
    """Number of keys in each partition, as Markdown with a headline; empty if there are no partitions."""
    if not counts:
        return ""
    total, mean = sum(counts.values()), sum(counts.values()) / len(counts)
    rows = [
        Bar(f"partition {number}", keys, f"{keys:,}", RED if mean and keys > 2 * mean else BLUE)
        for number, keys in sorted(counts.items())
    ]
    headline = f"**{store}**: {total:,} keys in {len(counts)} partitions; the fullest has {skew(counts):g} times the "
    return f"{headline}mean\n\n{markdown(svg([('Keys by partition', bars(rows))]), 'keys by partition')}"


@dataclass(frozen=True, slots=True)
class CompactionSeen:
    """The values that one check of a changelog found: offsets between start and end, and number of live keys."""

    at: datetime
    span: int
    #: Number of live keys; None if the worker did not report it.
    keys: int | None
    passed: bool


def changelog_picture(history: Sequence[CompactionSeen]) -> str:
    """Number of offsets at each check, as Markdown with a headline.

    ``history`` is newest first; an empty history gives an empty text.
    """
    if not history:
        return ""
    rows, newest = [], history[0]
    for each in reversed(history[:CHECKS_MAX]):
        for_each = f", {each.keys:,} keys: {each.span / each.keys:,.1f} for each" if each.keys else ""
        colour = BLUE if each.passed else RED
        rows.append(Bar(f"{each.at:%Y-%m-%d %H:%M}", each.span, f"{each.span:,} offsets{for_each}", colour))
    keys = "" if newest.keys is None else f" for {newest.keys:,} keys"
    headline = f"**{newest.span:,} offsets**{keys} between the changelog's start and end"
    return f"{headline}\n\n{markdown(svg([('Offsets, check by check', bars(rows))]), 'offsets, check by check')}"
