"""Maintenance keeps the progress of the history table, every tagged snapshot, and branches of running snapshots.

This also holds if another program runs Iceberg's maintenance.
"""

import datetime as dt
import re

import pytest

from holdfast.assets.spark import history
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.history import HistoryUnclear
from holdfast.assets.spark.maintenance import expire_versions, maintain_store
from holdfast.assets.spark.planning import look_at_table
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.audits.tables import tabled
from holdfast.processors.snapshots.names import (
    BRANCH,
    REACH_TAG,
    history_name,
    quoted,
    snapshot_tag,
    table_name,
)

LATER = dt.timedelta(days=10)


def keep(**chosen):
    tags = {"keep_snapshots": 5, "keep_snapshots_days": 0, "keep_times_days": 0, "leftovers_hours": 24}
    return MaintenanceSettings(**{**tags, "keep_versions_hours": 1, "compact_every": 1, **chosen})


def maintain_later(changelog, **chosen):
    now = dt.datetime.now(dt.UTC) + LATER
    return {each.table: each for each in maintain_store(changelog.spark, changelog.processor, "s", keep(**chosen), now)}


def snapshots(changelog, count):
    """Take this many snapshots; before each, one key changes, one is deleted and one is added."""
    made = []
    for number in range(count):
        changelog.write(0, [(b"a", number), (b"n%d" % number, 1), (b"n%d" % (number - 1), None)])
        changelog.write(1, [(b"b", number)])
        made.append(changelog.snapshot().manifest)
    return made


def commit_nothing(spark, table):
    """Commit a version without Holdfast's properties, as other programs do."""
    spark.table(quoted(table)).where("false").writeTo(quoted(table)).append()


def assert_each_change_is_there_once(changelog, manifests):
    assert changelog.history().count() == sum(part.records for each in manifests for part in each.partitions)
    assert changelog.stored(history.live(history.fold(changelog.history()))) == changelog.stored() == changelog.model


@pytest.mark.thorough
def test_the_history_goes_on_after_maintenance_has_expired_its_versions(changelog):
    made = snapshots(changelog, 3)
    done = maintain_later(changelog)[history_name(changelog.processor, "s")]
    assert done.versions_expired
    assert done.files_compacted > done.files_written
    made += snapshots(changelog, 1)
    assert (made[-1].source, made[-1].generation) == ("incremental", 1)
    maintain_later(changelog)
    made += snapshots(changelog, 1)
    assert (made[-1].source, made[-1].generation) == ("incremental", 1)
    assert_each_change_is_there_once(changelog, made)


@pytest.mark.thorough
def test_a_history_that_says_nowhere_how_far_it_goes_is_refused_and_the_action_begins_another(changelog):
    snapshots(changelog, 2)
    spark, table = changelog.spark, history_name(changelog.processor, "s")
    spark.sql(f"ALTER TABLE {quoted(table)} DROP TAG `{REACH_TAG}`")
    commit_nothing(spark, table)
    expire_versions(spark, table, dt.datetime.now(dt.UTC) + LATER)
    with pytest.raises(HistoryUnclear, match=r"has 8 rows, and none of its versions says how far") as refused:
        changelog.snapshot()
    (statement,) = re.findall(r"SQL: (ALTER TABLE .*?); then", refused.value.action)
    spark.sql(statement)
    [made] = snapshots(changelog, 1)
    assert (made.source, made.generation) == ("changelog", 2)
    assert "its history is empty" in made.why
    assert changelog.stored(history.live(history.fold(changelog.history()))) == changelog.stored() == changelog.model
    assert spark.table(quoted(f"{table}_apart")).count() == 8


@pytest.mark.thorough
def test_a_tag_that_is_behind_the_history_is_not_believed(changelog):
    made = snapshots(changelog, 1)
    spark, table = changelog.spark, history_name(changelog.processor, "s")
    first = versions.Versions.of(spark, table).refs[REACH_TAG][1]
    made += snapshots(changelog, 1)
    commit_nothing(spark, table)
    versions.set_tag(spark, table, REACH_TAG, first)
    expire_versions(spark, table, dt.datetime.now(dt.UTC) + LATER)
    with pytest.raises(HistoryUnclear):
        changelog.plan()


@pytest.mark.thorough
def test_snapshots_are_found_by_their_tags_when_another_program_has_expired_the_versions_between(
    changelog, spark_settings
):
    spark, table = changelog.spark, table_name(changelog.processor, "s")
    made = snapshots(changelog, 3)
    for _ in range(2):  # two versions of the branch main without a manifest; the first one expires
        commit_nothing(spark, table)
    expire_versions(spark, table, dt.datetime.now(dt.UTC) + LATER)
    seen = versions.Versions.of(spark, table)
    assert [each.manifest.snapshot_id for each in seen.published()] == [each.snapshot_id for each in reversed(made)]
    assert seen.snapshot(made[0].snapshot_id) == seen.tagged(snapshot_tag(made[0].snapshot_id))
    now = look_at_table(spark, changelog.processor, "s")
    assert (now.base, now.full_at) == (made[-1], made[0].taken_at)
    found = tabled(spark_settings.paths, changelog.processor, "s")
    assert (found.manifest, found.untouched) == (made[-1], False)
    made += snapshots(changelog, 1)
    assert (made[-1].source, made[-1].covers_from) == ("incremental", made[0].covers_from)
    assert_each_change_is_there_once(changelog, made)


@pytest.mark.thorough
def test_the_newest_full_snapshot_keeps_its_tag_and_so_full_ones_stay_rare(changelog):
    made = snapshots(changelog, 4)
    maintain_later(changelog, keep_snapshots=1)
    tags = set(versions.Versions.of(changelog.spark, table_name(changelog.processor, "s")).refs)
    assert tags == {"main", snapshot_tag(made[0].snapshot_id), snapshot_tag(made[3].snapshot_id)}
    assert look_at_table(changelog.spark, changelog.processor, "s").full_at == made[0].taken_at


@pytest.mark.thorough
def test_a_publish_leaves_the_branches_of_others_and_maintenance_ends_the_dead(changelog):
    spark, table = changelog.spark, table_name(changelog.processor, "s")
    [first] = snapshots(changelog, 1)
    old = versions.Versions.of(spark, table).tagged(snapshot_tag(first.snapshot_id))
    other = versions.new_branch(spark, table, "0123456789abcdef", version=old.version)
    snapshots(changelog, 1)
    assert versions.branches_of(spark, table, BRANCH) == [other]
    hours = dt.datetime.now(dt.UTC) + dt.timedelta(hours=12)
    maintain_store(spark, changelog.processor, "s", keep(), hours)
    assert versions.branches_of(spark, table, BRANCH) == [other]
    maintain_later(changelog)
    assert versions.branches_of(spark, table, BRANCH) == []


@pytest.mark.thorough
def test_tags_of_a_version_that_an_unfinished_apply_reads_stay(changelog):
    spark, table = changelog.spark, table_name(changelog.processor, "s")
    made = snapshots(changelog, 3)
    tag = snapshot_tag(made[1].snapshot_id)
    needed = versions.Versions.of(spark, table).tagged(tag).version
    now = dt.datetime.now(dt.UTC) + LATER
    maintain_store(spark, changelog.processor, "s", keep(keep_snapshots=1), now, {needed})
    assert tag in versions.Versions.of(spark, table).refs
    assert changelog.table(tag) == {"a": "1", "n1": "1", "b": "1"}
    maintain_store(spark, changelog.processor, "s", keep(keep_snapshots=1), now)
    assert tag not in versions.Versions.of(spark, table).refs
