"""Old tags expire, except the newest tags that are always kept.

The last tag, and tags of other programs, never expire.
"""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.processors.snapshots.names import created_at, new_branch_name, time_of, time_tag
from holdfast.processors.snapshots.table_retention import Reference, Retention, expired_references

NOW = datetime(2026, 11, 21, tzinfo=UTC)
KEPT = Retention(snapshots=2, snapshot_days=7, time_days=100, branch_hours=24)


def reference(name, days, *, version=0, source=None):
    return Reference(name, NOW - timedelta(days=days), version, source)


def branch(created_days, *, version_days):
    name = new_branch_name("f00d", NOW - timedelta(days=created_days))
    return reference(name, version_days)


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


def test_the_tag_of_a_time_is_as_old_as_its_time_where_the_store_was_quiet():
    """The age of a tag for a past time is counted from that time, not from the table version to which the tag points.

    Nothing was committed for a year, so today's tag points to a version that is a year old.
    """
    today, old = reference("at-2026-11-20", 365), reference("at-2025-11-20", 365)
    assert expired_references([today, old], KEPT, NOW) == ("at-2025-11-20",)


def test_a_time_of_long_ago_that_was_made_today_is_kept():
    assert expired_references([reference("at-2020-01-01-05-00", 0)], KEPT, NOW) == ()


def test_versions_made_from_the_history_push_no_snapshot_out():
    real = [reference(f"snap-{days}", days, source="incremental") for days in (20, 30)]
    past = [reference(f"snap-p{days}", days, source="history") for days in (1, 2, 3)]
    assert expired_references([*real, *past], KEPT, NOW) == ()


def test_a_version_made_from_the_history_is_kept_with_the_tag_of_its_time():
    snap = reference("snap-p", 50, version=7, source="history")
    assert expired_references([snap, reference("at-2026-10-01", 50, version=7)], KEPT, NOW) == ()
    assert expired_references([snap], KEPT, NOW) == ("snap-p",)
    assert set(expired_references([snap, reference("at-2020-10-01", 150, version=7)], KEPT, NOW)) == {
        "snap-p",
        "at-2020-10-01",
    }


def test_the_newest_full_snapshot_is_kept_however_many_follow_it():
    full = [reference(f"snap-full{days}", days, source="checkpoint") for days in (40, 60)]
    after = [reference(f"snap-{days}", days, source="incremental") for days in (10, 20, 30)]
    assert expired_references([*full, *after], KEPT, NOW) == ("snap-full60", "snap-30")


def test_a_new_branch_from_an_old_version_is_not_a_dead_one():
    alive, dead = branch(0.1, version_days=40), branch(2, version_days=0.1)
    assert expired_references([alive, dead], KEPT, NOW) == (dead.name,)


def test_what_an_unfinished_apply_reads_is_kept():
    tags = [reference(f"snap-{days}", days, version=days) for days in (1, 5, 8, 30)]
    assert expired_references(tags, KEPT, NOW, needed={30}) == ("snap-8",)


def test_names_tell_their_times():
    assert time_of(time_tag("2026-11-21-20:00")) == datetime(2026, 11, 21, 20, tzinfo=UTC)
    assert time_of(time_tag("2026-11-21")) == datetime(2026, 11, 21, tzinfo=UTC)
    assert [time_of(name) for name in ("at-2026", "at-2026-13-01", "snap-2026-11-21", "main")] == [None] * 4
    assert created_at(new_branch_name("f00d", NOW)) == NOW
    assert created_at("audit_f00d-0123abcd") is None
