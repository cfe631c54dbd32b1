"""The aggregation examples from the documentation of Quix Streams, with the calls as written there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import InMemoryCluster
from holdfast.dataframe.windows import Collect, Count, Max, Mean, Min, Reduce, Sum
from holdfast.dataframe.windows.aggregations import Aggregator, BaseAggregator, BaseCollector, Collector
from holdfast.infra.errors import HoldfastError
from tests.quix_page import HOUR, MINUTE, READINGS, START, listed_under, results


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


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
        """An aggregator whose ``agg`` takes the timestamp, as in the base class of Quix Streams."""

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


def test_the_page_lists_these_tests() -> None:
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_lists_these_tests"}
    assert listed_under("Aggregations") == here
