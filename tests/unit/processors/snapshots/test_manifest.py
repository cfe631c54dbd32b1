"""The manifest of a snapshot (Holdfast's own JSON in a table version) is read back as it was written.

Unknown or wrong contents are refused by name.
"""

import dataclasses
import json

import pytest

from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.snapshots.manifest import ManifestDamaged, PartitionManifest, SnapshotManifest
from holdfast.processors.snapshots.names import procedure_name, quoted, table_name, time_tag

PART = PartitionManifest(
    partition=0,
    topic_id="an-id",
    log_start=3,
    start=5,
    end=9,
    records=4,
    tombstones=1,
    live_keys=2,
    fingerprint=fingerprint_of([(b"k", b"v"), (b"l", b"w")]),
    inputs={"flights": 17},
    quarantined=1,
    sources={"flights": "another-id"},
)
MANIFEST = SnapshotManifest(
    snapshot_id="1234",
    processor="p",
    store="s",
    table="holdfast.p.s",
    source="incremental",
    base=None,
    why="Because it's so.",
    taken_at=1_763_000_000.25,
    code_version="abc",
    state_format="1.1.1",
    schema_version=1,
    topic="p-s-changelog",
    generation=2,
    partitions=(PART, dataclasses.replace(PART, partition=1)),
    covers_from=1_762_999_000.5,
    latest_at=1_763_000_007.5,
)


def test_a_manifest_comes_back_as_it_was_written():
    assert SnapshotManifest.decode(MANIFEST.encode()) == MANIFEST
    based = dataclasses.replace(MANIFEST, base="0987")
    assert SnapshotManifest.decode(based.encode()).base == "0987"
    assert (MANIFEST.rows, MANIFEST.records, MANIFEST.quarantined, MANIFEST.ends) == (4, 8, 2, {0: 9, 1: 9})


#: ``MANIFEST`` as the first version of Holdfast wrote it: without the time of the latest checkpoint.
WRITTEN_BEFORE = (
    '{"version":1,"snapshot_id":"1234","processor":"p","store":"s","table":"holdfast.p.s","source":"incremental",'
    '"base":null,"why":"Because it\'s so.","taken_at":1763000000.25,"code_version":"abc","state_format":"1.1.1",'
    '"schema_version":1,"topic":"p-s-changelog","generation":2,"covers_from":1762999000.5,"partitions":['
    '{"partition":0,"log_start":3,"start":5,"end":9,"records":4,"tombstones":1,"live_keys":2,"quarantined":1,'
    '"topic_id":"an-id","fingerprint":"2-dc3e354ffad18fa7-dec1396ffd2e6fa7","inputs":{"flights":17},'
    '"sources":{"flights":"another-id"}},'
    '{"partition":1,"log_start":3,"start":5,"end":9,"records":4,"tombstones":1,"live_keys":2,"quarantined":1,'
    '"topic_id":"an-id","fingerprint":"2-dc3e354ffad18fa7-dec1396ffd2e6fa7","inputs":{"flights":17},'
    '"sources":{"flights":"another-id"}}]}'
)


def test_an_older_manifest_is_read_and_its_fields_are_written_with_the_latest_end_of_the_checkpoints():
    assert SnapshotManifest.decode(WRITTEN_BEFORE) == dataclasses.replace(MANIFEST, latest_at=None)
    assert json.loads(MANIFEST.encode()) == json.loads(WRITTEN_BEFORE) | {"latest_at": 1_763_000_007.5}


def test_a_later_version_is_refused_by_name():
    later = json.loads(MANIFEST.encode()) | {"version": 2}
    with pytest.raises(FormatUnknown, match="has format version 2, expected 1"):
        SnapshotManifest.decode(json.dumps(later))


@pytest.mark.parametrize("text", ["", "7", "[]", "{}", '{"version": "x"}', '{"version": null}', '{"version": 1}'])
def test_what_is_no_manifest_is_told(text):
    with pytest.raises(ManifestDamaged, match="not a manifest"):
        SnapshotManifest.decode(text)


@pytest.mark.parametrize(
    "change",
    [
        {"source": "guess"},
        {"base": 7},
        {"taken_at": "soon"},
        {"latest_at": "later"},
        {"partitions": [{}]},
        {"partitions": None},
        {"topic": None},
        {"partitions": [json.loads(MANIFEST.encode())["partitions"][0] | {"fingerprint": "1-2"}]},
        {"partitions": [json.loads(MANIFEST.encode())["partitions"][0] | {"inputs": [1]}]},
    ],
)
def test_a_field_of_another_kind_is_told(change):
    with pytest.raises(ManifestDamaged, match="field is missing or of another kind"):
        SnapshotManifest.decode(json.dumps(json.loads(MANIFEST.encode()) | change))


def test_names_of_the_warehouse_have_no_dots_of_their_own():
    assert table_name("a.b", "c.d-e") == "holdfast.a_b.c_d-e"
    assert quoted("holdfast.a_b.c_d-e") == "`holdfast`.`a_b`.`c_d-e`"
    assert procedure_name("holdfast.a_b.c_d-e") == "`a_b`.`c_d-e`"
    assert time_tag("2026-11-21-20:00") == "at-2026-11-21-20-00"
