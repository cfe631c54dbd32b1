"""A restore that is killed five times keeps a complete prefix of the changelog, continues from it, and ends correct."""

import shutil

import pytest

from holdfast.processors.engine.runtime.ownership.changelog_replay import BULK_RECORDS_MIN
from tests.kafka.faults.verification import finish, verify

KILLS = 5


@pytest.mark.thorough
def test_a_restore_killed_five_times_in_mid_way_ends_right(on_site, die_at, waiting, monkeypatch):
    # Without checkpoints, the restore replays the whole changelog.
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS__ENABLED", "false")
    keys = on_site.partitions * (BULK_RECORDS_MIN + 10_000)
    on_site.feed_numbers(keys + 5_000, keys)
    finish(on_site, waiting, slot="0")
    shutil.rmtree(on_site.state_dir)
    for kill in range(KILLS):
        assert die_at("in a replay", 2 + kill) == -9
    on_site.feed_numbers(5_000)
    finish(on_site, waiting, slot="0")
    verify(on_site, on_site.state_dir)
