"""The table of snapshots has one row for each partition of each snapshot, with the manifest's values."""

import datetime as dt
import json

import pytest

from holdfast.assets.spark.catalog.records import record_snapshot, recorded_so_far
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.snapshots.manifest import PartitionManifest, SnapshotManifest
from holdfast.processors.snapshots.names import quoted, snapshots_name
from tests.mechanics.tiers import variants

WHY = 'full, because "a\\b" isn\'t \'c\', ${none} of it:\n{"ä": \U0001f600}'


def manifest_of(processor, snapshot_id, partitions=1):
    return SnapshotManifest(
        snapshot_id=snapshot_id,
        processor=processor,
        store="s",
        table=f"holdfast.{processor}.s",
        source="changelog",
        base=None,
        why=WHY,
        taken_at=1_795_000_000.123457,
        code_version="v1",
        state_format="1.1.1",
        schema_version=0,
        topic="changes",
        generation=2,
        partitions=tuple(
            PartitionManifest(
                partition=number,
                topic_id="t",
                log_start=0,
                start=number,
                end=2**62 + number,
                records=2**53 + 1,
                tombstones=1,
                live_keys=3,
                fingerprint=Fingerprint(3, number, number),
                inputs={'in "put"': number},
            )
            for number in range(partitions)
        ),
        covers_from=0.0,
    )


@pytest.mark.parametrize("between", variants(["another record", "nothing", "a version of another program"]))
def test_a_record_that_another_run_made_since_the_publish_is_found(spark, unique, between):
    processor = unique("raced")
    table = snapshots_name(processor)
    record_snapshot(spark, manifest_of(processor, "1" * 16))
    unpublished = recorded_so_far(spark, processor)
    record_snapshot(spark, manifest_of(processor, "2" * 16), unpublished)
    if between == "another record":
        record_snapshot(spark, manifest_of(processor, "3" * 16), unpublished)
    if between == "a version of another program":
        spark.table(quoted(table)).where("false").writeTo(quoted(table)).append()
    record_snapshot(spark, manifest_of(processor, "2" * 16), unpublished)
    rows = [row.snapshot_id for row in spark.table(quoted(table)).collect()]
    assert sorted(rows) == ["1" * 16, "2" * 16, *(["3" * 16] if between == "another record" else [])]


# 130 rows are written by more than one task
@pytest.mark.parametrize("partitions", [1, pytest.param(130, marks=pytest.mark.thorough)])
def test_each_partition_is_told_once_and_to_the_letter(spark, unique, partitions):
    processor = unique("recorded")
    manifest = manifest_of(processor, "5" * 16, partitions)
    record_snapshot(spark, manifest)
    record_snapshot(spark, manifest)
    rows = spark.table(quoted(snapshots_name(processor))).orderBy("store_partition").collect()
    assert [row.store_partition for row in rows] == list(range(partitions))
    assert {(row.base, row.why, row.generation, row.records, row.quarantined) for row in rows} == {
        (None, WHY, 2, 2**53 + 1, 0)
    }
    assert [row.end_offset for row in rows] == [2**62 + number for number in range(partitions)]
    assert [json.loads(row.inputs) for row in rows] == [{'in "put"': number} for number in range(partitions)]
    assert [row.fingerprint for row in rows] == [part.fingerprint.hex for part in manifest.partitions]
    (taken,) = {row.taken_at for row in rows}
    assert taken.astimezone(dt.UTC) == dt.datetime.fromtimestamp(1_795_000_000, dt.UTC).replace(microsecond=123457)
