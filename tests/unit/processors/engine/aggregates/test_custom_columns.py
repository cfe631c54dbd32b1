"""Aggregators and collectors that users write, in each kind of window."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import InMemoryCluster
from holdfast.dataframe.windows import Aggregator, Collector, Count
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from tests.window_apps import build, send


class PowerSum(Aggregator):
    def initialize(self) -> int:
        return 0

    def agg(self, old: int, new: int) -> int:
        return old + new * new

    def result(self, value: int) -> int:
        return value


class Merging(PowerSum):
    def merge(self, earlier: int, later: int) -> int:
        return earlier + later


class Spread(Aggregator):
    """An aggregator with its own constructor, a dict as state, and its own suffix of the state key."""

    def __init__(self, field: str) -> None:
        self._field = field

    @property
    def state_suffix(self) -> str:
        return f"spread of {self._field}"

    def initialize(self) -> dict[str, Any]:
        return {}

    def agg(self, old: dict[str, Any], new: Any) -> dict[str, Any]:
        old["least"] = min(old.get("least", new[self._field]), new[self._field])
        old["most"] = max(old.get("most", new[self._field]), new[self._field])
        return old

    def result(self, value: dict[str, Any]) -> Any:
        return value["most"] - value["least"]


class Newest(Aggregator):
    """The value with the latest event time. ``agg`` gets the time, as in the base class of Quix Streams."""

    def initialize(self) -> list[Any]:
        return [-1, None]

    def agg(self, old: list[Any], new: Any, timestamp: int) -> list[Any]:
        return max(old, [timestamp, new])

    def result(self, value: list[Any]) -> Any:
        return value[1]

    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return max(earlier, later)


class Reversed(Collector):
    def result(self, items: list[Any]) -> list[Any]:
        return items[::-1]


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def last(cluster: InMemoryCluster) -> dict[str, Any]:
    made = json.loads(cluster.read("out")[-1][1].value or b"")
    return {name: value for name, value in made.items() if name not in ("start", "end")}


WINDOWS: dict[str, Callable[[StreamingDataFrame], Any]] = {
    "tumbling": lambda frame: frame.tumbling_window(1_000, name="w"),
    "hopping": lambda frame: frame.hopping_window(1_000, 1_000, name="w"),
    "session": lambda frame: frame.session_window(10, 100, name="w"),
    "sliding": lambda frame: frame.sliding_window(100, 100, name="w"),
    "tumbling count": lambda frame: frame.tumbling_count_window(3, name="w"),
    "sliding count": lambda frame: frame.sliding_count_window(3, name="w"),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_an_aggregator_and_a_collector_in_each_kind_of_window(cluster: InMemoryCluster, kind: str) -> None:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        return WINDOWS[kind](frame).agg(power=Merging(), back=Reversed(), n=Count()).current()

    for at, value in ((0, 2), (20, 5)):
        send(cluster, at, value)
    cluster.run(build(place))  # the next run continues from the state that this run stores
    send(cluster, 10, 3)
    cluster.run(build(place))
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    [whole] = [(each["power"], each["back"]) for each in made if each["n"] == 3]
    assert whole == (38, [5, 3, 2] if kind in ("session", "sliding") else [3, 5, 2])


@pytest.mark.parametrize("kind", WINDOWS)
def test_an_aggregator_gets_the_event_time_in_each_kind_of_window(cluster: InMemoryCluster, kind: str) -> None:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        return WINDOWS[kind](frame).agg(newest=Newest(), n=Count()).current()

    for at, value in ((0, 2), (20, 5), (10, 3)):
        send(cluster, at, value)
    cluster.run(build(place))
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert [each["newest"] for each in made if each["n"] == 3] == [5]


def test_a_name_of_its_own_begins_the_state_again(cluster: InMemoryCluster) -> None:
    def place(field: str) -> Callable[[StreamingDataFrame], Any]:
        return lambda frame: frame.tumbling_window(1_000, name="w").agg(spread=Spread(field)).current()

    for value in (1, 7):
        send(cluster, 0, {"a": value, "b": value})
    cluster.run(build(place("a")))
    assert last(cluster) == {"spread": 6}
    send(cluster, 0, {"a": 9, "b": 9})
    cluster.run(build(place("b")))
    assert last(cluster) == {"spread": 0}


def test_a_collector_keeps_one_field(cluster: InMemoryCluster) -> None:
    app = build(
        lambda frame: frame.tumbling_window(1_000, name="w").agg(back=Reversed("v")).current(),
        dead_letter_topic="dead",
    )
    for value in ({"v": 1}, {"other": 1}, {"v": 2}):
        send(cluster, 0, value)
    cluster.run(app)
    assert last(cluster) == {"back": [2, 1]}
    [(_, dead)] = cluster.read("dead")
    assert dict(dead.headers or [])["holdfast.error.type"] == b"AggregationFailed"


def test_a_method_that_raises_fails_its_message_and_changes_no_window(cluster: InMemoryCluster) -> None:
    app = build(
        lambda frame: frame.tumbling_window(1_000, name="w").agg(power=PowerSum(), n=Count()).current(),
        dead_letter_topic="dead",
    )
    for value in (2, None, 3):
        send(cluster, 0, value)
    cluster.run(app)
    assert (last(cluster), len(cluster.read("dead"))) == ({"power": 13, "n": 2}, 1)


def test_sessions_need_a_merge() -> None:
    with pytest.raises(HoldfastError, match=r"Column 'power' is custom\(PowerSum\), which can't merge") as raised:
        build(lambda frame: frame.session_window(10).agg(power=PowerSum()).current())
    assert "a method `merge`" in (raised.value.action or "")


def test_custom_columns_are_part_of_the_definition() -> None:
    app = build(lambda frame: frame.tumbling_window(10).agg(a=PowerSum("v"), b=Reversed("v"), c=Reversed()).current())
    [store] = app.topology().stores
    assert store.columns[1:] == ("a = custom(PowerSum/v)", "b = collected(Reversed, v)", "c = collected(Reversed)")
