"""``StoreState.get`` and ``set`` contain the code of ``_load`` and ``_store``. Both ways must give the same results."""

import copy
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import decode_value, encode_value
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import CELLS_MAX, StoreState
from tests.mechanics.tiers import examples

RECORD_BYTES_MAX = 60


class Called(StoreState):
    """The same store, but with calls of ``_load`` and ``_store``."""

    def get(self, key, default=None):
        raw = self._load(key)
        return copy.deepcopy(default) if raw is None else decode_value(raw)

    def set(self, key, value):
        raw = encode_value(value, self.timestamp_ms, where=f" for key {key!r} of store {self.name!r}")
        self._store(key, raw)


PARTS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=3)
VALUES = st.recursive(PARTS, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each))
#: More state keys than the store has cells (dicts for the values of one state key), so that not all keys have a cell.
STATE_KEYS = st.sampled_from(("n", "total", "é")) | st.integers(0, CELLS_MAX + 2).map(str) | st.just(7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), STATE_KEYS, VALUES),
        st.tuples(st.just("set"), STATE_KEYS, VALUES),
        st.tuples(st.just("set_bytes"), STATE_KEYS, st.binary(max_size=9)),
        st.tuples(st.just("delete"), STATE_KEYS),
        st.tuples(st.just("point_at"), st.sampled_from((b"a", b"b", b"long" * 9)), st.integers(0, 9)),
        st.tuples(st.sampled_from(("undo_message", "keep_message", "commit", "drop", "forget", "shrink"))),
    ),
    max_size=60,
)


def store_of(kind):
    backend = TaskStore(MemoryDatabases(lambda path, items: None), Path("unused"))
    made = kind("s", backend, "log", RECORD_BYTES_MAX)
    made.scattered = ("1", "é")
    return made, backend


def done(store, backend, step):
    """The result of a step, or the error that it raised."""
    name, *arguments = step
    if name == "commit":
        store.keep_message()
        backend.write(store.rocks_changes(store.writes()), TaskMeta())
        return store.committed()
    if name == "shrink":
        return store.bound_cache(400)
    try:
        return getattr(store, name)(*arguments)
    except (HoldfastError, TypeError) as error:
        return type(error), str(error)


def cached_bytes(store):
    return sum(len(cell.young) + len(cell.old) for cell in store._all()) * store.entry_bytes()


def same(one, other):
    return one == other or repr(one) == repr(other) or (one != one and other != other and math.isnan(one))


@settings(deadline=None, max_examples=examples(300, tested=100))
@given(STEPS)
def test_inlined_code_does_what_the_calls_do(steps):
    (inlined, first), (called, second) = store_of(StoreState), store_of(Called)
    for step in steps:
        assert same(done(inlined, first, step), done(called, second, step)), step
        for told in ("reads", "misses", "undo_log"):
            assert getattr(inlined, told) == getattr(called, told), (step, told)
        assert inlined.writes() == called.writes(), step
        assert inlined.dirty_bytes() == called.dirty_bytes(), step
        assert cached_bytes(inlined) == cached_bytes(called), step


@pytest.mark.parametrize(
    "value",
    [b"xx", "xx", "", None, [None], "null", math.nan, [math.inf], {"a": math.nan}, {1: 2}, {1, 2}, object(), 1 << 70],
    ids=lambda value: type(value).__name__,
)
def test_values_with_a_rule_of_their_own(value):
    (inlined, first), (called, second) = store_of(StoreState), store_of(Called)
    for step in (("set", "n", value), ("get", "n")):
        assert same(done(inlined, first, step), done(called, second, step)), step
    assert inlined.writes() == called.writes()


def test_a_default_is_copied_for_each_message():
    store, _ = store_of(StoreState)
    default = {"seen": []}
    store.get("n", default)["seen"].append(1)
    assert default == {"seen": []}
