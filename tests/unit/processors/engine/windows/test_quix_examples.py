"""The documented examples of Quix Streams for windows, aggregations and state, as they are written there.

Names, order of the calls and arguments are those of their documentation; only the package of the imports is another,
and data and words are ours. ``docs/coming-from/quix-examples.md`` lists the examples with these tests.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, State
from holdfast.dataframe.windows import Collect, Count, Max, Mean, Min, Reduce, Sum
from holdfast.dataframe.windows.aggregations import Aggregator, BaseAggregator, BaseCollector, Collector
from holdfast.infra.errors import HoldfastError
from holdfast.models import TimestampType
from tests.quix_page import listed_under
from tests.window_apps import T, build, send

MINUTE, HOUR = 60_000, 3_600_000
#: A whole number of hours since 1970.
START = T // HOUR * HOUR


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def results(cluster: InMemoryCluster, place: Callable[[Any], Any], messages: list[tuple[int, Any]]) -> Any:
    """What a step makes of messages, each with its milliseconds after ``START``; starts and ends are after it, too."""
    for at, value in messages:
        send(cluster, START - T + at, value)
    cluster.run(build(place))
    found = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    for each in found:
        each.update({name: each[name] - START for name in ("start", "end") if name in each})
    return found


# -- windowing: event time ---------------------------------------------------------------------------------------------


def test_timestamp_extractor(cluster: InMemoryCluster) -> None:
    def measured_at(value: Any, headers: Any, timestamp: float, timestamp_type: TimestampType) -> int:
        assert timestamp_type == TimestampType.TIMESTAMP_CREATE_TIME
        return int(value["measured_at"])

    app = Application(broker_address="in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    topic = app.topic("in", timestamp_extractor=measured_at)
    sdf = app.dataframe(topic)
    sdf.tumbling_window(timedelta(seconds=10)).agg(seen=Count()).current().to_topic(app.topic("out"))
    send(cluster, 0, {"measured_at": START + 25_000})
    cluster.run(app)
    [(_, made)] = cluster.read("out")
    assert json.loads(made.value or b"")["start"] == START + 20_000


def test_result_has_the_start_as_timestamp(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(seconds=10)).agg(coldest=Min("celsius")).current()

    found = results(cluster, place, [(10_001, {"celsius": 4})])
    assert found == [{"start": 10_000, "end": 20_000, "coldest": 4}]
    [(_, record)] = cluster.read("out")
    assert (record.timestamp_ms, record.headers or []) == (START + 10_000, [])


# -- windowing: kinds --------------------------------------------------------------------------------------------------

READINGS = [(100, {"celsius": 30}), (200, {"celsius": 29}), (300, {"celsius": 28})]


def test_tumbling_mean(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(duration_ms=timedelta(hours=1)).agg(average=Mean("celsius")).current()

    assert results(cluster, place, READINGS) == [
        {"start": 0, "end": HOUR, "average": average} for average in (30, 29.5, 29)
    ]


def test_tumbling_count_collect(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_count_window(count=3).agg(batch=Collect()).final()

    messages = [(121, {"parcel": 1}), (165, {"parcel": 2}), (583, {"parcel": 3}), (600, {"parcel": 4})]
    assert results(cluster, place, messages) == [
        {"start": 121, "end": 583, "batch": [{"parcel": 1}, {"parcel": 2}, {"parcel": 3}]}
    ]


def test_hopping_mean(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        window = sdf.hopping_window(duration_ms=timedelta(hours=1), step_ms=timedelta(minutes=30))
        return window.agg(average=Mean("celsius")).current()

    found = results(cluster, place, [(29 * MINUTE, {"celsius": 30}), (31 * MINUTE, {"celsius": 28})])
    assert [(each["start"], each["average"]) for each in found] == [
        (-30 * MINUTE, 30),
        (0, 30),
        (0, 29),
        (30 * MINUTE, 28),
    ]


def test_sliding_mean(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.sliding_window(duration_ms=timedelta(hours=1)).agg(average=Mean("celsius")).current()

    found = results(cluster, place, [(0, {"celsius": 30}), (HOUR, {"celsius": 28}), (HOUR + 1, {"celsius": 26})])
    assert [(each["start"], each["end"], each["average"]) for each in found] == [
        (-HOUR, 0, 30),
        (0, HOUR, 29),
        (1, HOUR + 1, 27),
    ]


def test_sliding_count_mean(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.sliding_count_window(count=3).agg(average=Mean("price")).final()

    messages = [(at, {"price": price}) for at, price in ((1, 90), (2, 60), (3, 30), (4, 30))]
    assert results(cluster, place, messages) == [
        {"start": 1, "end": 3, "average": 60},
        {"start": 2, "end": 4, "average": 40},
    ]


# -- windowing: sessions -----------------------------------------------------------------------------------------------


def test_session_final(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return (
            sdf.session_window(inactivity_gap_ms=timedelta(minutes=30), grace_ms=timedelta(minutes=5))
            .agg(visits=Count(), pages=Collect("page"))
            .final()
        )

    pages = [(1_000, "/"), (800_000, "/shoes"), (1_200_000, "/basket"), (2_000_000, "/paid"), (9 * HOUR, "/")]
    assert results(cluster, place, [(at, {"page": page}) for at, page in pages]) == [
        {"start": 1_000, "end": 2_000_001, "visits": 4, "pages": ["/", "/shoes", "/basket", "/paid"]}
    ]


def test_session_current(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return (
            sdf.session_window(inactivity_gap_ms=timedelta(seconds=10)).agg(paid=Sum("price"), items=Count()).current()
        )

    found = results(cluster, place, [(1_000, {"price": 25}), (5_000, {"price": 50}), (8_000, {"price": 50})])
    assert [(each["end"], each["paid"], each["items"]) for each in found] == [
        (1_001, 25, 1),
        (5_001, 75, 2),
        (8_001, 125, 3),
    ]


def test_session_on_late(cluster: InMemoryCluster) -> None:
    told: list[tuple[Any, ...]] = []

    def on_late(
        value: Any,
        key: Any,
        timestamp_ms: int,
        late_by_ms: int,
        start: int,
        end: int,
        name: str,
        topic: str,
        partition: int,
        offset: int,
    ) -> bool:
        told.append((value, key, start - START, end - START, topic, partition, offset))
        return False

    def place(sdf: Any) -> Any:
        window = sdf.session_window(
            inactivity_gap_ms=timedelta(minutes=5), grace_ms=timedelta(minutes=1), on_late=on_late
        )
        return window.agg(visits=Count()).final()

    results(cluster, place, [(HOUR, "in time"), (0, "late")])
    assert told == [("late", b"k", 0, 1, "in", 0, 1)]


def test_session_use_cases(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return (
            sdf.session_window(inactivity_gap_ms=timedelta(minutes=10))
            .agg(n=Count(), total=Sum("price"), places=Collect("city"), average=Mean("price"), most=Max("price"))
            .final()
        )

    messages = [(0, {"price": 3, "city": "Kyiv"}), (MINUTE, {"price": 5, "city": "Lviv"})]
    assert results(cluster, place, [*messages, (HOUR, {"price": 1, "city": "Kyiv"})]) == [
        {"start": 0, "end": MINUTE + 1, "n": 2, "total": 8, "places": ["Kyiv", "Lviv"], "average": 4, "most": 5}
    ]


def test_count_of_a_column_is_refused() -> None:
    with pytest.raises(HoldfastError, match="Count counts messages and takes no field, but got 'level'") as refused:
        Count("level")
    assert refused.value.action == "Write `Count()`, and filter messages before the aggregation."


# -- windowing: late messages, early results, closing ------------------------------------------------------------------


def test_grace(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(hours=1), grace_ms=timedelta(seconds=10)).agg(n=Count()).final()

    found = results(cluster, place, [(0, 1), (HOUR + 9_999, 1), (HOUR - 1, 1), (HOUR + 10_000, 1), (HOUR - 1, 1)])
    assert found == [{"start": 0, "end": HOUR, "n": 2}]


def test_tumbling_on_late(cluster: InMemoryCluster) -> None:
    told: list[tuple[int, int]] = []

    def on_late(
        value: Any,
        key: Any,
        timestamp_ms: int,
        late_by_ms: int,
        start: int,
        end: int,
        name: str,
        topic: str,
        partition: int,
        offset: int,
    ) -> bool:
        told.append((start - START, end - START))
        return False

    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(hours=1), on_late=on_late).agg(n=Count()).final()

    results(cluster, place, [(HOUR, 1), (1, 1)])
    assert told == [(0, HOUR)]


def test_after_update(cluster: InMemoryCluster) -> None:
    def is_full(aggregated: int, value: Any, key: Any, timestamp: int, headers: Any) -> bool:
        return aggregated > 1_000

    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(hours=1), after_update=is_full).sum().final()

    assert [each["value"] for each in results(cluster, place, [(0, 600), (1, 500), (2, 7), (HOUR, 0)])] == [1_100, 7]


def test_before_update(cluster: InMemoryCluster) -> None:
    def would_be_full(aggregated: int, value: Any, key: Any, timestamp: int, headers: Any) -> bool:
        return (aggregated + value) > 1_000

    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(hours=1), before_update=would_be_full).sum().final()

    assert [each["value"] for each in results(cluster, place, [(0, 600), (1, 500), (2, 7), (HOUR, 0)])] == [600, 507]


def test_current(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(seconds=10)).agg(value=Sum()).current()

    assert results(cluster, place, [(100, 1), (101, 1), (102, 1)]) == [
        {"start": 0, "end": 10_000, "value": value} for value in (1, 2, 3)
    ]


def test_final(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(seconds=10)).agg(value=Sum()).final()

    assert results(cluster, place, [(100, 1), (101, 1), (10_001, 1)]) == [{"start": 0, "end": 10_000, "value": 2}]


KEYED = [(100, b"A", 1), (101, b"B", 2), (105, b"C", 3), (10_100, b"B", 2), (8_000, b"A", 1), (10_001, b"A", 1)]


@pytest.mark.parametrize(
    ("strategy", "closed"), [("key", [(b"B", 2), (b"A", 2)]), ("partition", [(b"A", 1), (b"B", 2), (b"C", 3)])]
)
def test_closing_strategy(cluster: InMemoryCluster, strategy: str, closed: list[tuple[bytes, int]]) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(seconds=10)).agg(value=Sum()).final(closing_strategy=strategy)

    for at, key, value in KEYED:
        send(cluster, START - T + at, value, key)
    cluster.run(build(place))
    assert [(record.key, json.loads(record.value or b"")["value"]) for _, record in cluster.read("out")] == closed


def test_results_are_transformed(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        sdf = sdf.tumbling_window(timedelta(minutes=10)).agg(count=Count()).final()
        return sdf.apply(lambda value: {"count": value["count"], "window": (value["start"], value["end"])})

    assert results(cluster, place, [(0, 1), (HOUR, 1)]) == [{"count": 1, "window": [START, START + 10 * MINUTE]}]


# -- aggregations ------------------------------------------------------------------------------------------------------


def test_count(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(minutes=10)).agg(value=Count()).final()

    assert [each["value"] for each in results(cluster, place, [(0, {}), (1, {}), (HOUR, {})])] == [2]


def test_a_column_by_its_argument(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return (
            sdf.tumbling_window(timedelta(minutes=10))
            .agg(least=Min(column="celsius"), most=Max(column="celsius"), total=Sum(column="celsius"))
            .final()
        )

    [found] = results(cluster, place, [*READINGS, (HOUR, {"celsius": 1})])
    assert (found["least"], found["most"], found["total"]) == (28, 30, 87)
    with pytest.raises(HoldfastError, match="Min got the field 'a' and the column 'b', expected one of them"):
        Min("a", column="b")


def test_custom_aggregator(cluster: InMemoryCluster) -> None:
    class PowerSum(Aggregator):
        def initialize(self) -> int:
            return 0

        def agg(self, aggregated: int, new: int) -> int:
            return aggregated + (new * new)

        def result(self, aggregated: int) -> int:
            return aggregated

    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(minutes=10)).agg(sum=PowerSum()).final()

    assert [each["sum"] for each in results(cluster, place, [(0, 2), (1, 3), (HOUR, 1)])] == [13]


@pytest.mark.parametrize("base", [Aggregator, BaseAggregator])
def test_custom_aggregator_of_a_column(cluster: InMemoryCluster, base: type[Aggregator]) -> None:
    class Newest(base):  # type: ignore[misc, valid-type]
        """Its ``agg`` gets the timestamp, as the base class of Quix Streams has it."""

        def __init__(self, column: str) -> None:
            self._column = column

        @property
        def state_suffix(self) -> str:
            return f"{self.__class__.__name__}/{self._column}"

        def initialize(self) -> list[Any]:
            return []

        def agg(self, aggregated: list[Any], new: Any, timestamp: int) -> list[Any]:
            return max(aggregated, [timestamp - START, new[self._column]])

        def result(self, aggregated: list[Any]) -> list[Any]:
            return aggregated

    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(minutes=10)).agg(newest=Newest("celsius")).final()

    messages = [(0, {"celsius": 1}), (200, {"celsius": 7}), (100, {"celsius": 9}), (HOUR, {"celsius": 1})]
    assert [each["newest"] for each in results(cluster, place, messages)] == [[200, 7]]


def test_reduce(cluster: InMemoryCluster) -> None:
    def initializer(value: dict[str, Any]) -> dict[str, Any]:
        return {"least": value["celsius"], "seen": 1, "_sum": value["celsius"], "average": value["celsius"]}

    def reducer(aggregated: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        seen, total = aggregated["seen"] + 1, aggregated["_sum"] + value["celsius"]
        least = min(aggregated["least"], value["celsius"])
        return {"least": least, "seen": seen, "_sum": total, "average": total / seen}

    def place(sdf: Any) -> Any:
        window = sdf.tumbling_window(timedelta(minutes=10))
        return window.agg(value=Reduce(reducer=reducer, initializer=initializer)).final()

    assert [each["value"] for each in results(cluster, place, [*READINGS, (HOUR, {"celsius": 1})])] == [
        {"least": 28, "seen": 3, "_sum": 87, "average": 29}
    ]


def test_collect(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return sdf.tumbling_window(timedelta(minutes=10)).agg(events=Collect()).final()

    assert [each["events"] for each in results(cluster, place, [(0, "a"), (1, "b"), (HOUR, "c")])] == [["a", "b"]]


@pytest.mark.parametrize("base", [Collector, BaseCollector])
def test_custom_collector(cluster: InMemoryCluster, base: type[Collector]) -> None:
    class Reversed(base):  # type: ignore[misc, valid-type]
        def result(self, items: Any) -> list[Any]:
            return list(reversed(items))

    class ReversedColumn(Reversed):
        @property
        def column(self) -> str:
            return "celsius"

    def place(sdf: Any) -> Any:
        window = sdf.tumbling_window(timedelta(minutes=10))
        return window.agg(events=Reversed(), column=ReversedColumn()).final()

    [found] = results(cluster, place, [*READINGS, (HOUR, {"celsius": 1})])
    assert (found["events"], found["column"]) == ([value for _, value in READINGS[::-1]], [28, 29, 30])


def test_multiple_aggregations(cluster: InMemoryCluster) -> None:
    def place(sdf: Any) -> Any:
        return (
            sdf.tumbling_window(timedelta(minutes=10))
            .agg(
                coldest=Min("celsius"),
                hottest=Max("celsius"),
                average=Mean("celsius"),
                seen=Count(),
            )
            .final()
        )

    assert results(cluster, place, [*READINGS, (HOUR, {"celsius": 1})]) == [
        {"start": 0, "end": 10 * MINUTE, "coldest": 28, "hottest": 30, "average": 29, "seen": 3}
    ]


# -- stateful processing -----------------------------------------------------------------------------------------------


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


# -- state that ends: one line more, which declares the store ----------------------------------------------------------


def with_ttl(cluster: InMemoryCluster, place: Callable[[Any], Any], messages: list[tuple[int, Any]]) -> list[Any]:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.store("in", ttl="by value")  # the one line
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


# -- the table of the docs ---------------------------------------------------------------------------------------------


def test_the_page_lists_these_tests() -> None:
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_lists_these_tests"}
    assert listed_under("Windowing", "Aggregations", "Stateful processing", "Group by") == here
