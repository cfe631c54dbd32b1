"""Stores with a real RocksDB: overlay, undo of failed messages, commits, reopening, checkpoints, corruption."""

import multiprocessing
import os

import pytest

from holdfast.processors.engine.changelog.format import ValueNotStorable, encode_value, key_prefix
from holdfast.processors.engine.record_size import RecordTooLarge
from holdfast.processors.engine.state.databases.checkpoint_reader import fingerprint_checkpoint, iterate_checkpoint
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateDiskFailed, StateFolderForeign, StateFolderTaken
from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.state.store import CELLS_MAX, FOUND_ALL_MAX, StoreState
from tests.bucketing import one_by_one


@pytest.fixture
def backend(tmp_path):
    store = TaskStore(RocksDatabases(), tmp_path / "task")
    yield store
    store.close()


def at(state, key=b"k"):
    state.point_at(key, 1)
    return state


def test_reads_see_writes_and_keys_are_apart(backend):
    one, two = StoreState("one", backend), StoreState("two", backend)
    at(one).set("n", 1)
    assert at(one).get("n") == 1
    assert at(one, b"other").get("n") is None
    assert at(two).get("n", default="none") == "none"
    assert not at(two).exists("n")


def test_what_is_read_is_a_copy(backend):
    state = at(StoreState("s", backend))
    value = {"list": [1]}
    state.set("v", value)
    value["list"].append(2)
    state.get("v")["list"].append(3)
    assert state.get("v") == {"list": [1]}


def test_a_failed_message_is_undone_whole(backend):
    state = at(StoreState("s", backend))
    state.set("a", 1)
    state.keep_message()
    state.set("a", 2)
    state.set("b", 3)
    state.delete("a")
    with pytest.raises(ValueNotStorable):
        state.set("c", object())
    state.undo_message()
    assert (state.get("a"), state.exists("b"), state.exists("c")) == (1, False, False)


def test_dropping_the_overlay_brings_back_what_is_committed(backend):
    state = at(StoreState("s", backend))
    state.set("a", 1)
    backend.write(state.rocks_changes(state.writes()), TaskMeta(transaction=1))
    state.committed()
    state.set("a", 2)
    state.delete("a")
    state.drop()
    assert state.get("a") == 1


def test_commit_and_reopen(tmp_path):
    store = TaskStore(RocksDatabases(), tmp_path / "task")
    state = at(StoreState("s", store))
    state.set("a", [1, 2])
    state.set_bytes("raw", b"\x00\x01")
    store.write(state.rocks_changes(state.writes()), TaskMeta(inputs={"in": 5}, transaction=3))
    store.close()
    again = TaskStore(RocksDatabases(), tmp_path / "task")
    reopened = at(StoreState("s", again))
    assert reopened.get("a") == [1, 2]
    assert reopened.get_bytes("raw") == b"\x00\x01"
    assert again.meta().inputs == {"in": 5}
    assert next(iter(again.items("s")))[0] == key_prefix(b"k") + b"a"
    again.close()


def test_prefetch_gives_the_same_answers(backend):
    state = StoreState("s", backend)
    for number in range(50):
        at(state, b"%d" % number).set("n", number)
    backend.write(state.rocks_changes(state.writes()), TaskMeta())
    fresh = StoreState("s", backend)
    at(fresh, b"0").get("n")
    fresh.prefetch({b"%d" % number for number in range(60)})
    assert [at(fresh, b"%d" % number).get("n") for number in range(60)] == [*range(50), *([None] * 10)]


def commit(state, backend):
    backend.write(state.rocks_changes(state.writes()), TaskMeta())
    state.committed()


def cached_bytes(state):
    return sum(len(cell.young) + len(cell.old) for cell in state._all()) * state.entry_bytes()


def test_the_cache_keeps_to_its_bytes_and_what_is_used_stays_in_it(backend):
    state = StoreState("s", backend, cache_bytes=100_000)
    for number in range(2_000):
        at(state, b"%d" % number).set("n", number)
        if number % 100 == 0:
            commit(state, backend)
            at(state, b"hot").set("n", number)
            assert cached_bytes(state) <= 130_000
    commit(state, backend)
    misses = state.misses
    assert at(state, b"hot").get("n") == 1900
    assert at(state, b"1999").get("n") == 1999
    assert state.misses == misses
    assert [at(state, b"%d" % number).get("n") for number in range(2_000)] == list(range(2_000))
    assert state.misses > misses
    assert cached_bytes(state) <= 130_000


def test_keys_that_all_fit_are_read_from_the_database_once(backend):
    first = StoreState("s", backend)
    for number in range(500):
        at(first, b"%d" % number).set("n", number)
    commit(first, backend)
    state = StoreState("s", backend, cache_bytes=250_000)
    at(state, b"0").get("n")
    for _ in range(5):
        for start in range(0, 500, 50):
            state.prefetch({b"%d" % number for number in range(start, start + 50)})
            for number in range(start, start + 50):
                at(state, b"%d" % number).set("n", at(state, b"%d" % number).get("n"))
        commit(state, backend)
    assert state.misses == 1


def test_prefetching_rests_while_everything_is_in_memory_and_until_the_database_is_asked_again(backend):
    first = StoreState("s", backend)
    for number in range(100):
        at(first, b"%d" % number).set("n", number)
    commit(first, backend)
    state = StoreState("s", backend)
    at(state, b"0").get("n")
    state.prefetch({b"%d" % number for number in range(50)})
    assert state.prefetches
    for _ in range(FOUND_ALL_MAX):
        state.prefetch({b"%d" % number for number in range(50)})
    assert not state.prefetches
    assert at(state, b"70").get("n") == 70
    assert state.prefetches


def test_a_value_that_grows_old_in_the_cache_is_never_given_back_again(backend):
    state = StoreState("s", backend, cache_bytes=2_000)
    for turn in range(30):
        for number in range(20):
            key = b"%d" % number
            assert at(state, key).get("n", -1) == turn - 1
            if number % 3 or turn % 2:
                state.set("n", turn)
            else:
                state.delete("n")
                state.set("n", turn)
        commit(state, backend)


def test_state_keys_without_number_are_the_same_as_few(backend):
    state, expected = StoreState("s", backend, cache_bytes=20_000), {}
    for turn in range(8):
        for number in range(150):
            key, name = b"%d" % (number % 3), f"window {turn * 40 + number}"
            assert at(state, key).get(name) == expected.get((key, name))
            state.set(name, [turn, number])
            expected[key, name] = [turn, number]
            if number % 7 == 0:
                state.delete(name)
                expected[key, name] = None
            state.keep_message()
        at(state, b"0").set("window 9999", 1)
        state.undo_message()
        commit(state, backend)
    assert all(at(state, key).get(name) == value for (key, name), value in expected.items())
    assert len(state._cells) <= CELLS_MAX
    stored = dict(backend.items("s"))
    assert len(stored) == sum(value is not None for value in expected.values())


def test_state_keys_without_a_cell_are_the_same_as_others(backend):
    state = StoreState("s", backend)
    state.scattered = ("i/", "j/")
    for committed in (False, True):
        at(state, b"a").set("i/1", 1)
        at(state, b"a").set_own("i/2", {"n": 2})
        state.write_scattered(b"a", ["i/3", "i/4"], [encode_value(3, 1), encode_value(4, 1)])
        state.write_many("j/1", [b"a", b"b"], [encode_value(5, 1), encode_value(6, 1)])
        if committed:
            state.keep_message()
            commit(state, backend)
        held = at(state, b"a")
        assert [held.get(key) for key in ("i/1", "i/2", "i/3", "i/4", "j/1")] == [1, {"n": 2}, 3, 4, 5]
        assert held.keys(start="i/2", end="i/4") == ["i/2", "i/3"]
        assert held.keys(start="i/2", end="i/4", reverse=True) == ["i/3", "i/2"]
        assert state.read_many("j/1", [b"b", b"none", b"a"]) == [encode_value(6, 1), None, encode_value(5, 1)]
        assert len(state._cells) == 0


def test_what_the_engine_made_is_stored_as_all_else(backend):
    state = StoreState("s", backend, "log", 100)
    for value in ({"n": {"x": 1.5, "y": -0.0}}, [1, 2], "é", 1 << 62):
        at(state).set("n", value)
        [raw] = state.writes().values
        at(state).set_own("n", value)
        assert state.writes().values == [raw]
    with pytest.raises(ValueNotStorable):
        at(state).set_own("n", object())
    with pytest.raises(RecordTooLarge):
        at(state).set_own("n", "x" * 100)


def test_overwriting_does_not_add_up(backend):
    state = StoreState("s", backend)
    for number in range(100):
        at(state).set("n", "x" * 100)
        state.set("n", number)
        state.keep_message()
    small = state.dirty_bytes()
    assert small < 400
    state.set("n", "x" * 1_000)
    assert state.dirty_bytes() > small + 900
    state.undo_message()
    assert state.dirty_bytes() == small


def test_a_checkpoint_has_the_same_fingerprint(backend, tmp_path):
    state = at(StoreState("s", backend))
    for number in range(100):
        state.set(f"k{number}", number)
    backend.write(state.rocks_changes(state.writes()), TaskMeta())
    backend.checkpoint(tmp_path / "copy")
    pairs = list(iterate_checkpoint(tmp_path / "copy", "s"))
    assert len(pairs) == 100
    assert fingerprint_checkpoint(tmp_path / "copy", "s") == fingerprint_of(reversed(pairs))
    assert fingerprint_of(pairs[:50]) + fingerprint_of(pairs[50:]) == fingerprint_of(pairs)
    assert one_by_one(pairs[:2]) == fingerprint_of(pairs[:2])


def test_a_corrupt_store_is_moved_aside_and_starts_empty(tmp_path):
    store = TaskStore(RocksDatabases(), tmp_path / "task")
    store.write([(b"\x01sk", b"v")], TaskMeta(transaction=9))
    store.close()
    for manifest in (tmp_path / "task").glob("MANIFEST-*"):
        manifest.write_bytes(b"not a manifest" * 10)
    again = TaskStore(RocksDatabases(), tmp_path / "task")
    assert again.meta() is None
    assert list(tmp_path.glob("task.corrupt"))
    again.close()


def _hold(path, ready, done):
    folder = StateFolder(path, "group", "0")
    ready.set()
    done.wait(60)
    folder.release()


def test_a_folder_held_by_another_process_is_refused_with_its_pid(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, ready, done))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(StateFolderTaken, match=str(other.pid)):
            StateFolder(tmp_path, "group", "0")
        free = StateFolder(tmp_path, "group", None)
        assert free.slot == "1"
        free.release()
    finally:
        done.set()
        other.join(60)


def test_a_folder_of_another_application_is_refused(tmp_path):
    StateFolder(tmp_path, "one", "0").release()
    (tmp_path / "one").rename(tmp_path / "two")
    with pytest.raises(StateFolderForeign, match="belongs to 'one'"):
        StateFolder(tmp_path, "two", "0")


def test_a_folder_that_can_not_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDiskFailed, match="can't be written"):
        StateFolder(tmp_path / "file", "group", "0")
    assert os.path.exists(tmp_path / "file")
