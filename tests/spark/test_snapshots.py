"""Snapshots on real Spark, Kafka and Iceberg: exact, repeatable, audited, readable by others."""

import random

import pytest

from assets.spark import snapshot as steps
from assets.spark.changelog import ChangelogUnreadable
from assets.spark.fingerprint import fingerprint_partitions
from infra.kafka.reader import read_range
from infra.warehouse.catalog import TableUnknown, read_table
from processors.changelog.format import META_KEY, key_prefix
from processors.state.fingerprint import Fingerprint, fingerprint_of


def python_fingerprints(changelog, plan):
    prints = {}
    for part in plan.ranges:
        folded = {}
        for record in read_range(changelog.bootstrap, part.topic, part.partition, part.start, part.end):
            if record.key == META_KEY:
                continue
            if record.value is None:
                folded.pop(record.key, None)
            else:
                folded[record.key] = record.value
        prints[part.partition] = fingerprint_of(folded.items())
    return prints


def test_a_snapshot_is_the_fold_of_committed_records(changelog, spark_settings):
    changelog.write(0, [(b"a", 1), (b"b", 2), (b"a", 3)])
    changelog.write(0, [(b"a", 99), (b"ghost", 1)], commit=False)
    changelog.write(1, [(b"c", {"x": [1, None]}), (b"gone", 5)])
    changelog.write(1, [(b"gone", None)])
    plan = changelog.plan()
    result = changelog.snapshot(plan)
    assert result.committed
    assert changelog.table() == {"a": "3", "b": "2", "c": '{"x":[1,null]}'}
    assert result.fingerprints == python_fingerprints(changelog, plan)
    assert [(part.rows_read, part.tombstones, part.live_keys) for part in result.partitions] == [(3, 0, 2), (3, 1, 1)]
    assert steps.table_fingerprints(changelog.spark, plan) == result.fingerprints
    arrow = read_table(spark_settings.paths, changelog.processor, "s", tag=f"snap-{plan.snapshot_id}")
    assert dict(zip(arrow["message_key"].to_pylist(), arrow["json"].to_pylist(), strict=True)) == changelog.table()
    row = changelog.spark.sql(f"SELECT * FROM holdfast.`{changelog.processor}`.s WHERE message_key = 'b'").collect()[0]
    assert (row["state_key"], row["offset"], row["event_timestamp"].isoformat()) == ("n", 1, "2013-01-01T10:00:00")


def test_the_same_snapshot_commits_nothing_new_and_an_earlier_one_stays(changelog):
    changelog.write(0, [(b"a", 1)])
    first = changelog.snapshot()
    again = changelog.snapshot()
    assert (again.committed, again.iceberg_snapshot_id) == (False, first.iceberg_snapshot_id)
    assert again.partitions == first.partitions
    changelog.write(0, [(b"a", 2), (b"b", 1)])
    second = changelog.snapshot()
    assert second.snapshot_id != first.snapshot_id
    assert changelog.table(f"snap-{first.snapshot_id}") == {"a": "1"}
    assert changelog.table(f"snap-{second.snapshot_id}") == {"a": "2", "b": "1"}
    ours = "summary['holdfast.id'] IS NOT NULL"
    versions = changelog.spark.sql(f"SELECT * FROM holdfast.`{changelog.processor}`.s.snapshots WHERE {ours}")
    assert versions.count() == 2


def test_the_range_is_exact(changelog):
    changelog.write(0, [(b"a", 1)])
    end = changelog.topics.end_offsets(changelog.topic, committed=True)[0]
    changelog.write(0, [(b"a", 2)])
    changelog.snapshot(changelog.plan({0: end}))
    assert changelog.table() == {"a": "1"}


@pytest.mark.parametrize("died_after", ["claim", "write", "audit", "publish"])
def test_a_run_that_died_converges_when_run_again(changelog, died_after):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    plan = changelog.plan()
    if died_after != "claim":
        steps.write_branch(changelog.spark, plan, changelog.bootstrap, {})
    if died_after in ("audit", "publish"):
        steps.audit_branch(changelog.spark, plan)
    if died_after == "publish":
        steps.publish_branch(changelog.spark, plan)
    assert changelog.table() == {"a": "2" if died_after == "publish" else "1"}
    result = changelog.snapshot(plan)
    assert result.committed == (died_after != "publish")
    assert changelog.table(f"snap-{plan.snapshot_id}") == {"a": "2"}
    refs = changelog.spark.sql(f"SELECT name FROM holdfast.`{changelog.processor}`.s.refs WHERE type = 'BRANCH'")
    assert [row["name"] for row in refs.collect()] == ["main"]


def test_a_failed_audit_leaves_the_published_table_as_it_was(changelog):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    changelog.write(0, [(b"a", 2)])
    plan = changelog.plan()
    steps.write_branch(changelog.spark, plan, changelog.bootstrap, {})
    changelog.spark.sql(
        f"UPDATE holdfast.`{changelog.processor}`.s.`branch_audit_{plan.snapshot_id}` SET value = X'00'"
    )
    # The tampering is a commit of its own, without our summary: the audit must look at what a reader would get.
    with pytest.raises((steps.SnapshotAuditFailed, KeyError, TypeError)):
        steps.audit_branch(changelog.spark, plan)
    assert changelog.table() == {"a": "1"}
    assert changelog.snapshot(plan).committed
    assert changelog.table() == {"a": "2"}


def test_empty_partitions_and_emptied_stores(changelog):
    assert changelog.snapshot().rows == 0
    changelog.write(1, [(b"a", 1)])
    assert changelog.snapshot().fingerprints[0] == Fingerprint()
    changelog.write(1, [(b"a", None)])
    assert changelog.snapshot().rows == 0
    assert changelog.table() == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x09odd", b"\x01\x01" + bytes(8) + b"1"),
        (key_prefix(b"k") + b"n", b"\x07\x01" + bytes(8) + b"1"),
        (key_prefix(b"k") + b"n", b"\x01\x55" + bytes(8) + b"1"),
    ],
)
def test_an_unknown_format_is_refused_and_named(changelog, key, value):
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    offset = changelog.topics.end_offsets(changelog.topic, committed=True)[0]
    changelog.write_raw(0, key, value)
    with pytest.raises(ChangelogUnreadable, match=rf"\[0\] has a record of an unknown format at offset {offset}"):
        changelog.snapshot()
    assert changelog.table() == {"a": "1"}


def test_fingerprints_are_equal_in_spark_and_python(spark):
    rng = random.Random(7)
    pairs = {rng.randbytes(rng.randrange(40)): rng.randbytes(rng.randrange(200)) for _ in range(500)}
    rows = [(number % 3, bytearray(key), bytearray(value)) for number, (key, value) in enumerate(pairs.items())]
    frame = spark.createDataFrame(rows, "store_partition int, key binary, value binary")
    expected = {
        part: fingerprint_of((bytes(key), bytes(value)) for place, key, value in rows if place == part)
        for part in range(3)
    }
    assert fingerprint_partitions(frame) == expected


def test_a_table_that_is_not_there_is_named(spark_settings, changelog):
    with pytest.raises(TableUnknown, match="nothing.here"):
        read_table(spark_settings.paths, "nothing", "here")
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    with pytest.raises(TableUnknown, match="no tag nonsense"):
        read_table(spark_settings.paths, changelog.processor, "s", tag="nonsense")
