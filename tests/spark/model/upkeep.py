"""Checks which tags, branches and versions (Iceberg snapshots) maintenance keeps, and which it drops."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.snapshots.manifest import ATTEMPT_PROPERTY
from holdfast.processors.snapshots.names import BRANCH, REACH_TAG, SNAPSHOT_TAG, TIME_TAG
from tests.spark.model.changelog import HOUR
from tests.spark.model.checks import HISTORY, require
from tests.spark.model.life import STORE, Life
from tests.spark.model.reading import Seen

DAY = 24 * HOUR
QUARANTINE = f"{STORE}_quarantine"


def kept_names(life: Life, seen: Seen, keep: MaintenanceSettings) -> set[str]:
    """The tags and branches of the table that maintenance must keep."""
    now = life.clock.time()
    made = {tag: life.clock.shown(seen.versions[version][1]) for tag, version in seen.tags.items()}
    newest_first = sorted(seen.tags, key=made.__getitem__, reverse=True)
    past = {tag for tag in newest_first if (manifest := seen.manifest(seen.tags[tag])) and manifest.from_history}
    real = [tag for tag in newest_first if tag.startswith(SNAPSHOT_TAG) and tag not in past]
    kept = {*real[: keep.keep_snapshots], *_full(seen, real)[:1]}
    kept |= {tag for tag in newest_first if tag.startswith(SNAPSHOT_TAG) and now - made[tag] <= _days(keep)}
    times = {tag for tag in seen.tags if tag.startswith(TIME_TAG)}
    kept |= {tag for tag in times if now - max(made[tag], _begin(tag)) <= keep.keep_times_days * DAY}
    shown = {seen.tags[tag] for tag in kept & times}
    kept |= {tag for tag in past if seen.tags[tag] in shown and tag.startswith(SNAPSHOT_TAG)}
    kept |= {tag for tag, version in seen.tags.items() if version in life.needed}
    return kept | {name for name in seen.branches if not _dead(name, now, keep)}


def _full(seen: Seen, tags: list[str]) -> list[str]:
    manifests = ((tag, seen.manifest(seen.tags[tag])) for tag in tags)
    return [
        tag for tag, manifest in manifests if manifest is not None and manifest.source in ("checkpoint", "changelog")
    ]


def _days(keep: MaintenanceSettings) -> float:
    return keep.keep_snapshots_days * DAY


def _begin(tag: str) -> float:
    return datetime.strptime(tag.removeprefix(TIME_TAG), "%Y-%m-%d-%H-%M").replace(tzinfo=UTC).timestamp()


def _dead(branch: str, now: float, keep: MaintenanceSettings) -> bool:
    """Whether a branch is old enough to drop. Branches are named ``audit_<snapshot>-<seconds>-<random>``."""
    return branch.startswith(BRANCH) and now - int(branch.split("-")[-2]) > keep.leftovers_hours * HOUR


def check_upkeep(life: Life, before: Seen, kept: set[str], *, exactly: bool) -> None:
    """Check that all tags and branches in ``kept`` exist after maintenance. With ``exactly``, no others may exist."""
    after = life.tables.seen(STORE)
    assert after is not None
    names = {*after.tags, *after.branches}
    require("kept", kept <= names, f"maintenance dropped {sorted(kept - names)} of {sorted({*before.tags})}")
    moved = {tag for tag in kept & before.tags.keys() if after.tags[tag] != before.tags[tag]}
    require("kept", not moved, f"maintenance moved {moved}")
    if exactly:
        require("dropped", names <= kept, f"maintenance left {sorted(names - kept)}")
    history = life.tables.seen(HISTORY)
    if history is not None and any("holdfast.history" in summary for _, _, summary in history.versions.values()):
        require("kept", REACH_TAG in history.tags, "the history has no tag of its reach")
    check_quarantine(life, after, nothing_else=exactly)


def check_quarantine(life: Life, seen: Seen, *, nothing_else: bool) -> None:
    """Check that each tagged snapshot has its unreadable values in quarantine.

    Unpublished attempts must have none there.
    """
    table = life.tables.seen(QUARANTINE)
    rows = life.tables.rows(QUARANTINE, table.head) if table is not None else []
    counted = Counter(row["attempt"] for row in rows)
    published = {seen.versions[version][2].get(ATTEMPT_PROPERTY) for version in seen.tags.values()}
    for tag, version in seen.tags.items():
        manifest = seen.manifest(version)
        if manifest is not None and not manifest.from_history and tag.startswith(SNAPSHOT_TAG):
            found = counted[seen.versions[version][2][ATTEMPT_PROPERTY]]
            require("quarantine", found == manifest.quarantined, f"{tag} has {found}, said {manifest.quarantined}")
    if nothing_else:
        known = published | seen.branches.keys()
        require("quarantine", counted.keys() <= known, f"values of {counted.keys() - known}")
