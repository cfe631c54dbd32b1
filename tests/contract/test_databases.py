"""Behaviour that all state databases share: RocksDB, the in-memory database and the simulated disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from holdfast.processors.engine.state.databases.database import Database, Databases
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases, StateReader, export
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.databases.views import NoView
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import InlineProcess
from tests.simulation.disk import SimulatedDisk

LASTING = ("rocksdb", "simulated")


@pytest.fixture(params=["rocksdb", "memory", "simulated"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def databases(kind: str) -> Databases:
    if kind == "rocksdb":
        return RocksDatabases()
    if kind == "memory":
        return MemoryDatabases(export)
    return SimulatedDisk().attach(InlineProcess(VirtualClock(), "a"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slot" / "task"


@pytest.fixture
def database(databases: Databases, path: Path) -> Iterator[Database]:
    opened = databases.open(path)
    yield opened
    opened.close()


def all_of(database: Database) -> list[tuple[bytes, bytes]]:
    return list(database.items(b""))


def test_a_new_database_is_empty(database: Database) -> None:
    assert database.get(b"a") is None
    assert database.get_many([b"a", b"b"]) == [None, None]
    assert all_of(database) == []


def test_changes_are_applied_in_their_order(database: Database) -> None:
    database.write([(b"a", b"1"), (b"b", b"2"), (b"a", None), (b"c", b"3"), (b"c", b"4")])
    assert database.get_many([b"a", b"b", b"c"]) == [None, b"2", b"4"]
    database.write([(b"a", b"5"), (b"b", None), (b"not there", None)])
    assert all_of(database) == [(b"a", b"5"), (b"c", b"4")]


def test_what_is_loaded_is_as_if_written(database: Database) -> None:
    database.write([(b"a", b"1"), (b"b", b"1")])
    database.load([b"a", b"c"], [b"2", b"3"])
    database.load([b"b", b"d", b"d"], [None, b"4", b"5"])
    assert all_of(database) == [(b"a", b"2"), (b"c", b"3"), (b"d", b"5")]


def test_empty_values_and_bytes_of_all_kinds_are_kept_apart(database: Database) -> None:
    pairs = [(bytes([first, second]), bytes([second]) * first) for first in (0, 1, 255) for second in (0, 127, 255)]
    database.load([key for key, _ in pairs], [value for _, value in pairs])
    assert all_of(database) == sorted(pairs)
    assert database.get(b"\x00\x00") == b""


def test_items_come_in_key_order_from_the_first_on(database: Database) -> None:
    database.write([(b"%03d" % number, b"v") for number in reversed(range(300))])
    assert [key for key, _ in database.items(b"290")] == [b"%03d" % number for number in range(290, 300)]
    assert list(database.items(b"999")) == []


def test_bulk_mode_changes_nothing_but_speed(database: Database) -> None:
    database.write([(b"a", b"0"), (b"gone", b"0")])
    database.reopen(100_000)
    for number in range(50):
        database.load([b"%03d" % key for key in range(100)], [b"%d" % number] * 100)
    database.write([(b"gone", None), (b"meta", b"m")])
    assert database.get(b"meta") == b"m"
    database.flush(wait=False)
    database.reopen(None)
    assert not database.flushing
    assert all_of(database) == [*((b"%03d" % key, b"49") for key in range(100)), (b"a", b"0"), (b"meta", b"m")]


def test_what_is_flushed_is_there_after_closing_where_databases_last(
    databases: Databases, path: Path, kind: str
) -> None:
    database = databases.open(path)
    database.write([(b"a", b"1")])
    database.flush()
    database.close()
    again = databases.open(path)
    assert databases.exists(path) is (kind in LASTING)
    assert again.get(b"a") == (b"1" if kind in LASTING else None)
    again.close()


def test_a_store_is_wiped_and_used_again(databases: Databases, path: Path) -> None:
    store = TaskStore(databases, path)
    store.write([(b"\x01sk", b"v")], TaskMeta(transaction=1))
    store.wipe()
    assert store.meta() is None
    assert not store.holds_data("s")
    store.begin_bulk(100_000)
    store.load([b"\x01sk"], [b"w"])
    store.write([], TaskMeta(transaction=2))
    store.end_bulk()
    assert store.get(b"\x01sk") == b"w"
    assert list(store.items("s")) == [(b"k", b"w")]
    store.close()


def test_a_size_grows_with_what_is_written_and_flushed(database: Database) -> None:
    before = database.size_bytes()
    database.load([b"k%06d" % number for number in range(10_000)], [b"v" * 50] * 10_000)
    database.flush()
    assert database.size_bytes() > before
    database.compact()
    assert database.get(b"k000007") == b"v" * 50


@pytest.mark.parametrize("kind", ["rocksdb", "memory"], indirect=True)
def test_a_checkpoint_is_a_rocksdb_whatever_holds_the_state(databases: Databases, path: Path) -> None:
    meta = TaskMeta({"in": 7}, {"s": StoreOffset("changelog", "id", 9, {"in": 7})}, transaction=3)
    store = TaskStore(databases, path)
    store.write([(b"\x01s%05d" % number, b"v%d" % number) for number in range(12_000)], meta)
    copy = path.parent / "copies" / "one"
    store.checkpoint(copy)
    store.write([(b"\x01s00000", None)], meta)
    store.close()
    reader = StateReader(copy)
    assert reader.meta() == meta
    assert list(reader.items("s")) == [(b"%05d" % number, b"v%d" % number) for number in range(12_000)]
    reader.close()


def test_items_come_in_both_directions(database: Database) -> None:
    keys = [b"%03d" % number for number in range(0, 300, 3)]
    database.write([(key, b"v") for key in keys])
    database.write([(b"150", None), (b"298", b"v")])
    left = sorted({*keys, b"298"} - {b"150"})
    assert [key for key, _ in database.items_back(b"300")] == left[::-1]
    assert [key for key, _ in database.items_back(b"153")] == [key for key in left if key < b"153"][::-1]
    assert next(database.items_back(b"999")) == (b"298", b"v")
    assert list(database.items_back(b"000")) == []
    database.write([(b"150", b"w")])
    assert next(database.items(b"149")) == next(database.items_back(b"151")) == (b"150", b"w")


# -- snapshots and views ---------------------------------------------------------------------------------------------


def test_a_snapshot_keeps_what_later_writes_change(database: Database) -> None:
    database.write([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    before = database.snapshot()
    database.write([(b"a", b"9"), (b"b", None), (b"d", b"4")])
    database.load([b"c", b"e"], [None, b"5"])
    after = database.snapshot()
    assert [before.get(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [b"1", b"2", b"3", None, None]
    assert list(before.items(b"b")) == [(b"b", b"2"), (b"c", b"3")]
    assert list(after.items(b"")) == [(b"a", b"9"), (b"d", b"4"), (b"e", b"5")]
    before.close()
    database.write([(b"d", None)])
    assert after.get(b"d") == b"4"
    after.close()


def test_a_snapshot_of_a_database_without_data_is_empty(database: Database) -> None:
    made = database.snapshot()
    database.write([(b"a", b"1")])
    assert made.get(b"a") is None
    assert list(made.items(b"")) == []
    made.close()


KEY = b"\x01\x00\x00\x00\x01kn"


def row(value: bytes) -> tuple[bytes, bytes]:
    return b"\x01s" + KEY, value


def test_views_have_data_and_offsets_of_one_commit(databases: Databases, path: Path) -> None:
    store = TaskStore(databases, path)
    with pytest.raises(NoView, match="committed nothing"), store.views.open():
        pass
    store.write([row(b"1")], TaskMeta(inputs={"in": 1}))
    with store.views.open() as first:
        store.write([row(b"2")], TaskMeta(inputs={"in": 2}))
        with store.views.open() as second, store.views.open() as third:
            assert second is third
            assert (second.get("s", KEY), second.meta.inputs) == (b"2", {"in": 2})
        assert (first.get("s", KEY), first.meta.inputs) == (b"1", {"in": 1})
        assert list(first.items("s")) == [(KEY, b"1")]
    store.close()


def test_no_view_is_made_of_data_without_its_offsets(databases: Databases, path: Path) -> None:
    store = TaskStore(databases, path)
    store.write([row(b"1")], TaskMeta(inputs={"in": 1}))
    with store.views.open() as before:
        store.load([row(b"2")[0]], [b"2"])
        assert before.get("s", KEY) == b"1"
        with pytest.raises(NoView, match="being replaced"), store.views.open():
            pass
    store.write([], TaskMeta(inputs={"in": 1}, restoring=True))
    with pytest.raises(NoView, match="being restored"), store.views.open():
        pass
    store.write([], TaskMeta(inputs={"in": 2}))
    with store.views.open() as after:
        assert after.get("s", KEY) == b"2"
    store.close()


def test_a_reader_notices_the_close_which_waits_for_it(databases: Databases, path: Path, kind: str) -> None:
    store = TaskStore(databases, path)
    store.write([row(b"1")], TaskMeta(inputs={"in": 1}))
    opened, seen = Event(), list[str]()

    def read() -> None:
        with suppress(NoView), store.views.open() as view:
            opened.set()
            while True:
                try:
                    view.get("s", KEY)
                except NoView:
                    seen.append("gave it back")
                    raise

    reader = Thread(target=read)
    reader.start()
    opened.wait()
    store.close()
    assert seen == ["gave it back"]
    reader.join()
    with pytest.raises(NoView, match="gives the task back"), store.views.open():
        pass
    if kind == "rocksdb":  # RocksDB's lock is free
        RocksDatabases().open(path).close()


def test_views_are_there_again_after_a_wipe(databases: Databases, path: Path) -> None:
    store = TaskStore(databases, path)
    store.write([row(b"1")], TaskMeta(inputs={"in": 1}))
    with store.views.open():
        pass
    store.wipe()
    with pytest.raises(NoView, match="committed nothing"), store.views.open():
        pass
    store.write([row(b"3")], TaskMeta(inputs={"in": 1}))
    with store.views.open() as view:
        assert view.get("s", KEY) == b"3"
    store.close()


def test_a_published_view_stays_while_the_standby_replays(databases: Databases, path: Path) -> None:
    store = TaskStore(databases, path)
    with pytest.raises(NoView, match="not reached"), store.views.published():
        pass
    store.load([row(b"1")[0]], [b"1"])
    store.write([], TaskMeta(inputs={"in": 1}, restoring=True))
    store.views.publish()
    store.load([row(b"2")[0]], [b"2"])
    with store.views.published() as view:
        store.load([row(b"3")[0]], [b"3"])
        store.write([], TaskMeta(inputs={"in": 3}, restoring=True))
        store.views.publish()
        assert (view.get("s", KEY), view.meta.inputs) == (b"1", {"in": 1})
    with store.views.published() as view:
        assert (view.get("s", KEY), view.meta.inputs) == (b"3", {"in": 3})
    with pytest.raises(NoView), store.views.open():
        pass
    store.close()
    with pytest.raises(NoView), store.views.published():
        pass


def test_the_first_query_finds_what_was_published_before_it(databases: Databases, path: Path) -> None:
    """Else the first query after a start would be refused, although the owner is gone and the standby is complete."""
    store = TaskStore(databases, path)
    store.write([row(b"1")], TaskMeta(inputs={"in": 1}, restoring=True))
    store.views.publish()
    with store.views.published() as view:
        assert view.get("s", KEY) == b"1"
    store.close()


def test_a_compaction_releases_the_view_of_a_standby(databases: Databases, path: Path) -> None:
    """Else the compaction would keep the values that are deleted, because a snapshot can see them."""
    store = TaskStore(databases, path)
    store.write([row(b"1")], TaskMeta(inputs={"in": 1}, restoring=True))
    store.views.publish()
    store.compact(lambda: None)
    with pytest.raises(NoView), store.views.published():
        pass
    store.close()
