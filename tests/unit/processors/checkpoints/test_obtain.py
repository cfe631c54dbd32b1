"""A checkpoint brought to this machine for a reader: whole, checked, once, or refused with all reasons."""

from __future__ import annotations

import pytest

from holdfast.processors.engine.checkpoints.fetch import CheckpointUnavailable, obtain_checkpoint
from holdfast.processors.engine.checkpoints.manifest import Place
from holdfast.processors.engine.state.checkpoint_reader import iterate_checkpoint

PLACE, STORE = Place("group", "orders-0"), "counts"


def test_the_newest_checkpoint_is_brought_once(bench, tmp_path):
    bench.write()
    bench.upload()
    bench.write(salt="newer")
    newest = bench.upload().manifest
    manifest, path = obtain_checkpoint(bench.objects, bench.databases, PLACE, tmp_path / "scratch")
    assert (manifest.checkpoint_id, path) == (newest.checkpoint_id, tmp_path / "scratch" / newest.checkpoint_id)
    assert dict(iterate_checkpoint(path, STORE)) == bench.expected()
    (path / "mark").touch()
    assert obtain_checkpoint(bench.objects, bench.databases, PLACE, tmp_path / "scratch") == (manifest, path)
    assert (path / "mark").exists()


def test_a_damaged_or_unwanted_checkpoint_gives_way_to_the_one_before(bench, tmp_path):
    bench.write()
    older = bench.upload().manifest
    expected = bench.expected()
    bench.write(20_000, salt="newer")
    newer = bench.upload().manifest
    for file in newer.files:
        if file.object not in {each.object for each in older.files}:
            bench.object(file.object).write_bytes(b"torn")
    manifest, path = obtain_checkpoint(bench.objects, bench.databases, PLACE, tmp_path / "damaged")
    assert manifest.checkpoint_id == older.checkpoint_id
    assert dict(iterate_checkpoint(path, STORE)) == expected
    assert sorted(each.name for each in (tmp_path / "damaged").iterdir()) == [older.checkpoint_id]
    with pytest.raises(CheckpointUnavailable, match=rf"{newer.checkpoint_id}: .*bytes, its manifest.*not at 7"):
        obtain_checkpoint(
            bench.objects,
            bench.databases,
            PLACE,
            tmp_path / "unwanted",
            lambda each: "it is not at 7" if each.checkpoint_id == older.checkpoint_id else None,
        )


def test_where_there_is_none_or_the_store_is_away_the_reason_is_told(bench, breaking, tmp_path):
    with pytest.raises(CheckpointUnavailable, match="no checkpoint of group, task orders-0, .*: there is none"):
        obtain_checkpoint(bench.objects, bench.databases, PLACE, tmp_path / "none")
    bench.write()
    bench.upload()
    breaking.at = len(breaking.operations)
    with pytest.raises(CheckpointUnavailable, match="it is away"):
        obtain_checkpoint(breaking, bench.databases, PLACE, tmp_path / "away")
