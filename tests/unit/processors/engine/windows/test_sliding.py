"""Sliding windows in an application: their bounds, their columns, what they refuse, and what their store keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import InMemoryCluster
from holdfast.dataframe.windows import Collect, Earliest, First, Last, Latest, Max, Mean, Min, Reduce
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from tests.window_apps import T, build, send


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def results(cluster: InMemoryCluster) -> list[tuple[int, int, Any]]:
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    return [(each["start"] - T, each["end"] - T, each["value"]) for each in made]


def test_a_message_that_is_older_changes_the_windows_behind_it_and_has_its_own(cluster: InMemoryCluster) -> None:
    for at, value in ((0, 1), (10, 2), (12, 4), (4, 8)):
        send(cluster, at, value)
    cluster.run(build(lambda frame: frame.sliding_window(10, 20).sum().current()))
    assert results(cluster)[:3] == [(-10, 0, 1), (0, 10, 3), (2, 12, 6)]
    assert results(cluster)[3:] == [(-6, 4, 9), (0, 10, 11), (2, 12, 14)]
    assert [record.timestamp_ms - T for _, record in cluster.read("out")] == [-10, 0, 2, -6, 0, 2]


def test_a_window_is_sent_once_when_its_key_has_a_later_message(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.sliding_window(10, 5, "w").sum().final())
    for at, sent in ((0, 0), (4, 0), (5, 0), (6, 1), (7, 1), (300, 5)):
        send(cluster, at)
        cluster.run(app)
        assert len(results(cluster)) == sent
    assert results(cluster) == [(-10, 0, 1), (-6, 4, 2), (-5, 5, 3), (-4, 6, 4), (-3, 7, 5)]
    names = sorted(name.partition("/")[0] for key, name in cluster.state(app, "w") if key == b"k")
    assert names == ["m", "time"]


def test_columns_go_by_event_time(cluster: InMemoryCluster) -> None:
    columns: dict[str, Any] = {
        **{"mean": Mean("v"), "least": Min("v"), "most": Max("v"), "first": First("v"), "last": Last("v")},
        **{"earliest": Earliest("v"), "latest": Latest("v"), "all": Collect("v")},
        "text": Reduce(lambda held, made: f"{held}{made['v']}", lambda made: str(made["v"])),
    }
    for at, value in ((5, 3), (9, 1), (9, 6), (2, 8), (100, 0)):
        send(cluster, at, {"v": value})
    cluster.run(build(lambda frame: frame.sliding_window(10, 20).agg(**columns).final()))
    [*_, (_, made)] = cluster.read("out")
    assert json.loads(made.value or b"") == {
        **{"start": T - 1, "end": T + 9, "mean": 4.5, "least": 1, "most": 8, "first": 8, "last": 6},
        **{"earliest": 8, "latest": 6, "all": [8, 3, 1, 6], "text": "8316"},
    }


def test_a_late_message_counts_in_the_windows_that_are_open(cluster: InMemoryCluster) -> None:
    told: list[Any] = []
    app = build(lambda frame: frame.sliding_window(10, 0, "w", told_of(told)).sum().current(), dead_letter_topic="dead")
    for at, value in ((0, 1), (20, 2), (15, 4), (5, 8)):
        send(cluster, at, value)
    cluster.run(app)
    assert results(cluster) == [(-10, 0, 1), (10, 20, 2), (10, 20, 6)]
    assert [given[:6] for given in told] == [
        (4, b"k", T + 15, 4, T + 5, T + 15),
        (8, b"k", T + 5, 14, T - 5, T + 5),
    ]


def told_of(told: list[Any]) -> Callable[..., bool]:
    def late(*given: Any) -> bool:
        told.append(given)
        return False

    return late


def test_only_a_message_that_counts_nowhere_is_put_aside(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.sliding_window(10, 0, "w", "dead-letter").sum().current(), dead_letter_topic="dead")
    for at in (20, 15, 9):
        send(cluster, at, at)
    cluster.run(app)
    assert [
        (record.value, dict(record.headers or [])["holdfast.error.type"]) for _, record in cluster.read("dead")
    ] == [(b"9", b"LateMessage")]


def test_another_length_uses_the_messages_that_are_there(cluster: InMemoryCluster) -> None:
    for at in (0, 40, 80):
        send(cluster, at)
    cluster.run(build(lambda frame: frame.sliding_window(100, 30, "w").count().final()))
    send(cluster, 120)
    send(cluster, 500)
    cluster.run(build(lambda frame: frame.sliding_window(50, 0, "w").count().final()))
    assert results(cluster) == [(-100, 0, 1), (-60, 40, 2), (30, 80, 2), (70, 120, 2)]


def test_a_column_that_is_new_has_no_value_of_earlier_messages(cluster: InMemoryCluster) -> None:
    send(cluster, 1, 5)
    cluster.run(build(lambda frame: frame.sliding_window(10, 50, "w").count().current()))
    send(cluster, 2, 6)
    cluster.run(build(lambda frame: frame.sliding_window(10, 50, "w").agg(most=Max(), all=Collect()).current()))
    [*_, (_, made)] = cluster.read("out")
    assert json.loads(made.value or b"") == {"start": T - 8, "end": T + 2, "most": 6, "all": [6]}


@pytest.mark.parametrize("final", [False, True])
def test_a_message_that_a_window_can_not_aggregate_changes_none(cluster: InMemoryCluster, final: bool) -> None:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        window = frame.sliding_window(10, 30, "w").max()
        return window.final() if final else window.current()

    for at, value, key in ((0, 3, b"k"), (20, "text", b"k"), (15, 5, b"k"), (16, 2, None), (100, 1, b"k")):
        send(cluster, at, value, key)
    cluster.run(build(place, dead_letter_topic="dead"))
    dead = [dict(record.headers or [])["holdfast.error.type"] for _, record in cluster.read("dead")]
    assert dead == [b"AggregationFailed", b"NullKey"]
    assert results(cluster)[:2] == [(-10, 0, 3), (10, 20, "text")]


@pytest.mark.parametrize(
    ("place", "match"),
    [
        (lambda frame: frame.sliding_window(0), "`duration_ms` is 0, expected whole milliseconds from 1"),
        (lambda frame: frame.sliding_window(-5), "`duration_ms` is -5"),
        (lambda frame: frame.sliding_window(10, -1), "`grace_ms` is -1"),
        (lambda frame: frame.sliding_window(10, on_late="log"), "`on_late` is 'log', expected"),
        (lambda frame: frame.sliding_window(10).count().final("partition"), "close with messages of their key only"),
        (lambda frame: frame.sliding_window(10).count().current("partition"), "close with messages of their key only"),
        (lambda frame: frame.sliding_window(10).count().final(close_when_idle=5), "`close_when_idle` is 5"),
    ],
)
def test_a_declaration_that_can_not_run_is_refused(place: Callable[[StreamingDataFrame], Any], match: str) -> None:
    with pytest.raises(HoldfastError, match=match) as raised:
        build(place)
    assert raised.value.action
