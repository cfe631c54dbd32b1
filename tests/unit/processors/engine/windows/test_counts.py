"""Count windows in an application: their outputs, what they refuse, and that they need no clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import InMemoryCluster
from holdfast.dataframe.windows import Collect, Mean
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from tests.window_apps import T, build, send


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in", config={"message.timestamp.after.max.ms": str(2**62)})
    made.create_topic("out", config={"message.timestamp.after.max.ms": str(2**62)})
    return made


def results(cluster: InMemoryCluster) -> list[tuple[int, int, Any]]:
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    return [(each["start"] - T, each["end"] - T, each["value"]) for each in made]


def test_the_last_three_of_each_key(cluster: InMemoryCluster) -> None:
    for at, amount in ((121, 100), (165, 60), (583, 200), (723, 40), (1009, 120), (1242, 80)):
        send(cluster, at, {"amount": amount})
        send(cluster, at, {"amount": 0}, b"other")
    app = build(lambda frame: frame.sliding_count_window(3, "w").agg(value=Mean("amount")).final())
    cluster.run(app)
    assert [each for each in results(cluster) if each[2]] == [
        (121, 583, 120),
        (165, 723, 100),
        (583, 1009, 120),
        (723, 1242, 80),
    ]
    assert {record.timestamp_ms - T for _, record in cluster.read("out")} == {121, 165, 583, 723}


def test_start_and_end_are_the_least_and_the_greatest_time(cluster: InMemoryCluster) -> None:
    for at in (50, 10, 30, 20, 90, 70):
        send(cluster, at, at)
    cluster.run(build(lambda frame: frame.tumbling_count_window(3, "w").collect().final()))
    assert results(cluster) == [(10, 50, [50, 10, 30]), (20, 90, [20, 90, 70])]


def test_a_message_far_ahead_of_the_clock_counts_like_all_others(cluster: InMemoryCluster) -> None:
    ahead = 10**12
    for at in (0, ahead):
        send(cluster, at)
    cluster.run(build(lambda frame: frame.tumbling_count_window(2).count().final()))
    assert results(cluster) == [(0, ahead, 2)]


def test_they_need_no_changelog_for_exactly_once() -> None:
    assert build(lambda frame: frame.tumbling_count_window(2).count().final(), use_changelog_topics=False).topology()


@pytest.mark.parametrize(("former", "newer"), [(3, 5), (5, 3)])
def test_an_open_window_has_a_new_count_at_once(cluster: InMemoryCluster, former: int, newer: int) -> None:
    for at in range(2):
        send(cluster, at, at)
    cluster.run(build(lambda frame: frame.tumbling_count_window(former, "w").collect().final()))
    for at in range(2, 10):
        send(cluster, at, at)
    cluster.run(build(lambda frame: frame.tumbling_count_window(newer, "w").collect().final()))
    assert [len(each[2]) for each in results(cluster)] == [newer] * (10 // newer)
    assert results(cluster)[0][2] == list(range(newer))


def test_a_longer_window_waits_until_it_has_its_messages(cluster: InMemoryCluster) -> None:
    for at in range(20):
        send(cluster, at, at)
    cluster.run(build(lambda frame: frame.sliding_count_window(2, "w").collect().final()))
    for at in range(20, 40):
        send(cluster, at, at)
    cluster.run(build(lambda frame: frame.sliding_count_window(12, "w").collect().final()))
    longer = [each[2] for each in results(cluster) if len(each[2]) != 2]
    assert longer
    assert all(each == list(range(each[0], each[0] + 12)) for each in longer)
    assert longer[-1][-1] == 39


@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
def test_a_message_that_no_window_can_use_is_put_aside_and_not_counted(cluster: InMemoryCluster, kind: str) -> None:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        return getattr(frame, f"{kind}_count_window")(3, name="w").agg(value=Mean()).final()

    for at, value, key in (
        (0, 3, b"k"),
        (1, "text", b"k"),
        (-1 - T, 7, b"k"),
        (2, 5, b"k"),
        (3, 2, None),
        (4, 1, b"k"),
    ):
        send(cluster, at, value, key)
    cluster.run(build(place, dead_letter_topic="dead"))
    dead = [dict(record.headers or [])["holdfast.error.type"] for _, record in cluster.read("dead")]
    assert dead == [b"AggregationFailed", b"EventTimeInvalid", b"NullKey"]
    assert results(cluster) == [(0, 4, 3.0)]


@pytest.mark.parametrize(
    ("place", "match"),
    [
        (lambda frame: frame.tumbling_count_window(0), "`count` is 0, expected a whole number from 1"),
        (lambda frame: frame.tumbling_count_window(-2), "`count` is -2"),
        (lambda frame: frame.tumbling_count_window(True), "`count` is True"),
        (lambda frame: frame.sliding_count_window(2.5), "`count` is 2.5"),
        (lambda frame: frame.sliding_count_window(2_000), "each message belongs to 2000 windows; at most 1000"),
        (lambda frame: frame.hopping_count_window(3, 0), "`step` is 0"),
        (lambda frame: frame.hopping_count_window(3, 4), "messages between two windows would be lost"),
        (lambda frame: frame.tumbling_count_window(3).agg(all=len), "expected one of Count"),
        (lambda frame: frame.tumbling_count_window(3).count().final().tumbling_window(3).count().final(), "behind"),
    ],
)
def test_a_declaration_that_can_not_run_is_refused(place: Callable[[StreamingDataFrame], Any], match: str) -> None:
    with pytest.raises(HoldfastError, match=match) as raised:
        build(place)
    assert raised.value.action


def test_a_new_count_is_another_definition() -> None:
    def described(place: Callable[[StreamingDataFrame], Any]) -> tuple[str, ...]:
        [store] = build(place).topology().stores
        return store.kind, *store.columns

    first = described(lambda frame: frame.hopping_count_window(4, 2, "w").agg(all=Collect()).final())
    assert first == ("count-window", "window = hopping count 4, step 2, final", "all = items()")
    assert described(lambda frame: frame.hopping_count_window(4, 3, "w").agg(all=Collect()).final()) != first
