"""Old runs, and archived copies of deleted resources, are deleted. Tests only the decisions, without Dagster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.infra.settings import UpkeepSettings
from holdfast.orchestration.host.old_runs import OldRun, to_delete
from holdfast.orchestration.jobs.old_files import copies_to_delete
from holdfast.processors.lifecycle.plans.facts.orphans import Archived, Deletion, Manifest

DAY = 86_400.0
KEEP = UpkeepSettings(runs_days=30, failed_runs_days=90, asset_runs_days=400)
NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("run", "age_days", "deleted"),
    [
        (OldRun("r", True, 0.0), 31, True),
        (OldRun("r", True, 0.0), 29, False),
        (OldRun("r", True, 0.0, materialised=True), 399, False),
        (OldRun("r", True, 0.0, materialised=True), 401, True),
        (OldRun("r", False, 0.0), 89, False),
        (OldRun("r", False, 0.0), 91, True),
        (OldRun("r", False, 0.0, materialised=True), 91, True),
        (OldRun("r", True, 0.0, needed=True), 10_000, False),
        (OldRun("r", False, None), 10_000, False),
    ],
)
def test_a_run_is_deleted_after_its_days_unless_something_needs_it(run: OldRun, age_days: int, deleted: bool) -> None:
    assert to_delete([run], KEEP, age_days * DAY) == (("r",) if deleted else ())


def test_a_shorter_time_for_failed_runs_than_for_others_is_lengthened() -> None:
    keep = UpkeepSettings(runs_days=30, failed_runs_days=2, asset_runs_days=2)
    runs = [OldRun("failed", False, 0.0), OldRun("asset", True, 0.0, materialised=True)]
    assert to_delete(runs, keep, 20 * DAY) == ()
    assert to_delete(runs, keep, 31 * DAY) == ("failed", "asset")


def copy(deletion: Deletion | None) -> Archived:
    manifest = Manifest(
        kind="topic", name="t", processor=None, why="", archived_at=NOW, who="me", facts={}, about={}, files={}
    )
    return Archived(Path("archive"), manifest, deletion)


def test_only_copies_of_originals_that_are_gone_for_long_enough_are_deleted() -> None:
    begun = Deletion(begun_at=NOW - timedelta(days=500), who="me")
    old = Deletion(begun_at=NOW, who="me", ended_at=NOW - timedelta(days=400))
    new = Deletion(begun_at=NOW, who="me", ended_at=NOW - timedelta(days=300))
    copies = [copy(None), copy(begun), copy(old), copy(new)]
    assert copies_to_delete(copies, 365, NOW) == (copies[2],)
    assert copies_to_delete(copies, None, NOW) == ()
