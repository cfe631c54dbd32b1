"""Snapshots on real Spark, Kafka and Iceberg are exact, repeatable, audited and readable by other engines."""

import random
import re
from dataclasses import replace

import pytest

from holdfast.assets.spark import current, history
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.fingerprint import prints_of, replacing_sums
from holdfast.assets.spark.sources.changelog import ChangelogUnreadable
from holdfast.assets.spark.writing import snapshot as steps
from holdfast.assets.spark.writing.branch_audit import SnapshotAuditFailed
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.spark import progress
from holdfast.infra.warehouse.catalog import TableUnknown, read_table
from holdfast.processors.engine.changelog.format import META_KEY, key_prefix
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.snapshots.names import snapshot_tag
from holdfast.processors.snapshots.plan import ChangelogMoved, Wanted, plan_snapshot


def python_fingerprints(changelog, plan):
    prints = {}
    for part in plan.partitions:
        folded = {}
        for record in read_range(changelog.bootstrap, plan.topic, part.partition, part.log_start, part.end):
            if record.key == META_KEY:
                continue
            if record.value is None:
                folded.pop(record.key, None)
            else:
                folded[record.key] = record.value
        prints[part.partition] = fingerprint_of(folded.items())
    return prints


def assert_history_tells_the_table(changelog):
    folded = history.live(history.fold(changelog.history()))
    assert changelog.stored(folded) == changelog.stored() == changelog.model


def test_a_first_snapshot_is_the_fold_of_committed_records(changelog, spark_settings):
    changelog.write(0, [(b"a", 1), (b"b", 2), (b"a", 3)])
    changelog.write(0, [(b"a", 99), (b"ghost", 1)], commit=False)
    changelog.write(1, [(b"c", {"x": [1, None]}), (b"gone", 5)])
    changelog.write(1, [(b"gone", None)])
    plan = changelog.plan()
    assert (plan.source.name, plan.why) == ("changelog", "full, because it is the first snapshot")
    result = changelog.snapshot(plan)
    assert result.committed
    assert changelog.table() == {"a": "3", "b": "2", "c": '{"x":[1,null]}'}
    assert result.manifest.fingerprints == python_fingerprints(changelog, plan)
    counts = [(part.records, part.tombstones, part.live_keys) for part in result.manifest.partitions]
    assert counts == [(3, 0, 2), (3, 1, 1)]
    assert [dict(part.inputs) for part in result.manifest.partitions] == [{"in": end} for end in plan.ends.values()]
    arrow = read_table(spark_settings.paths, changelog.processor, "s", tag=snapshot_tag(plan.snapshot_id))
    assert dict(zip(arrow["message_key"].to_pylist(), arrow["json"].to_pylist(), strict=True)) == changelog.table()
    row = changelog.spark.sql(f"SELECT * FROM {changelog.table_name} WHERE message_key = 'b'").collect()[0]
    assert (row["state_key"], row["offset"], row["event_timestamp"].isoformat()) == ("n", 1, "2013-01-01T10:00:00")
    ops = [
        (row["op"], row["message_key"]) for row in changelog.history().orderBy("store_partition", "offset").collect()
    ]
    assert ops == [("put", "a"), ("put", "b"), ("put", "a"), ("put", "c"), ("put", "gone"), ("delete", "gone")]
    assert_history_tells_the_table(changelog)


def test_later_snapshots_merge_what_is_new(changelog):
    changelog.write(0, [(b"a", 1), (b"b", 2)])
    first = changelog.snapshot()
    changelog.write(0, [(b"a", 10), (b"b", None), (b"c", 3)])
    changelog.write(1, [(b"d", 4), (b"e", 5), (b"e", None)])
    plan = changelog.plan()
    assert (plan.source.name, plan.base.snapshot_id) == ("incremental", first.manifest.snapshot_id)
    second = changelog.snapshot(plan)
    assert [(part.records, part.tombstones) for part in second.manifest.partitions] == [(3, 1), (3, 1)]
    assert second.manifest.base == first.manifest.snapshot_id
    assert second.manifest.fingerprints == python_fingerprints(changelog, plan)
    assert_history_tells_the_table(changelog)
    assert changelog.table(snapshot_tag(first.manifest.snapshot_id)) == {"a": "1", "b": "2"}
    recorded = changelog.spark.table(f"holdfast.`{changelog.processor}`._snapshots")
    rows = recorded.selectExpr("snapshot_id", "source", "store_partition", "live_keys", "inputs").collect()
    assert {(row["source"], row["store_partition"], row["live_keys"]) for row in rows} == {
        *{("changelog", 0, 2), ("changelog", 1, 0)},
        *{("incremental", 0, 2), ("incremental", 1, 1)},
    }


@pytest.mark.thorough
def test_the_same_snapshot_commits_nothing_new(changelog):
    changelog.write(0, [(b"a", 1)])
    plan = changelog.plan()
    first = changelog.snapshot(plan)
    again = changelog.snapshot(plan)
    assert (again.committed, again.version, again.manifest) == (False, first.version, first.manifest)
    planned_anew = changelog.plan()
    assert (planned_anew.published, planned_anew.snapshot_id) == (True, plan.snapshot_id)
    assert not changelog.snapshot(planned_anew).committed
    published = versions.Versions.of(changelog.spark, plan.table).published()
    assert [each.manifest.snapshot_id for each in published] == [plan.snapshot_id]
    assert changelog.history().count() == 1


@pytest.mark.thorough
def test_the_range_is_exact(changelog):
    changelog.write(0, [(b"a", 1)])
    end = changelog.ends()[0]
    changelog.write(0, [(b"a", 2)])
    changelog.snapshot(changelog.plan({0: end}))
    assert changelog.table() == {"a": "1"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("few", "join"), [pytest.param(False, "SortMergeJoin", marks=pytest.mark.thorough), (True, "ShuffledHashJoin")]
)
def test_a_merge_moves_no_row_between_tasks(changelog, few, join):
    spark = changelog.spark
    changelog.write(0, [(b"%d" % number, 1) for number in range(20)])
    changelog.snapshot()
    changelog.write(0, [(b"1", 2)])
    work = steps.Work(spark, changelog.plan(), changelog.source, None, None)
    with current.aligned_plans(spark):
        steps.feed_history(work)
        rows = work.changes().where(history.between(work.plan.generation, work.ranges()))
        current.current_rows(history.fold(rows), ("op",)).createOrReplaceTempView("holdfast_changes")
        branch = versions.new_branch(spark, work.plan.table, work.plan.snapshot_id)
        statement = current.merge_statement(work.plan.table, branch)
        with current.merging(spark, few=few):
            plan = spark.sql(f"EXPLAIN FORMATTED {statement}").collect()[0][0]
        changed = current.joined_in_memory(history.fold(rows)) if few else history.fold(rows)
        before = versions.at_version(spark, work.plan.table, versions.MAIN)
        replacing_sums(changed, history.LIVE, before).createOrReplaceTempView("holdfast_sums")
        audit = spark.sql("EXPLAIN FORMATTED SELECT * FROM holdfast_sums").collect()[0][0]
    assert "MergeRows" in plan
    for shown in (plan, audit):
        assert join in shown
        assert "Exchange" not in shown


@pytest.mark.thorough
def test_of_the_history_only_the_files_of_the_range_are_read(changelog):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(1, [(b"b", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    work = steps.Work(changelog.spark, changelog.plan(), changelog.source, None, None)
    steps.feed_history(work)
    rows = work.changes().where(history.between(work.plan.generation, work.ranges()))
    assert [row["value"][-1:] for row in rows.collect()] == [b"2"]
    rows.createOrReplaceTempView("holdfast_range")
    plan = changelog.spark.sql("EXPLAIN FORMATTED SELECT * FROM holdfast_range").collect()[0][0]
    (scan,) = [line for line in plan.splitlines() if "filters=" in line]
    for part in work.plan.partitions:
        assert f"store_partition = {part.partition} AND offset <= {part.end}" in scan
    assert f"offset >= {work.plan.partitions[0].start}" in scan


@pytest.mark.thorough
def test_a_full_snapshot_that_is_asked_for_gives_the_same(changelog):
    changelog.write(0, [(b"a", 1), (b"b", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2), (b"b", None)])
    merged = changelog.snapshot()
    full = changelog.snapshot(changelog.plan(wanted=Wanted.CHANGELOG))
    assert full.committed
    assert (full.manifest.source, full.corrections) == ("changelog", 0)
    assert full.manifest.fingerprints == merged.manifest.fingerprints
    assert full.manifest.covers_from == merged.manifest.covers_from
    assert_history_tells_the_table(changelog)
    offset = changelog.spark.sql(f"SELECT offset FROM {changelog.table_name}").collect()[0]["offset"]
    assert offset == changelog.history().where("op = 'put'").selectExpr("max(offset) AS m").collect()[0]["m"]


@pytest.mark.thorough
def test_a_changelog_made_anew_begins_another_generation(changelog):
    changelog.write(0, [(b"a", 1), (b"b", 2)])
    changelog.snapshot()
    changelog.recreate()
    changelog.write(0, [(b"a", 1), (b"c", 3)])
    facts = changelog.facts()
    first, second = facts.points
    result = changelog.snapshot(plan_snapshot(replace(facts, points=(first, replace(second, taken_at=facts.now - 60)))))
    assert result.manifest.source == "changelog"
    assert "recreated" in result.manifest.why
    assert (result.manifest.generation, result.corrections) == (2, 1)
    (gone,) = changelog.history().where("op = 'base_delete'").selectExpr("*", "unix_micros(timestamp) AS at").collect()
    assert (gone["message_key"], gone["at"]) == ("b", round(first.taken_at * 1e6)), "of its own partition's checkpoint"
    assert result.manifest.covers_from == result.manifest.latest_at == first.taken_at
    assert_history_tells_the_table(changelog)
    changelog.write(0, [(b"b", 9)])
    assert changelog.snapshot().manifest.source == "incremental"
    assert_history_tells_the_table(changelog)


DIED_AFTER = ["plan", "feed", "write", "audit", "history", "table", "record"]


@pytest.mark.parametrize(
    "died_after",
    # in `make test`, runs die only after this step, when readers can already see the new version
    [step if step == "table" else pytest.param(step, marks=pytest.mark.thorough) for step in DIED_AFTER],
)
@pytest.mark.parametrize("wanted", [Wanted.AUTO, pytest.param(Wanted.CHANGELOG, marks=pytest.mark.thorough)])
def test_a_run_that_died_converges_when_run_again(changelog, died_after, wanted):
    changelog.write(0, [(b"a", 1), (b"b", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2), (b"b", None)])
    plan = changelog.plan(wanted=wanted)
    work = steps.Work(changelog.spark, plan, changelog.source, None, None)
    done = DIED_AFTER.index(died_after)
    with current.aligned_plans(changelog.spark):
        if done >= 1:
            steps.feed_history(work)
        if done >= 2:
            steps.write_branch(work)
        if done >= 3:
            steps.seal(work, steps.audit_branch(work))
        if done >= 4:
            steps.publish_history(work)
        if done >= 5:
            steps.publish_table(work)
        if done >= 6:
            found = versions.Versions.of(changelog.spark, plan.table).snapshot(plan.snapshot_id)
            steps.record_snapshot(changelog.spark, found.manifest)
    assert changelog.table() == ({"a": "2"} if done >= 5 else {"a": "1", "b": "1"})
    planned_anew = changelog.plan(plan.ends, wanted=Wanted.AUTO if done >= 5 else wanted)
    assert planned_anew.snapshot_id == plan.snapshot_id
    assert changelog.snapshot(planned_anew).committed == (done < 5)
    assert changelog.table(snapshot_tag(plan.snapshot_id)) == {"a": "2"}
    assert_history_tells_the_table(changelog)
    assert changelog.history().count() == 4, "each change once"
    for name in ("s", "s_history", "_snapshots"):
        seen = versions.Versions.of(changelog.spark, f"holdfast.{changelog.processor}.{name}")
        assert [ref for ref, (kind, _) in seen.refs.items() if kind == "BRANCH"] == ["main"]
    recorded = changelog.spark.table(f"holdfast.`{changelog.processor}`._snapshots")
    assert recorded.where(f"snapshot_id = '{plan.snapshot_id}'").count() == 2


@pytest.mark.thorough
@pytest.mark.parametrize("then", [Wanted.AUTO, Wanted.CHANGELOG])
@pytest.mark.parametrize("died", [Wanted.AUTO, Wanted.CHANGELOG])
def test_another_snapshot_after_one_that_died_with_its_history_published(changelog, died, then):
    changelog.write(0, [(b"a", 1), (b"b", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2), (b"b", None)])
    work = steps.Work(changelog.spark, changelog.plan(wanted=died), changelog.source, None, None)
    with current.aligned_plans(changelog.spark):
        steps.feed_history(work)
        steps.write_branch(work)
        steps.seal(work, steps.audit_branch(work))
        steps.publish_history(work)
    changelog.write(0, [(b"b", 7), (b"c", 8)])
    result = changelog.snapshot(changelog.plan(wanted=then))
    assert result.manifest.source == ("incremental" if then is Wanted.AUTO else "changelog")
    assert changelog.table() == {"a": "2", "b": "7", "c": "8"}
    assert_history_tells_the_table(changelog)
    assert changelog.history().count() == 6, "each change once"


@pytest.mark.thorough
def test_two_runs_of_one_plan_commit_once(changelog):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    plan = changelog.plan()
    slow = steps.Work(changelog.spark, plan, changelog.source, None, None)
    with current.aligned_plans(changelog.spark):
        steps.feed_history(slow)
        steps.write_branch(slow)
        steps.seal(slow, steps.audit_branch(slow))
    assert changelog.snapshot(plan).committed
    with current.aligned_plans(changelog.spark):
        steps.publish_history(slow)
        with pytest.raises(versions.TableMoved):
            steps.publish_table(slow)
    assert not changelog.snapshot(plan).committed
    assert_history_tells_the_table(changelog)
    assert changelog.history().count() == 2
    seen = versions.Versions.of(changelog.spark, plan.table)
    assert [each.manifest.snapshot_id for each in seen.published()].count(plan.snapshot_id) == 1


@pytest.mark.thorough
def test_a_run_that_another_one_overtook_before_its_audit_is_told_so(changelog):
    """A slow run is told that another run has published before the slow run's audit.

    The audit compares the slow run's branch only with the version from which it started, so the branch itself passes.
    """
    changelog.write(0, [(b"a", 1), (b"b", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    slow = steps.Work(changelog.spark, changelog.plan(), changelog.source, None, None)
    with current.aligned_plans(changelog.spark):
        steps.feed_history(slow)
        steps.write_branch(slow)
    changelog.write(0, [(b"a", 3)])
    assert changelog.snapshot().committed
    with current.aligned_plans(changelog.spark):
        steps.seal(slow, steps.audit_branch(slow))
        with pytest.raises(versions.TableMoved):
            steps.publish_history(slow)
    assert changelog.table() == {"a": "3", "b": "1"}


@pytest.mark.thorough
def test_a_table_that_was_compacted_meanwhile_is_written_again(changelog, monkeypatch):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    sealed = steps.seal
    moved = []

    def seal_and_move(work, measured):
        sealed(work, measured)
        if not moved:
            moved.append(1)
            changelog.spark.table(changelog.table_name).where("false").writeTo(changelog.table_name).append()

    monkeypatch.setattr(steps, "seal", seal_and_move)
    assert changelog.snapshot().committed
    assert_history_tells_the_table(changelog)
    assert changelog.history().count() == 2


def test_a_snapshot_that_is_not_what_the_owner_holds_is_not_published(changelog):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    plan = changelog.plan()
    with pytest.raises(SnapshotAuditFailed, match=r"partition 0 has 1-.*, expected 7-0.*Nothing was published"):
        changelog.snapshot(plan, stored={0: Fingerprint(7), 1: Fingerprint()})
    assert changelog.table() == {"a": "1"}
    assert changelog.history().count() == 1
    stored = python_fingerprints(changelog, plan)
    assert changelog.snapshot(plan, stored=stored).manifest.fingerprints == stored


@pytest.mark.thorough
def test_what_was_written_wrongly_is_not_published(changelog, monkeypatch):
    changelog.write(0, [(b"a", 1), (b"b", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    merged = current.merge

    def merge_and_lose(spark, folded, table, branch, schema=None, *, few=False):
        merged(spark, folded, table, branch, schema, few=few)
        spark.sql(f"DELETE FROM {versions.branch_table(table, branch)} WHERE message_key = 'b'")

    with monkeypatch.context() as patch:
        patch.setattr(current, "merge", merge_and_lose)
        with pytest.raises(SnapshotAuditFailed, match="differs from the records that were read: partition 0"):
            changelog.snapshot()
    assert changelog.table() == {"a": "1", "b": "1"}
    assert changelog.snapshot().committed
    assert changelog.table() == {"a": "2", "b": "1"}


@pytest.mark.thorough
def test_empty_partitions_and_emptied_stores(changelog):
    assert changelog.snapshot().manifest.rows == 0
    changelog.write(1, [(b"a", 1)])
    assert changelog.snapshot().manifest.fingerprints[0] == Fingerprint()
    changelog.write(1, [(b"a", None)])
    assert changelog.snapshot().manifest.rows == 0
    assert changelog.table() == {}
    assert_history_tells_the_table(changelog)


@pytest.mark.thorough
def test_keys_of_a_mebibyte_and_keys_that_are_no_text(changelog):
    changelog.topics.alter(changelog.topic, {"max.message.bytes": str(4 << 20)})
    long, odd = b"k" * ((1 << 20) - 200), b"\xff\xfe\x00"
    changelog.write(0, [(long, 1), (odd, 2)])
    changelog.snapshot()
    changelog.write(0, [(long, 3), (odd, None)])
    assert changelog.snapshot().manifest.source == "incremental"
    assert_history_tells_the_table(changelog)
    assert changelog.table() == {long.decode(): "3"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x09odd", b"\x01\x01" + bytes(8) + b"1"),
        pytest.param(b"\x09\xff\xff\xff\xff", b"\x01\x01" + bytes(8) + b"1", marks=pytest.mark.thorough),
        pytest.param(key_prefix(b"k") + b"n", b"\x07\x01" + bytes(8) + b"1", marks=pytest.mark.thorough),
        pytest.param(key_prefix(b"k") + b"n", b"\x01\x55" + bytes(8) + b"1", marks=pytest.mark.thorough),
    ],
)
def test_an_unknown_format_is_refused_and_named(changelog, key, value):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    offset = changelog.ends()[0]
    changelog.write_raw(0, key, value)
    with pytest.raises(ChangelogUnreadable, match=rf"\[0\] has a record of an unknown format at offset {offset}"):
        changelog.snapshot()
    assert changelog.table() == {"a": "1"}
    assert changelog.history().count() == 1


@pytest.mark.thorough
def test_a_changelog_made_anew_between_plan_and_read_is_noticed(changelog):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    plan = changelog.plan()
    changelog.recreate()
    changelog.write(0, [(b"x", 1), (b"y", 1), (b"z", 1), (b"w", 1), (b"v", 1), (b"u", 1)])
    with pytest.raises(ChangelogMoved, match="recreated between plan and read"):
        changelog.snapshot(plan)
    assert changelog.table() == {"a": "1"}
    assert changelog.history().count() == 1


@pytest.mark.thorough
def test_a_changelog_truncated_during_the_read_is_noticed(changelog):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    plan = changelog.plan()
    log = changelog.look()
    cut = {**log.partitions, 0: replace(log.partitions[0], start=plan.partitions[0].start + 1)}
    source = replace(changelog.source, look=lambda: replace(log, partitions=cut))
    with pytest.raises(ChangelogMoved, match="truncated to"):
        steps.write_snapshot(changelog.spark, plan, source, changelog.claims)
    assert changelog.table() == {"a": "1"}
    assert changelog.snapshot(plan).committed


@pytest.mark.thorough
def test_a_snapshot_that_takes_long_tells_what_is_read_how_far_it_is_and_for_how_long(changelog, monkeypatch):
    monkeypatch.setattr(progress, "TOLD_EVERY_S", 0.01)
    changelog.write(0, [(b"k%d" % number, number) for number in range(500)])
    lines = []
    changelog.snapshot(tell=lines.append)
    told = "\n".join(lines)
    assert f"reading {changelog.ends()[0]} offsets of {changelog.topic} into holdfast." in told
    assert "from the whole changelog: " in told
    assert "records read so far, " in told
    assert re.search(r"auditing holdfast\S+ as it was written: .*\d+ s$", told, re.MULTILINE)


def test_fingerprints_are_equal_in_spark_and_python(spark):
    rng = random.Random(7)
    pairs = {rng.randbytes(rng.randrange(40)): rng.randbytes(rng.randrange(200)) for _ in range(500)}
    rows = [(number % 3, bytearray(key), bytearray(value)) for number, (key, value) in enumerate(pairs.items())]
    frame = spark.createDataFrame(rows, "store_partition int, key binary, value binary")
    expected = {
        part: fingerprint_of((bytes(key), bytes(value)) for place, key, value in rows if place == part)
        for part in range(3)
    }
    assert prints_of(frame).pairs == expected


@pytest.mark.thorough
def test_a_table_that_is_not_there_is_named(spark_settings, changelog):
    with pytest.raises(TableUnknown, match="nothing.here"):
        read_table(spark_settings.paths, "nothing", "here")
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    with pytest.raises(TableUnknown, match="no tag nonsense"):
        read_table(spark_settings.paths, changelog.processor, "s", tag="nonsense")
