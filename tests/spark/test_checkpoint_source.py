"""Checkpoints as a Spark source. All rows are read, no file changes, and a folder that is no checkpoint is an error."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.assets.spark.fingerprint import prints_of
from holdfast.assets.spark.sources import checkpoint_source
from holdfast.assets.spark.sources.checkpoint_source import (
    CheckpointMissing,
    CheckpointPart,
    checkpoint_rows,
    read_checkpoints,
)
from holdfast.infra.spark.session import SparkFailed, short_errors
from holdfast.processors.engine.changelog.format import META_KEY, encode_value, key_prefix
from holdfast.processors.engine.state.databases.checkpoint_reader import (
    CheckpointDamaged,
    checkpoint_pages,
    fingerprint_checkpoint,
)
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases

KEYS = 20_000


def checkpoint(folder: Path, stores: dict[str, int]) -> Path:
    """Make a checkpoint of a task, with the given number of keys in each store."""
    database = RocksDatabases().open(folder / "live")
    for store, count in stores.items():
        keys = [store_prefix(store) + key_prefix(b"k%06d" % number) + b"n" for number in range(count)]
        database.write([(key, encode_value({"store": store, "key": key.hex()}, 1)) for key in keys])
        database.write([(keys[0], None)] if keys else [])
    database.write([(META_KEY, b"{}")])
    database.checkpoint(folder / "copy")
    database.close()
    return folder / "copy"


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> list[Path]:
    return [checkpoint(tmp_path_factory.mktemp("task"), {"a": KEYS, "b": 3, "none": 0}) for _ in range(2)]


def content(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def parts(copies: list[Path], store: str) -> list[CheckpointPart]:
    return [CheckpointPart(number, path, store) for number, path in enumerate(copies)]


@pytest.mark.thorough
def test_every_row_of_the_store_is_read_and_the_folder_stays_as_it_is(spark, copies):
    before = [content(path) for path in copies]
    frame = read_checkpoints(spark, parts(copies, "a"))
    assert frame.dtypes == [("store_partition", "int"), ("key", "binary"), ("value", "binary")]
    assert prints_of(frame).pairs == {number: fingerprint_checkpoint(path, "a") for number, path in enumerate(copies)}
    assert frame.count() == 2 * (KEYS - 1)
    assert [content(path) for path in copies] == before


def test_parts_may_share_a_folder_and_a_store_may_be_empty(spark, copies):
    shared = [
        CheckpointPart(0, copies[0], "b"),
        CheckpointPart(1, copies[0], "none"),
        CheckpointPart(2, copies[0], "b"),
    ]
    rows = read_checkpoints(spark, shared).groupBy("store_partition").count().collect()
    assert {row["store_partition"]: row["count"] for row in rows} == {0: 2, 2: 2}


@pytest.mark.parametrize("gone", ["folder", "content"])
def test_a_folder_that_is_no_checkpoint_is_named(spark, tmp_path, gone):
    path = tmp_path / "copy"
    if gone == "content":
        path.mkdir()
    with pytest.raises(CheckpointMissing, match=rf"partition 3 of store a, {path}, (is not there|has no RocksDB)"):
        read_checkpoints(spark, [CheckpointPart(3, path, "a")])
    assert path.exists() == (gone == "content")


def flip(path: Path) -> None:
    """Flip bytes in the middle of the largest file."""
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    raw = bytearray(table.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 500] = bytes(byte ^ 0xFF for byte in raw[middle : middle + 500])
    table.unlink()  # a checkpoint's files are hard links to the store's files
    table.write_bytes(raw)


def remove(path: Path) -> None:
    max(path.glob("*.sst"), key=lambda file: file.stat().st_size).unlink()


def truncate(path: Path) -> None:
    next(path.glob("MANIFEST*")).write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [flip, *(pytest.param(each, marks=pytest.mark.thorough) for each in (remove, truncate))]
)
def test_a_damaged_checkpoint_fails_the_read_and_never_gives_a_part_for_the_whole(spark, copies, tmp_path, damage):
    path = tmp_path / "copy"
    shutil.copytree(copies[0], path)
    damage(path)
    with pytest.raises(SparkFailed, match=rf"read it: .*{path}.*(damaged|can't be opened)"), short_errors("read it"):
        read_checkpoints(spark, [CheckpointPart(0, path, "a")]).write.format("noop").mode("overwrite").save()


def test_python_readers_meet_the_damage_too(copies, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(copies[0], path)
    flip(path)
    with pytest.raises(CheckpointDamaged, match="is damaged: Corruption"):
        list(checkpoint_pages(path, "a", 100))
    with pytest.raises(Exception, match="Corruption"):
        fingerprint_checkpoint(path, "a")


def test_a_small_checkpoint_is_read_by_the_driver_and_a_larger_one_by_executors(spark, copies, monkeypatch):
    # Set the limit here, because another fixture changes it in a thorough run.
    monkeypatch.setattr(checkpoint_source, "SMALL_BYTES", 64 << 20)
    plan = SimpleNamespace(
        store="a", partitions=[SimpleNamespace(partition=n, path=str(p)) for n, p in enumerate(copies)]
    )
    frame = checkpoint_rows(spark, plan)
    assert frame.dtypes == read_checkpoints(spark, parts(copies, "a")).dtypes
    expected = {number: fingerprint_checkpoint(path, "a") for number, path in enumerate(copies)}
    assert prints_of(frame).pairs == expected
    size = checkpoint_source._small(parts(copies, "a")).nbytes
    monkeypatch.setattr(checkpoint_source, "SMALL_BYTES", size - 1)
    assert checkpoint_source._small(parts(copies, "a")) is None
    assert prints_of(checkpoint_rows(spark, plan)).pairs == expected


def test_parts_are_named_once(spark, copies):
    with pytest.raises(ValueError, match="each partition once"):
        read_checkpoints(spark, [])
    with pytest.raises(ValueError, match="each partition once"):
        read_checkpoints(spark, [CheckpointPart(0, copies[0], "a"), CheckpointPart(0, copies[1], "a")])


ELSEWHERE = """
import json, sys
from pathlib import Path
from holdfast.assets.spark.sources.checkpoint_source import CheckpointPart, read_checkpoints
from holdfast.assets.spark.fingerprint import prints_of
from holdfast.infra.settings import load_settings
from holdfast.infra.spark.session import spark_session
settings = load_settings(home=sys.argv[1], spark={"master": "local-cluster[1,2,1024]", "driver_memory_mb": 512})
spark = spark_session(settings, app_name="elsewhere")
parts = [CheckpointPart(number, Path(path), "a") for number, path in enumerate(sys.argv[2:])]
found = prints_of(read_checkpoints(spark, parts)).pairs
print("FOUND", json.dumps({number: each.hex for number, each in found.items()}))
spark.stop()
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("tuned_jvms")
def test_executors_that_are_processes_of_their_own_read_the_same(copies, tmp_path):
    project = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path), *map(str, copies)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = [line for line in ran.stdout.splitlines() if line.startswith("FOUND")]
    expected = {str(number): fingerprint_checkpoint(path, "a").hex for number, path in enumerate(copies)}
    assert told, ran.stderr[-3000:]
    assert json.loads(told[0].removeprefix("FOUND ")) == expected
