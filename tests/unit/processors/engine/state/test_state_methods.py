"""Methods of a key's state beyond single values: counters, lists, ranges, raw bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.databases.database import Databases
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases, export
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.own_keys import RESERVED
from holdfast.processors.engine.state.ranges import WrittenKeys, behind
from holdfast.processors.engine.state.store import CELLS_MAX, StoreState
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import InlineProcess
from tests.simulation.disk import SimulatedDisk

BACKENDS: dict[str, Callable[[], Databases]] = {
    "memory": lambda: MemoryDatabases(export),
    "rocksdb": RocksDatabases,
    "simulated": lambda: SimulatedDisk().attach(InlineProcess(VirtualClock(), "a")),
}


def state_of(databases: Databases, path: Path) -> tuple[StoreState, TaskStore]:
    backend = TaskStore(databases, path)
    made = StoreState("s", backend)
    made.point_at(b"a", 5)
    return made, backend


@pytest.fixture
def state(tmp_path: Path) -> StoreState:
    return state_of(MemoryDatabases(export), tmp_path)[0]


def commit(state: StoreState, backend: TaskStore) -> None:
    state.keep_message()
    backend.write(state.rocks_changes(state.writes()), TaskMeta())
    state.committed()


def test_a_counter_begins_at_zero_and_returns_its_total(state: StoreState) -> None:
    assert [state.increment("n"), state.increment("n", 4), state.increment("n", -0.5)] == [1, 5, 4.5]
    assert state.get("n") == 4.5


@pytest.mark.parametrize("held", ["three", True, [1], b"\x01"])
def test_what_is_no_number_is_not_incremented(state: StoreState, held: Any) -> None:
    (state.set_bytes if isinstance(held, bytes) else state.set)("n", held)
    with pytest.raises(HoldfastError, match=r"Key 'n' of store 's' holds .*, expected a number"):
        state.increment("n")
    assert state.get("n") == held
    with pytest.raises(HoldfastError, match="incremented by str 'x'"):
        state.increment("m", "x")  # type: ignore[arg-type]
    assert not state.exists("m")


def test_a_list_keeps_its_newest_items(state: StoreState) -> None:
    assert [state.append("l", each, keep_last=2) for each in (1, 2, 3)] == [[1], [1, 2], [2, 3]]
    assert state.append("l", {"a": 1}) == [2, 3, {"a": 1}]
    with pytest.raises(ValueError, match="`keep_last` is 0"):
        state.append("l", 4, keep_last=0)
    state.set("t", "text")
    with pytest.raises(HoldfastError, match="holds str 'text', expected a list"):
        state.append("t", 1)


def test_a_list_that_was_returned_is_no_part_of_the_state(state: StoreState) -> None:
    state.append("l", 1).append(2)
    assert state.get("l") == [1]


def test_pop_reads_and_deletes(state: StoreState) -> None:
    state.set("n", None)
    assert state.pop("n", 7) is None
    assert state.pop("n", 7) == 7
    assert state.keys() == []


def test_a_failed_message_takes_all_of_it_back(state: StoreState) -> None:
    state.append("l", 1)
    state.set("n", 2)
    state.keep_message()
    state.increment("n")
    state.append("l", 2)
    state.pop("l")
    for number in range(CELLS_MAX + 3):
        state.set(f"x{number}", number)
    assert len(state.items("x")) == CELLS_MAX + 3
    state.undo_message()
    assert state.items() == [("l", [1]), ("n", 2)]
    for number in range(CELLS_MAX + 3):  # more state keys than the store has cells (dicts of one key's values)
        state.set(f"y{number}", number)
    assert len(state.items()) == CELLS_MAX + 5


def test_ranges_with_bounds(state: StoreState) -> None:
    for key in ("a", "ab", "b", "c", "é", "\U0010ffff"):
        state.set(key, key)
    assert state.keys(prefix="a") == ["a", "ab"]
    assert state.keys(start="ab", end="c") == ["ab", "b"]
    assert state.keys(prefix="a", start="aa") == ["ab"]
    assert state.keys(prefix="a", end="ab") == ["a"]
    assert state.keys(start="c", end="a") == state.keys(prefix="a", start="b") == state.keys(end="") == []
    assert state.keys(prefix="é") == ["é"]
    assert state.keys(prefix="\U0010ffff") == ["\U0010ffff"]
    assert state.keys(reverse=True, limit=2) == ["\U0010ffff", "é"]
    assert state.keys(prefix="a", reverse=True) == ["ab", "a"]
    assert state.keys(limit=0) == []
    assert state.items(limit=1) == [("a", "a")]
    with pytest.raises(ValueError, match="`limit` is -1"):
        state.keys(limit=-1)


def test_what_is_no_text_or_no_bytes_is_named(state: StoreState) -> None:
    for bounds, said in (
        ({"prefix": None}, "`prefix` is None"),
        ({"start": 3}, "`start` is 3"),
        ({"end": b"x"}, "`end` is"),
    ):
        with pytest.raises(TypeError, match=f"{said}.*expected a text"):
            state.items(**bounds)  # type: ignore[arg-type]
    for value in ("text", None, 5):
        with pytest.raises(TypeError, match="expected bytes: use state.set"):
            state.set_bytes("a", value)  # type: ignore[arg-type]
    state.set_bytes("a", bytearray(b"x"))
    assert state.get_bytes("a") == b"x"


def test_own_records_are_not_shown_and_not_set(state: StoreState) -> None:
    state._write(state._shared, key_prefix(b"a") + f"{RESERVED}n".encode(), "n", b"")
    state.set("n", 1)
    assert state.keys() == state.keys(reverse=True) == ["n"]
    with pytest.raises(ValueError, match="belong to Holdfast"):
        state.set(f"{RESERVED}n", 1)


def test_behind_a_prefix() -> None:
    assert [behind(b"a"), behind(b"a\xff"), behind(b"\xff"), behind(b"")] == [b"b", b"b", b"", b""]


def test_keys_of_a_message_are_found_without_a_look_at_all_writes() -> None:
    found = WrittenKeys()
    written: dict[bytes, bytes | None] = {}
    prefixes = [b"\x01\x00\x00\x00\x01" + key for key in (b"a", b"b")]
    for number in range(4):
        written[prefixes[number % 2] + b"%d" % number] = b""
        wanted = [prefixes[0] + b"%d" % each for each in range(0, number + 1, 2)]
        between = found.between(written, prefixes[0], prefixes[0], prefixes[1], reverse=False)
        assert [key for key, _ in between] == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranges_see_overlay_and_database_alike(backend: str, tmp_path: Path) -> None:
    random = Random(backend)
    model: dict[tuple[bytes, str], int] = {}
    kept, committed = dict(model), dict(model)
    state, store = state_of(BACKENDS[backend](), tmp_path / "task")
    names = [f"{letter}{number}" for letter in "abé" for number in range(CELLS_MAX // 2)]
    for _ in range(400):
        key = random.choice([b"a", b"ab", b"\xff", b""])
        state.point_at(key, 5)
        name = random.choice(names)
        if random.random() < 0.7:
            value = random.randint(0, 99)
            state.set(name, value)
            model[key, name] = value
        else:
            state.delete(name)
            model.pop((key, name), None)
        if random.random() < 0.15:
            state.undo_message()
            model = dict(kept)
        elif random.random() < 0.3:
            state.keep_message()
            kept = dict(model)
            if random.random() < 0.3:
                commit(state, store)
                committed = dict(model)
            elif random.random() < 0.1:
                state.drop()
                model, kept = dict(committed), dict(committed)
        low, high = sorted(random.choices(names, k=2))
        wanted = sorted(name for each, name in model if each == state.message_key and low <= name < high)
        assert state.keys(start=low, end=high) == wanted
        limit = random.randint(0, 5)
        assert state.items(start=low, end=high, reverse=True, limit=limit) == [
            (each, model[state.message_key, each]) for each in wanted[::-1][:limit]
        ]
    store.close()


def test_they_are_as_durable_as_other_state() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")

    def build() -> Application:
        app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)

        def visit(value: Any, state: Any) -> Any:
            state.increment(f"page/{value['page']}")
            state.append("last", value["page"], keep_last=2)
            return {"pages": dict(state.items(prefix="page/")), "last": state.get("last")}

        app.dataframe(app.topic("in")).apply(visit, stateful=True, store="visits").to_topic(app.topic("out"))
        return app

    for page in "aba":
        cluster.produce("in", json.dumps({"page": page}).encode(), b"k")
        cluster.run(build())  # each run starts with a new disk
    *_, (_, last) = cluster.read("out")
    assert json.loads(last.value or b"") == {"pages": {"page/a": 2, "page/b": 1}, "last": ["b", "a"]}
