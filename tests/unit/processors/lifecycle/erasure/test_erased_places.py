"""Each place of an erasure: copies of the key are removed, those of other keys stay, and a stage can be repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import InlineProcess, InMemoryCluster, Partition, VirtualClock
from holdfast.infra.database.applies import ErasureBook
from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.records import Record
from holdfast.infra.kafka.topics.topic_copies import copied_records, file_of, write_copy
from holdfast.processors.engine.changelog.format import META_KEY, encode_value, key_prefix
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.exports import ExportFile
from holdfast.processors.lifecycle.erasure import changelogs
from holdfast.processors.lifecycle.erasure.changelogs import prove_compacted
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.finding import NotYetGone
from holdfast.processors.lifecycle.erasure.local_copies import StateFolders, rewrite_and_read
from holdfast.processors.lifecycle.erasure.message_copies import erase_in_archive, erase_in_exports, erase_letters
from holdfast.processors.lifecycle.erasure.recorded_names import erase_names, redactor
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.orphans.kinds import sha256_of
from holdfast.processors.lifecycle.plans.facts.dead_letters import replay_group
from holdfast.processors.lifecycle.plans.facts.orphans import Manifest

KEY = KeyEntries("alice")
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


# -- dead letters ------------------------------------------------------------------------------------------------------


class Letters:
    """A dead-letter topic in memory, and the requests that an erasure sends."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.memory = InMemoryCluster(clock=clock)
        self.memory.create_topic("dead", 2)
        self.view = self.memory.connect(InlineProcess(clock))
        topics = self.view.topics()
        self.start_offsets, self.committed_offsets = topics.start_offsets, topics.committed_offsets
        self.delete_before = topics.delete_before

    def settled_end_offsets(self, topic: str) -> dict[int, int]:
        self.memory.advance(1.0)  # transaction markers are written shortly after the answer to a commit
        return self.view.topics().end_offsets(topic, committed=True)

    def outside_metadata(self, group: str) -> Any:
        return self.memory._broker.group(group), "", -1

    def producer(self, transactional_id: str) -> Any:
        return self.view.producer(transactional_id)

    def read(self, place: Partition, start: int, end: int) -> Iterator[Record]:
        for number, record in self.memory.read(place.topic):
            if number == place.number and start <= record.offset < end:
                yield record

    def erase(self) -> Any:
        cluster: Any = self
        return erase_letters(self, cluster, "orders", "dead", KEY, self.read, lambda: None)

    def there(self) -> list[bytes | None]:
        self.memory.advance(1.0)
        return [record.key for _, record in self.memory.read("dead")]


def test_letters_of_other_keys_are_written_again_once_also_when_the_stage_is_repeated() -> None:
    letters = Letters()
    for number, key in enumerate([b"alice", b"bob", b"alice", None, b"carol"]):
        letters.memory.produce(
            "dead", str(number).encode(), key=key, partition=0, headers=[("holdfast.kind", b"message")]
        )
    letters.memory.produce("dead", b"9", key=b"dave", partition=1)
    assert letters.erase().outcome == "gone"
    assert sorted(letters.there(), key=str) == sorted([b"bob", None, b"carol", b"dave"], key=str)
    kept = [record for _, record in letters.memory.read("dead") if record.key == b"bob"]
    assert kept[0].headers == [("holdfast.kind", b"message")]
    assert letters.memory.log_start(Partition("dead", 1)) == 0, "a partition without the key is not touched"
    assert letters.erase().outcome == "absent"
    assert len(letters.there()) == 4


def test_an_erasure_that_is_killed_before_the_letters_are_deleted_writes_none_twice() -> None:
    letters = Letters()
    for key in [b"alice", b"bob"]:
        letters.memory.produce("dead", b"x", key=key, partition=0)
    delete = letters.delete_before
    letters.delete_before = lambda offsets: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        letters.erase()
    assert letters.there() == [b"alice", b"bob", b"bob"]
    assert letters.committed_offsets(replay_group("orders"))[Partition("dead", 0)] == 2
    letters.delete_before = delete
    letters.erase()
    assert letters.there() == [b"bob"]


# -- export files ------------------------------------------------------------------------------------------------------


def exported(folder: Path, *keys: bytes) -> Path:
    file = ExportFile(folder, "totals", NOW.timestamp())
    file.write("totals", 0, [(key_prefix(key) + b"n", encode_value(1, 0)) for key in keys])
    file.finish()
    return file.path


def test_the_lines_of_a_key_are_removed_from_all_export_files(tmp_path: Path) -> None:
    first, second = exported(tmp_path, b"alice", b"bob"), exported(tmp_path, b"carol")
    untouched = second.read_bytes()
    found = erase_in_exports(tmp_path, KEY)
    assert (found.outcome, "1 lines" in found.how) == ("gone", True)
    assert [json.loads(line)["key"] for line in first.read_text().splitlines()] == ["bob"]
    assert second.read_bytes() == untouched
    assert erase_in_exports(tmp_path, KEY).outcome == "absent"
    assert erase_in_exports(tmp_path / "nothing", KEY).outcome == "absent"


def test_a_file_that_is_being_written_or_damaged_is_never_counted_as_free_of_the_key(tmp_path: Path) -> None:
    exported(tmp_path, b"bob")
    part = tmp_path / "20261130T120000000000-totals.part"
    part.write_text("")
    with pytest.raises(NotYetGone, match="is being written"):
        erase_in_exports(tmp_path, KEY)
    part.unlink()
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(NotYetGone, match="Line 1 is no entry"):
        erase_in_exports(tmp_path, KEY)


# -- archive -----------------------------------------------------------------------------------------------------------


def archived(root: Path, kind: Any = "topic", name: str = "orders-old-changelog") -> Path:
    archive = Archive(root)
    part = archive.begin(kind, name, NOW)
    about: dict[str, Any] = {}
    files = {}
    if kind == "topic":
        records = [
            Record(key_prefix(b"alice") + b"n", b"1", 0, 0, None),
            Record(b"alice", b"2", 1, 0, None),
            Record(b"bob", b"3", 2, 5, [("h", b"v")]),
        ]
        write_copy(iter(records), part / file_of(0))
        about = {"records": {"0": 3}, "sha256": {file_of(0): sha256_of(part / file_of(0))}, "partitions": 1}
        files = {file_of(0): (part / file_of(0)).stat().st_size}
    manifest = Manifest(
        kind=kind, name=name, processor="orders", why="", archived_at=NOW, who="", facts={}, about=about, files=files
    )
    return archive.finish(part, manifest)


def test_the_records_of_a_key_are_removed_from_archived_topics_and_the_copy_stays_whole(tmp_path: Path) -> None:
    folder = archived(tmp_path)
    found = erase_in_archive(Archive(tmp_path), "orders", frozenset(), KEY)
    assert (found.outcome, found.how.partition(" ")[0]) == ("gone", "2")
    (record,) = copied_records(folder / file_of(0))
    assert (record.key, record.value, record.offset, record.headers) == (b"bob", b"3", 2, [("h", b"v")])
    ((copy,), unread) = Archive(tmp_path).copies()
    assert not unread
    assert copy.manifest.about["records"] == {"0": 1}
    assert copy.manifest.about["sha256"] == {file_of(0): sha256_of(folder / file_of(0))}
    assert erase_in_archive(Archive(tmp_path), "orders", frozenset(), KEY).outcome == "absent"
    assert erase_in_archive(Archive(tmp_path), "others", frozenset(), KEY).how.startswith("0 archived topics")


def test_an_archived_folder_that_cannot_be_searched_is_unknown(tmp_path: Path) -> None:
    folder = archived(tmp_path, "state", "orders/0/placed-0")
    found = erase_in_archive(Archive(tmp_path), "orders", frozenset(), KEY)
    assert found.outcome == "unknown"
    assert str(folder) in found.how


# -- changelog ---------------------------------------------------------------------------------------------------------


class Log:
    """A changelog in memory that is compacted at each ``close_segments``, if ``cleaning``."""

    def __init__(self, *, cleaning: bool = True) -> None:
        self.memory, self.cleaning, self.closed = InMemoryCluster(), cleaning, 0
        self.memory.create_topic("log", 1)

    def write(self, key: bytes, value: bytes | None) -> None:
        self.memory.produce("log", value, key=key, partition=0)

    def close_segments(self) -> None:
        self.closed += 1
        self.write(META_KEY, b"{}")
        if self.cleaning:
            self.memory.compact(Partition("log", 0), drop_tombstones=False)

    def read(self, topic: str, number: int, start: int, end: int) -> Iterator[Record]:
        return (record for _, record in self.memory.read(topic, committed=False) if start <= record.offset < end)

    def prove(self, end: int) -> Any:
        return prove_compacted("log", KEY, {0: end}, {0: 0}, self.read, self.close_segments, lambda text: None)


def test_a_changelog_is_proven_only_after_compaction_has_removed_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelogs, "CLEANED_WITHIN_S", 0.0)
    log = Log()
    for value in (b"1", b"2", None):
        log.write(KEY.head + b"n", value)
    end = log.memory.log_end(Partition("log", 0))
    assert log.prove(end).outcome == "gone"
    assert log.closed == 1
    log.write(KEY.head + b"n", b"3")
    assert log.prove(end).outcome == "gone", "a later message is no copy"

    stuck = Log(cleaning=False)
    stuck.write(KEY.head + b"n", b"1")
    stuck.write(KEY.head + b"n", None)
    with pytest.raises(NotYetGone, match="has not compacted log"):
        stuck.prove(2)


def test_a_record_of_an_aborted_transaction_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelogs, "CLEANED_WITHIN_S", 0.0)
    log = Log(cleaning=False)
    log.memory.open_foreign_transaction("log", 0, [(KEY.head + b"n", b"secret")]).abort()
    with pytest.raises(NotYetGone):
        log.prove(log.memory.log_end(Partition("log", 0)))


def test_a_changelog_without_the_key_is_absent_and_nothing_is_written_to_it() -> None:
    log = Log()
    log.write(key_prefix(b"ali") + b"cen", b"1")
    assert log.prove(1).outcome == "absent"
    assert log.closed == 0


# -- local copies ------------------------------------------------------------------------------------------------------


class Folder:
    """The state folders of processor orders, with real databases."""

    def __init__(self, root: Path) -> None:
        self.root, self.databases, self.rewritten = root, RocksDatabases(), 0
        self.local = StateFolders(root, "orders", {"placed-0": 0})

    def has(self, slot: str, name: str, keys: Sequence[bytes], offset: int, *, restoring: bool = False) -> Path:
        path = self.root / "orders" / slot / name
        database = self.databases.open(path)
        prefix = store_prefix("totals")
        database.write([(prefix + key_prefix(key) + b"n", encode_value(1, 0)) for key in keys])
        stores = {"totals": StoreOffset("log", "id", offset)}
        meta = TaskMeta(stores=stores, inputs={"placed": 1}, restoring=restoring)
        database.write([(META_KEY, meta.encode())])
        database.close()
        return path

    def read(self) -> Any:
        def rewrite() -> None:
            self.rewritten += 1

        return rewrite_and_read(self.local, ("totals",), {"totals": {0: 10}}, KEY, rewrite, "orders")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr("holdfast.processors.lifecycle.erasure.local_copies.CURRENT_WITHIN_S", 0.0)
    return Folder(tmp_path)


def test_an_older_copy_that_no_worker_has_open_is_deleted(folder: Folder) -> None:
    current, old = folder.has("0", "placed-0", [b"bob"], 10), folder.has("1", "placed-0", [b"alice"], 5)
    found = folder.read()
    assert found.outcome == "gone"
    assert "1 older copies are deleted" in found.how
    assert folder.rewritten == 1
    assert current.is_dir()
    assert not old.exists()
    assert [each.name for each in old.parent.iterdir()] == []


#: Locks a file as RocksDB does, in a process of its own, until its input ends.
HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)


def test_an_older_copy_that_a_worker_has_open_is_never_deleted(folder: Folder) -> None:
    path = folder.has("0", "placed-0", [b"alice"], 5)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path / "LOCK")], stdin=pipe, stdout=pipe) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"held\n"
        with pytest.raises(NotYetGone, match="does not have the deletes yet"):
            folder.read()
        worker.communicate(b"\n")
    assert folder.rewritten == 0
    assert "1 older copies are deleted" in folder.read().how


def test_a_standby_that_has_the_deletes_is_read_and_not_deleted(folder: Folder) -> None:
    folder.has("0", "placed-0", [b"bob"], 10)
    # The database of a standby is marked as restoring all the time, so that no task begins with it.
    standby = folder.has("1", "placed-0", [b"bob"], 10, restoring=True)
    assert "entries of 2 copies were read" in folder.read().how
    assert standby.is_dir()
    folder.has("1", "placed-0", [b"alice"], 10, restoring=True)
    with pytest.raises(NotYetGone, match="has entries of the key"):
        folder.read()


def test_a_current_copy_with_the_key_is_a_copy_unless_it_has_later_commits(folder: Folder) -> None:
    folder.has("0", "placed-0", [b"alice"], 10)
    with pytest.raises(NotYetGone, match="has entries of the key"):
        folder.read()
    folder.has("0", "placed-0", [b"alice"], 12)
    assert "state of later messages" in folder.read().how


def test_state_that_was_set_aside_is_named_and_not_deleted(folder: Folder) -> None:
    folder.has("0", "placed-0", [], 10)
    aside = folder.has("0", "placed-0.aside-3", [b"alice", b"bob"], 5)
    with pytest.raises(NotYetGone, match="no worker uses it") as told:
        folder.read()
    assert "holdfast apply clean" in told.value.action
    assert aside.is_dir()


# -- the registry ------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(f"sqlite:///{tmp_path}/registry.db")
    made.migrate()
    yield made
    made.close()


def test_the_key_is_removed_from_plans_and_results_and_other_words_stay(registry: Registry) -> None:
    journal, book = registry.journal, ErasureBook(registry.database)
    plan = json.dumps({"request": {"key": "alice"}, "stages": [{"says": "delete key 'alice' of alices", "n": 1}]})
    journal.remember_plan("a" * 12, "orders", "clear", plan, NOW)
    journal.remember_plan("b" * 12, "others", "clear", plan, NOW)
    journal.begin_apply(processor="orders", verb="clear", plan_hash="a" * 12, plan=plan, who="ada", holder="h", now=NOW)
    found = erase_names(book, "orders", "alice", "0123456789abcdef")
    assert (found.outcome, "2 recorded" in found.how) == ("gone", True)
    changed = json.loads(journal.remembered_plan("a" * 12) or "")
    assert changed["request"] == {"key": "erased:0123456789ab"}
    assert changed["stages"][0]["says"] == "delete key 'erased:0123456789ab' of alices"
    assert journal.remembered_plan("b" * 12) == plan, "another processor's key is another key"
    assert "'alice'" not in journal.applies()[0].plan
    assert erase_names(book, "orders", "alice", "0123456789abcdef").outcome == "absent"
    assert erase_names(book, "orders", "erased:0123456789ab", "0123456789abcdef").outcome == "gone"


@pytest.mark.parametrize("key", ['a"b', "ä", "\\", "1"])
def test_a_key_of_any_characters_is_found_in_json(key: str) -> None:
    change = redactor(key, "f" * 64)
    changed: Mapping[str, Any] = json.loads(change(json.dumps({"key": key, "other": f"{key}1", "n": 1})))
    assert changed["key"].startswith("erased:")
    assert changed["other"] == f"{key}1"
    assert changed["n"] == 1
