"""The window examples from the documentation of Quix Streams.

Names, order of calls and arguments are as in that documentation. Only the import, the data and the comments differ.
``docs/coming-from/quix-examples.md`` lists the examples with these tests.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Collect, Count, Max, Mean, Min, Sum
from holdfast.infra.errors import HoldfastError
from holdfast.models import TimestampType
from tests.quix_page import HOUR, MINUTE, READINGS, START, listed_under, results
from tests.window_apps import T, build, send


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


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


# -- the table of the docs ---------------------------------------------------------------------------------------------


def test_the_page_lists_these_tests() -> None:
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_lists_these_tests"}
    assert listed_under("Windowing") == here
