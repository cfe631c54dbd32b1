"""What tags are let go of: the old ones beyond the newest, never the last, never somebody else's."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.processors.snapshots.retention import Reference, Retention, expired_references

NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEPT = Retention(snapshots=2, snapshot_days=7, time_days=100, branch_hours=24)


def reference(name, days):
    return Reference(name, NOW - timedelta(days=days))


def test_snapshots_are_kept_while_they_are_new_or_among_the_newest():
    tags = [reference(f"snap-{days}", days) for days in (1, 5, 8, 30)]
    assert expired_references(tags, KEPT, NOW) == ("snap-30", "snap-8")
    assert expired_references([reference("snap-a", 90), reference("snap-b", 80)], KEPT, NOW) == ()


def test_the_newest_snapshot_is_never_let_go_of():
    none = Retention(0, 0, 0, 0)
    assert expired_references([reference("snap-a", 90), reference("snap-b", 80)], none, NOW) == ("snap-a",)


@pytest.mark.parametrize(
    ("name", "days", "gone"),
    [
        ("at-2026", 99, False),
        ("at-2026", 101, True),
        ("audit_x", 0.5, False),
        ("audit_x", 1.5, True),
        ("main", 500, False),
        ("end-of-year", 500, False),
    ],
)
def test_other_references_have_their_own_time(name, days, gone):
    assert expired_references([reference(name, days)], KEPT, NOW) == ((name,) if gone else ())
