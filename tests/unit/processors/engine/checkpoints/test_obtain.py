"""A reader fetches a checkpoint to this machine.

The checkpoint is complete and verified, or it is refused, with all reasons.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.infra.storage import objects as storage
from holdfast.infra.storage.objects import is_object_name
from holdfast.infra.system.rooted import inside
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.checkpoints.fetch import CheckpointUnavailable, obtain_checkpoint
from holdfast.processors.engine.checkpoints.manifest import Manifest, ManifestDamaged, Place, id_of
from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint

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


def edit(bench, **fields):
    """Change fields of the newest manifest, as a person with access to the store could. Returns the manifest's name."""
    name = bench.manifests()[-1]
    bench.objects.write(name, [json.dumps({**json.loads(bench.objects.read(name)), **fields}).encode()])
    return name


@pytest.mark.parametrize("hostile", ["../victim", "/etc/victim", "..", ".", "", "a/b", "a\0b", "x" * 300, "other"])
def test_the_id_in_a_manifest_writes_nowhere_but_to_its_own_folder(bench, tmp_path, hostile):
    bench.write()
    bench.upload()
    edit(bench, checkpoint_id=hostile)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "mine").touch()
    before = sorted(path for path in tmp_path.rglob("*") if "scratch" not in path.parts)
    with pytest.raises(CheckpointUnavailable, match="its id is"):
        obtain_checkpoint(bench.objects, bench.databases, PLACE, tmp_path / "scratch")
    assert sorted(path for path in tmp_path.rglob("*") if "scratch" not in path.parts) == before
    found = bench.fetch()
    assert (found.manifest, len(found.refused)) == (None, 1)
    # uploads and the deletion of old checkpoints still work, although the store has a hostile manifest
    for _ in range(3):
        bench.write()
        bench.upload()
    assert bench.fetch().manifest is not None
    bench.everything_is_whole()


class Endless:
    """A store with one object whose content never ends. It counts the bytes that were read of it."""

    def __init__(self, objects, endless):
        self.shown, self._objects, self._endless, self.taken = objects.shown, objects, endless, 0

    def __getattr__(self, name):
        return getattr(self._objects, name)

    def chunks(self, name):
        if name != self._endless:
            yield from self._objects.chunks(name)
            return
        while self.taken < 1 << 30:
            self.taken += 1 << 16
            yield bytes(1 << 16)


def test_an_object_that_never_ends_takes_no_more_of_the_disk_than_its_manifest_says(bench, tmp_path):
    bench.write()
    largest = max(bench.upload().manifest.files, key=lambda file: file.size)
    endless = Endless(bench.objects, largest.object)
    with pytest.raises(CheckpointUnavailable, match="has more than the"):
        obtain_checkpoint(endless, bench.databases, PLACE, tmp_path / "scratch")
    assert endless.taken <= largest.size + (1 << 16)
    assert list((tmp_path / "scratch").iterdir()) == []
    endless.taken = 0
    found = bench.fetch(endless)
    assert found.manifest is None
    assert "has more than the" in found.refused[0].why
    assert endless.taken <= largest.size + (1 << 16)
    assert largest.object in bench.suspect


def test_a_manifest_that_is_too_large_is_refused_and_stops_no_upload(bench, monkeypatch):
    bench.write()
    bench.upload()
    name = edit(bench, filler="x" * 100_000)
    monkeypatch.setattr(storage, "READ_BYTES_MAX", 50_000)
    found = bench.fetch()
    assert (found.manifest, found.refused[0].checkpoint_id) == (None, id_of(name))
    assert "more than 50,000 bytes" in found.refused[0].why
    for _ in range(3):
        bench.write()
        bench.upload()
    assert name not in bench.manifests()
    assert bench.fetch().manifest is not None


plain = st.none() | st.booleans() | st.integers() | st.text()
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
FIELDS = ["checkpoint_id", "files", "size", "name", "object", "sha256", "stores", "version"]


@given(values, st.sampled_from(FIELDS))
def test_a_hostile_manifest_is_decoded_to_safe_names_or_refused(value, field):
    file = {"name": "1.sst", "object": "g/t/files/u/1.sst", "size": 1, "sha256": "ab"}
    document = {
        **{"version": 1, "checkpoint_id": "1-u", "processor": "g", "task": "t-0", "partition": 0, "code_version": "c"},
        **{"database": "rocksdb", "state_format": "1.1.1", "created_at": 1.0, "complete_at": 1.0, "inputs": {}},
        **{"sources": {}, "transaction": 1, "stores": {}, "files": [file]},
    }
    (file if field in file else document)[field] = value
    try:
        manifest = Manifest.decode(json.dumps(document).encode())
    except (ManifestDamaged, FormatUnknown):
        return
    for name in (manifest.checkpoint_id, *(each.name for each in manifest.files)):
        assert inside(Path("/root-of-all"), name).parent == Path("/root-of-all")
    assert all(is_object_name(each.object) and each.size >= 0 for each in manifest.files)


DEEP = b"[" * 100_000


@pytest.mark.parametrize("raw", [DEEP, b'{"version": 1, "x": ' + DEEP, b"\xff"])
def test_a_manifest_that_nests_without_end_is_damaged(raw):
    with pytest.raises(ManifestDamaged):
        Manifest.decode(raw)


def test_two_files_of_one_name_and_a_negative_size_are_refused(bench):
    bench.write()
    manifest = bench.upload().manifest
    twice = replace(manifest, files=(*manifest.files, manifest.files[0]))
    negative = replace(manifest, files=(replace(manifest.files[0], size=-1),))
    for wrong, words in ((twice, "one name"), (negative, "size of -1")):
        with pytest.raises(ManifestDamaged, match=words):
            Manifest.decode(wrong.encode())
