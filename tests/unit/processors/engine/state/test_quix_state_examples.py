"""The state and group examples from the documentation of Quix Streams, with the calls as written there."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, State
from tests.quix_page import HOUR, MINUTE, READINGS, listed_under, results
from tests.window_apps import send


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def test_state_of_a_key(cluster: InMemoryCluster) -> None:
    def count_messages(value: dict[str, Any], state: State) -> dict[str, Any]:
        total = state.get("total", default=0)
        total += 1
        state.set("total", total)
        return {**value, "total": total}

    app = Application(broker_address="localhost:9092", consumer_group="consumer", auto_offset_reset="earliest")
    topic = app.topic("in")
    sdf = app.dataframe(topic)
    sdf = sdf.apply(count_messages, stateful=True)
    sdf = sdf.to_topic(app.topic("out"))
    for key in (b"A", b"B", b"A"):
        send(cluster, 0, {}, key)
    cluster.run(app)
    assert [json.loads(record.value or b"") for _, record in cluster.read("out")] == [
        {"total": 1},
        {"total": 1},
        {"total": 2},
    ]


def test_update_with_state(cluster: InMemoryCluster) -> None:
    def add_hottest(value: dict[str, Any], state: State) -> None:
        hottest = state.get("hottest")
        hottest = value["celsius"] if hottest is None else max(value["celsius"], hottest)
        state.set("hottest", hottest)
        value["hottest"] = hottest

    found = results(cluster, lambda sdf: sdf.update(add_hottest, stateful=True), READINGS)
    assert [each["hottest"] for each in found] == [30, 30, 30]


def test_bytes_in_state(cluster: InMemoryCluster) -> None:
    def keep(value: Any, state: State) -> dict[str, Any]:
        old = state.get_bytes("key", default=None)
        if old is not None:
            old = pickle.loads(old)
        state.set_bytes("key", pickle.dumps(value))
        return {"old": old, "new": value}

    found = results(cluster, lambda sdf: sdf.apply(keep, stateful=True), [(0, 1), (1, 2)])
    assert found == [{"old": None, "new": 1}, {"old": 1, "new": 2}]


def test_state_dir(tmp_path: Path) -> None:
    app = Application(broker_address="localhost:9092", state_dir=str(tmp_path / "state"))
    assert app.state_dir == tmp_path / "state"


# -- state that expires ------------------------------------------------------------------------------------------------


def with_ttl(cluster: InMemoryCluster, place: Callable[[Any], Any], messages: list[tuple[int, Any]]) -> list[Any]:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    place(app.dataframe(app.topic("in"))).to_topic(app.topic("out"))
    for at, value in messages:
        send(cluster, at, value)
    cluster.run(app)
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def test_ttl_filter(cluster: InMemoryCluster) -> None:
    def dedup(value: Any, key: Any, timestamp: int, headers: Any, state: State) -> bool:
        if state.get("status") == value["status"]:
            return False
        state.set("status", value["status"], ttl=timedelta(minutes=5))
        return True

    messages = [(at, {"status": status, "at": at}) for at, status in ((0, "on"), (1, "on"), (2, "off"), (3, "on"))]
    again = (3 + 5 * MINUTE, {"status": "on", "at": -1})
    found = with_ttl(cluster, lambda sdf: sdf.filter(dedup, stateful=True, metadata=True), [*messages, again])
    assert [each["at"] for each in found] == [0, 2, 3, -1]


def test_ttl_cache(cluster: InMemoryCluster) -> None:
    fetched: list[str] = []

    def enrich(value: Any, key: Any, timestamp: int, headers: Any, state: State) -> Any:
        cached = state.get("profile")
        if cached is None:
            fetched.append(value["user"])
            cached = {"name": value["user"]}
            state.set("profile", cached, ttl=timedelta(hours=1))
        return {**value, "profile": cached}

    messages = [(at, {"user": "ada"}) for at in (0, HOUR - 1, HOUR)]
    found = with_ttl(cluster, lambda sdf: sdf.apply(enrich, stateful=True, metadata=True), messages)
    assert found == [{"user": "ada", "profile": {"name": "ada"}}] * 3
    assert fetched == ["ada"] * 2


def test_ttl_counter(cluster: InMemoryCluster) -> None:
    def bump(value: Any, key: Any, timestamp: int, headers: Any, state: State) -> None:
        count = (state.get("count") or 0) + 1
        state.set("count", count, ttl=timedelta(minutes=10))
        value["count"] = count

    messages = [(at, {}) for at in (0, 9 * MINUTE, 18 * MINUTE, 28 * MINUTE)]
    found = with_ttl(cluster, lambda sdf: sdf.update(bump, stateful=True, metadata=True), messages)
    assert [each["count"] for each in found] == [1, 2, 3, 1]


# -- group by ----------------------------------------------------------------------------------------------------------

SOLD = [
    (0, {"store": 1, "item": "a", "n": 5}),
    (1, {"store": 1, "item": "b", "n": 2}),
    (2, {"store": 2, "item": "a", "n": 1}),
]


def add_up(value: Any, state: State) -> int:
    total: int = state.get("total", 0) + value["n"]
    state.set("total", total)
    return total


def test_group_by_a_column(cluster: InMemoryCluster) -> None:
    def by_item(sdf: Any) -> Any:
        sdf = sdf.group_by("item")
        return sdf.apply(lambda value, state: {"item": value["item"], "sum": add_up(value, state)}, stateful=True)

    found = results(cluster, by_item, SOLD)
    assert [each["sum"] for each in found if each["item"] == "a"] == [5, 6]
    assert [each["sum"] for each in found if each["item"] == "b"] == [2]


def test_group_by_a_function(cluster: InMemoryCluster) -> None:
    def by_both(sdf: Any) -> Any:
        sdf = sdf.group_by(key=lambda value: f"{value['store']}-{value['item']}", name="store_and_item")
        return sdf.apply(lambda value, state: {**value, "sum": add_up(value, state)}, stateful=True)

    again = [(3, {"store": 1, "item": "a", "n": 7})]
    sums = {(each["store"], each["item"]): each["sum"] for each in results(cluster, by_both, [*SOLD, *again])}
    assert sums == {(1, "a"): 12, (1, "b"): 2, (2, "a"): 1}


def test_group_by_before_a_window(cluster: InMemoryCluster) -> None:
    def sums(sdf: Any) -> Any:
        sdf = sdf.group_by("item", key_serializer="str", key_deserializer="str")
        return sdf.tumbling_window(duration_ms=1_000).sum("n").final()

    found = results(cluster, sums, [*SOLD, (1_000, {"store": 1, "item": "c", "n": 1})])
    assert sorted((each["start"], each["value"]) for each in found) == [(0, 2), (0, 6)]


def test_the_page_lists_these_tests() -> None:
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_lists_these_tests"}
    assert listed_under("Stateful processing", "Group by") == here
