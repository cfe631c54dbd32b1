"""Measures what a state codec costs: ``python -m tests.bench.codecs``.

Each row reads and sets one value of each key, after the former commit, as a function does with ``state.get`` and
``state.set``. The values have the same content in each codec. The store is in memory, so the time is that of the codec
and of the overlay. ``ratio`` is the CPU time relative to ``json``, in one process. The best of several turns counts,
because other work on the machine only adds time. Afterwards, each key must have counted each turn.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from holdfast import Application
from holdfast.processors.engine.runtime.task.store_time import declared_stores
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState

KEYS, TURNS = 5_000, 7
ITEMS = [{"sku": "A-1", "n": 2}, {"sku": "B-2", "n": 1}, {"sku": "C-3", "n": 9}]
#: A value of the codec ``bytes`` starts with its count. The other bytes are the JSON of the same cart.
COUNT_BYTES = 8


class Item(BaseModel):
    sku: str
    n: int


class Cart(BaseModel):
    turns: int = 0
    price: float = 99.5
    items: list[Item] = [Item(**each) for each in ITEMS]


@dataclass(frozen=True)
class Case:
    """A codec: the arguments of ``app.store``, and three functions.

    ``first`` makes the first value of a key, ``after`` makes the next value, and ``turns`` reads the number of turns in
    a value.
    """

    options: dict[str, Any]
    first: Callable[[], Any]
    after: Callable[[Any], Any]
    turns: Callable[[Any], int]


def _plain() -> dict[str, Any]:
    return {"turns": 0, "price": 99.5, "items": ITEMS}


def _next(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "turns": value["turns"] + 1}


def _next_cart(value: Cart) -> Cart:
    value.turns += 1
    return value


def _next_bytes(value: bytes) -> bytes:
    return _counted_bytes(value) + value[COUNT_BYTES:]


def _counted_bytes(value: bytes) -> bytes:
    return (int.from_bytes(value[:COUNT_BYTES]) + 1).to_bytes(COUNT_BYTES)


def _of_object(codec: str) -> Case:
    return Case({"codec": codec}, _plain, _next, lambda value: int(value["turns"]))


def _of_model(codec: str) -> Case:
    return Case({"codec": codec, "model": Cart}, Cart, _next_cart, lambda value: int(value.turns))


CASES = {
    "json": _of_object("json"),
    "msgpack": _of_object("msgpack"),
    "typed": _of_object("typed"),
    "bytes": Case(
        {"codec": "bytes"},
        lambda: bytes(COUNT_BYTES) + json.dumps(_plain()).encode(),
        _next_bytes,
        lambda value: int.from_bytes(value[:COUNT_BYTES]),
    ),
    "json with a pydantic model": _of_model("json"),
    "msgpack with a pydantic model": _of_model("msgpack"),
    "typed with a pydantic model": _of_model("typed"),
}


class Measured:
    """The store of one case in memory, with a value of each key."""

    def __init__(self, case: Case, keys: int) -> None:
        app = Application("in-memory", consumer_group="bench", loglevel=None)
        root = app.dataframe(app.topic("in"))
        root.apply(lambda value, state: value, stateful=True, store=app.store("s", **case.options))
        self._store = TaskStore(MemoryDatabases(lambda path, items: None), Path("unused"))
        states = {"s": StoreState("s", self._store)}
        states.update({name: state for name, (state, _) in declared_stores(states, [root]).items()})
        self._state, self._case, self._commits = states["s"], case, 0
        self._keys = [b"key-%d" % number for number in range(keys)]
        for key in self._keys:
            self._state.point_at(key, 1)
            self._state.set("v", case.first())
        self._commit()

    def spent_ns(self) -> int:
        """One turn: read and set the value of each key. Returns its CPU time in nanoseconds, without the commit."""
        state, after = self._state, self._case.after
        begun = time.thread_time_ns()
        for key in self._keys:
            state.point_at(key, 1)
            state.set("v", after(state.get("v")))
        spent = time.thread_time_ns() - begun
        self._commit()
        return spent

    def result(self) -> str:
        """A hash over all keys, each with the number of turns in its value."""
        digest = hashlib.sha256()
        for key in self._keys:
            self._state.point_at(key, 1)
            digest.update(b"%b=%d;" % (key, self._case.turns(self._state.get("v"))))
        return digest.hexdigest()[:16]

    def _commit(self) -> None:
        self._commits += 1
        changes = self._state.rocks_changes(self._state.writes())
        self._store.write(changes, TaskMeta(transaction=self._commits))
        self._state.committed()
        self._state.drop()  # no value stays in memory, so that each turn decodes what is stored


def measured(keys: int = KEYS, turns: int = TURNS) -> list[dict[str, Any]]:
    """One row for each codec: CPU microseconds for a read and a set, the ratio to ``json``, and the hash of the result.

    Raises:
        AssertionError: A codec has another result than plain Python.
    """
    stores = {name: Measured(case, keys) for name, case in CASES.items()}
    best = dict.fromkeys(stores, float("inf"))
    for _ in range(turns):
        for name, each in stores.items():
            best[name] = min(best[name], each.spent_ns() / keys / 1_000)
    expected = hashlib.sha256(b"".join(b"key-%d=%d;" % (number, turns) for number in range(keys))).hexdigest()[:16]
    results = {name: each.result() for name, each in stores.items()}
    assert set(results.values()) == {expected}, results
    return [
        {"codec": name, "us": round(us, 2), "ratio": round(us / best["json"], 2), "hash": results[name]}
        for name, us in best.items()
    ]


if __name__ == "__main__":
    for row in measured(*map(int, sys.argv[1:2])):
        print(json.dumps(row))
