"""Damage on disk under a real RocksDB is reported, moved aside and never used as state.

State in an unknown format version is refused.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.processors.engine.changelog.format import META_KEY, FormatUnknown, key_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateCorrupt, StateDiskFailed, StateFolderForeign
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.state.store import StoreState

KEYS = 5_000


def opened(path: Path) -> TaskStore:
    return TaskStore(RocksDatabases(), path)


def key(number: int) -> bytes:
    return b"\x01s" + key_prefix(b"k%05d" % number) + b"n"


def filled(path: Path) -> TaskStore:
    """A store whose data is in SST files."""
    store = opened(path)
    store.write([(key(number), os.urandom(64)) for number in range(KEYS)], TaskMeta(transaction=7))
    store.compact(lambda: None)
    return store


def overwrite_blocks(path: Path) -> None:
    """Overwrite the data blocks of every SST file in place, as a faulty disk would."""
    files = list(path.glob("*.sst"))
    assert files
    for file in files:
        with file.open("r+b") as opened_file:
            opened_file.write(os.urandom(file.stat().st_size // 2))


def cut_short(path: Path) -> None:
    for file in path.glob("*.sst"):
        os.truncate(file, file.stat().st_size // 2)


def lose_files(path: Path) -> None:
    for file in path.glob("*.sst"):
        file.unlink()


def overwrite_manifest(path: Path) -> None:
    for file in path.glob("MANIFEST-*"):
        file.write_bytes(b"not a manifest" * 10)


def lose_current(path: Path) -> None:
    (path / "CURRENT").unlink()


def scramble_current(path: Path) -> None:
    (path / "CURRENT").write_bytes(b"nonsense\n")


def read_all(store: TaskStore) -> list[bytes | None]:
    return store.get_many([key(number) for number in range(KEYS)])


@pytest.mark.parametrize("damage", [cut_short, lose_files, overwrite_manifest, scramble_current])
def test_damage_that_opening_meets_is_moved_aside_and_the_store_starts_empty(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    filled(tmp_path / "task").close()
    damage(tmp_path / "task")
    again = opened(tmp_path / "task")
    assert again.meta() is None
    assert read_all(again) == [None] * KEYS
    assert (tmp_path / "task.corrupt").is_dir()
    again.close()
    assert opened(tmp_path / "task").meta() is None


def test_a_store_that_lost_its_index_of_files_is_new_not_half(tmp_path: Path) -> None:
    filled(tmp_path / "task").close()
    lose_current(tmp_path / "task")
    again = opened(tmp_path / "task")
    assert again.meta() is None
    assert read_all(again) == [None] * KEYS
    again.close()


@pytest.mark.parametrize("running", [True, False], ids=["while running", "while stopped"])
def test_damaged_blocks_are_met_by_the_read_and_the_store_is_moved_aside_when_it_closes(
    tmp_path: Path, running: bool
) -> None:
    store = filled(tmp_path / "task")
    if not running:
        store.close()
    overwrite_blocks(tmp_path / "task")
    if not running:
        store = opened(tmp_path / "task")
    with pytest.raises(StateCorrupt, match="is damaged") as damaged:
        read_all(store)
    assert damaged.value.fields["path"] == str(tmp_path / "task")
    assert isinstance(store.failure, StateCorrupt)
    with pytest.raises(StateCorrupt):
        store.write([(key(1), b"new")], TaskMeta(transaction=8))
    store.close()
    assert (tmp_path / "task.corrupt").is_dir()
    assert not (tmp_path / "task").exists()
    again = opened(tmp_path / "task")
    assert again.meta() is None
    again.close()


def test_damage_that_a_function_reads_is_raised_to_it_and_remembered(tmp_path: Path) -> None:
    store = filled(tmp_path / "task")
    overwrite_blocks(tmp_path / "task")
    state = StoreState("s", store)
    state.point_at(b"k00001", 1)
    with pytest.raises(StateCorrupt):
        state.get("n")
    assert isinstance(store.failure, StateCorrupt), "no commit may follow, even if the function went on"
    store.close()


def test_damage_that_compaction_meets_lets_nothing_more_be_written(tmp_path: Path) -> None:
    store = filled(tmp_path / "task")
    overwrite_blocks(tmp_path / "task")
    store.write([(key(number), b"again") for number in range(KEYS)], TaskMeta(transaction=8))

    def compact_and_write() -> None:
        store.compact(lambda: None)
        store.write([(key(1), b"and again")], TaskMeta(transaction=9))

    with pytest.raises(StateCorrupt):
        compact_and_write()
    store.close()
    assert (tmp_path / "task.corrupt").is_dir()


def test_a_second_damage_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        filled(tmp_path / "task").close()
        overwrite_manifest(tmp_path / "task")
        opened(tmp_path / "task").close()
    assert [path.name for path in tmp_path.iterdir()] == ["task.corrupt"]


def test_damage_that_can_not_be_moved_aside_says_so(tmp_path: Path) -> None:
    filled(tmp_path / "task").close()
    overwrite_manifest(tmp_path / "task")
    (tmp_path / "task.corrupt").write_text("in the way, and no folder")
    with pytest.raises(StateDiskFailed, match="can't be moved aside") as failed:
        opened(tmp_path / "task")
    assert failed.value.exit_code == 74


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_damaged_write_ahead_log_leaves_a_whole_prefix_of_batches(tmp_path: Path, part: float) -> None:
    """Offsets and data stay consistent. Lost batches are replayed from the offset that is left in the database."""
    store = opened(tmp_path / "task")
    for transaction in range(1, 201):
        store.write([(key(number), b"%d" % transaction) for number in range(20)], TaskMeta(transaction=transaction))
    copy = tmp_path / "copy"
    # a copy of the files as after a kill, because a normal close would empty the log
    shutil.copytree(tmp_path / "task", copy)
    store.close()
    (log,) = (file for file in copy.glob("*.log") if file.stat().st_size)
    with log.open("r+b") as damaged:
        damaged.seek(int(log.stat().st_size * part))
        damaged.write(bytes(64))
    again = opened(copy)
    meta = again.meta()
    left = 0 if meta is None else meta.transaction
    assert left < 200
    assert again.get_many([key(number) for number in range(20)]) == [b"%d" % left if left else None] * 20
    again.close()


@pytest.mark.parametrize("flushed", [0, 1, 120])
def test_a_process_killed_in_bulk_writing_leaves_a_whole_prefix_of_batches(tmp_path: Path, flushed: int) -> None:
    """Bulk writes use no write-ahead log, but after a kill the result is the same as with a write-ahead log.

    Lost batches are replayed from the offset that is left in the database.
    """
    store = opened(tmp_path / "task")
    store.begin_bulk(100_000)
    for transaction in range(1, 201):
        store.load([key(number) for number in range(20)], [b"%d" % transaction] * 20)
        store.write([], TaskMeta(transaction=transaction))
        if transaction == flushed:
            store.flush()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "task", copy)  # a copy of the files as after a kill, because a normal close would flush
    store.close()
    again = opened(copy)
    meta = again.meta()
    left = 0 if meta is None else meta.transaction
    assert left >= flushed
    assert again.get_many([key(number) for number in range(20)]) == [b"%d" % left if left else None] * 20
    again.close()
    whole = opened(tmp_path / "task")
    assert whole.meta() == TaskMeta(transaction=200)
    whole.close()


def test_offsets_of_a_future_version_are_refused_and_nothing_is_moved(tmp_path: Path) -> None:
    store = opened(tmp_path / "task")
    fields = {**json.loads(TaskMeta(transaction=7).encode()), "version": 99}
    store.write([(META_KEY, json.dumps(fields).encode())], TaskMeta(transaction=7))
    store._database.write([(META_KEY, json.dumps(fields).encode())])
    with pytest.raises(FormatUnknown, match="version 99, expected 1") as unknown:
        store.meta()
    assert unknown.value.exit_code == 64
    assert unknown.value.action
    store.close()
    assert not (tmp_path / "task.corrupt").exists()
    with pytest.raises(FormatUnknown, match="version 99"):
        opened(tmp_path / "task").meta()


@pytest.mark.parametrize(
    "found", ['{"version": 99, "application": "group"}', '{"version": 1}', "[]", "{half", '"text"', "7"]
)
def test_an_identity_that_is_not_ours_is_refused_and_kept(tmp_path: Path, found: str) -> None:
    StateFolder(tmp_path, "group", "0").release()
    identity = tmp_path / "group" / "0" / "identity.json"
    identity.write_text(found)
    for _ in range(2):  # start twice, because each refused start must release the folder
        with pytest.raises(StateFolderForeign, match="expected|belongs to") as foreign:
            StateFolder(tmp_path, "group", "0")
        assert foreign.value.exit_code == 64
    assert identity.read_text() == found
