"""Sessions in an application: their bounds, their columns, refused declarations, and the content of their store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Collect, Count, Earliest, First, Last, Latest, Max, Mean, Min, Reduce, Sum
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from tests.window_apps import T, build, send


def closing(frame: StreamingDataFrame, **times: Any) -> StreamingDataFrame:
    return frame.session_window(10, **{"name": "w", **times}).count().final(closing_strategy="partition")


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def results(cluster: InMemoryCluster) -> list[tuple[int, int, Any]]:
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    return [(each["start"] - T, each["end"] - T, each["value"]) for each in made]


def records(cluster: InMemoryCluster, app: Application, key: bytes = b"k") -> list[str]:
    return sorted(name.partition("/")[0] for at, name in cluster.state(app, "w") if at == key)


def test_messages_that_are_a_gap_apart_are_one_session_and_no_further(cluster: InMemoryCluster) -> None:
    for at in (0, 10, 21, 100):
        send(cluster, at)
    cluster.run(build(closing))
    assert results(cluster) == [(0, 11, 2), (21, 22, 1)]
    assert [record.timestamp_ms for _, record in cluster.read("out")] == [T, T + 21]


def test_a_session_closes_a_gap_and_the_grace_after_its_last_message_and_not_before(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: closing(frame, grace_ms=5))
    for at, sent in ((0, 0), (3, 0), (18, 0), (19, 1)):
        send(cluster, at, key=b"k" if at < 10 else b"other")
        cluster.run(app)
        assert len(results(cluster)) == sent
    assert results(cluster) == [(0, 4, 2)]


def test_current_sends_the_session_as_it_is_with_each_message(cluster: InMemoryCluster) -> None:
    for at in (20, 12, 40, 30, 31):
        send(cluster, at)
    cluster.run(build(lambda frame: frame.session_window(timedelta(milliseconds=10), 50).count().current()))
    assert results(cluster) == [(20, 21, 1), (12, 21, 2), (40, 41, 1), (12, 41, 4), (12, 41, 5)]


def test_each_column_merges_by_its_own_rule(cluster: InMemoryCluster) -> None:
    columns: dict[str, Any] = {
        **{"n": Count(), "total": Sum("v"), "mean": Mean("v"), "least": Min("v"), "most": Max("v")},
        **{"first": First("v"), "last": Last("v"), "earliest": Earliest("v"), "latest": Latest("v")},
        "all": Collect("v"),
        "text": Reduce(
            lambda held, value: f"{held}{value['v']}", lambda value: str(value["v"]), lambda a, b: f"{a}|{b}"
        ),
    }
    app = build(lambda frame: frame.session_window(10, 50, "w").agg(**columns).final("partition"))
    for at, number in ((20, 4), (22, 9), (18, 8), (5, 2), (0, 3), (12, 6)):
        send(cluster, at, {"v": number})
    send(cluster, 1_000, {"v": 0})
    cluster.run(app)
    [(_, made)] = cluster.read("out")
    assert json.loads(made.value or b"") == {
        **{"start": T, "end": T + 23, "n": 6, "total": 32, "mean": 32 / 6, "least": 2, "most": 9},
        **{"first": 2, "last": 8, "earliest": 3, "latest": 9, "all": [2, 3, 6, 4, 9, 8], "text": "236|498"},
    }


def test_a_merge_leaves_nothing_of_what_it_swallowed(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: closing(frame, grace_ms=50))
    for at in (0, 20):
        send(cluster, at)
    cluster.run(app)
    assert records(cluster, app) == ["s", "s", "time"]
    send(cluster, 10)
    cluster.run(app)
    assert records(cluster, app) == ["s", "time"]
    assert records(cluster, app, OWN_KEY) == ["clock", "due"]
    send(cluster, 500, key=b"other")
    cluster.run(app)
    assert (results(cluster), records(cluster, app)) == ([(0, 21, 3)], ["w"])


def test_a_closed_session_takes_no_message_and_leaves_after_its_retention(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: closing(frame, retention=20))
    for at, key in ((0, b"k"), (11, b"other"), (5, b"k")):  # the last message is within the gap of the closed session
        send(cluster, at, key=key)
        cluster.run(app)
    assert (results(cluster), records(cluster, app)) == ([(0, 1, 1)], ["s", "time", "w"])
    send(cluster, 31, key=b"other")
    cluster.run(app)
    assert (results(cluster)[1:], records(cluster, app)) == ([(5, 6, 1), (11, 12, 1)], ["w"])


def test_a_late_message_that_reaches_an_open_session_counts(cluster: InMemoryCluster) -> None:
    told: list[Any] = []
    app = build(lambda frame: closing(frame, on_late=lambda *given: told.append(given)))
    for at in (0, 8, 16, 24, 2, -20):
        send(cluster, at)
    send(cluster, 500)
    cluster.run(app)
    assert results(cluster) == [(0, 25, 5)]
    assert told == [(1, b"k", T - 20, 33, T - 20, T - 19, "w", "in", 0, 5)]


@pytest.mark.parametrize(
    ("place", "match"),
    [
        (lambda frame: frame.session_window(0), "`inactivity_gap_ms` is 0, expected whole milliseconds from 1"),
        (lambda frame: frame.session_window(-5), "`inactivity_gap_ms` is -5"),
        (lambda frame: frame.session_window(1.5), "`inactivity_gap_ms` is 1.5"),
        (lambda frame: frame.session_window(10, -1), "`grace_ms` is -1"),
        (lambda frame: frame.session_window(10, 60, retention=50), "longer than the retention of 50 ms"),
        (lambda frame: frame.session_window(60, retention=50), "`inactivity_gap_ms` is 60, longer than the retention"),
        (lambda frame: frame.session_window(10, on_late="log"), "`on_late` is 'log', expected"),
        (lambda frame: frame.session_window(10).count().final("task"), "`closing_strategy` is 'task'"),
        (lambda frame: frame.session_window(10).reduce(max, int), "which can't merge"),
        (lambda frame: frame.session_window(10).reduce(max, int, 3), "Reduce got the merger 3"),
        (lambda frame: frame.session_window(10).count().final().session_window(10).count().final(), "behind another"),
    ],
)
def test_a_declaration_that_can_not_run_is_refused(place: Callable[[StreamingDataFrame], Any], match: str) -> None:
    with pytest.raises(HoldfastError, match=match) as raised:
        build(place)
    assert raised.value.action


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ((b"9", None, T + 1), b"NullKey"),
        ((b'"three"', b"k", T + 1), b"AggregationFailed"),
        ((b"9", b"k", T - 1_000), b"LateMessage"),
    ],
)
def test_a_message_that_no_session_can_use_is_put_aside(
    cluster: InMemoryCluster, message: tuple[bytes, bytes | None, int], error: bytes
) -> None:
    app = build(
        lambda frame: frame.session_window(10, name="w", on_late="dead-letter").sum().final("partition"),
        dead_letter_topic="dead",
    )
    send(cluster, 0, 4)
    cluster.produce("in", message[0], message[1], timestamp_ms=message[2])
    send(cluster, 11, 5)
    cluster.run(app)
    assert [dict(record.headers or [])["holdfast.error.type"] for _, record in cluster.read("dead")] == [error]
    assert results(cluster) == [(0, 1, 4)]


def test_two_sessions_that_can_not_merge_fail_the_message_between_them_and_stay(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.session_window(10, 50, "w").max().final("partition"), dead_letter_topic="dead")
    for at, value in ((0, "text"), (20, 7), (10, "more")):
        send(cluster, at, value)
    send(cluster, 500, 1)
    cluster.run(app)
    assert results(cluster) == [(0, 1, "text"), (20, 21, 7)]
    assert len(cluster.read("dead")) == 1


def test_the_worker_clock_set_back_an_hour_closes_nothing_twice_and_opens_nothing_again(
    cluster: InMemoryCluster,
) -> None:
    app = build(closing)
    now = int(cluster.clock.time() * 1000) - T
    for at in (now - 100, now - 50):
        send(cluster, at)
    cluster.run(app)
    cluster.clock.skew_s -= 3_600
    # the message at now - 100 is late, the message at now + 3 is ahead of the clock
    for at in (now - 100, now - 40, now + 3):
        send(cluster, at)
    cluster.run(app)
    assert results(cluster) == [(now - 100, now - 99, 1)]
    cluster.clock.skew_s += 3_600
    cluster.advance(1)
    cluster.run(app)
    assert results(cluster)[1:] == [(now - 50, now - 39, 2)]


@pytest.mark.parametrize(("was", "now", "sessions"), [(10_000, 20_000, [2]), (20_000, 10_000, [1, 1])])
def test_a_new_gap_holds_for_sessions_that_are_open(
    cluster: InMemoryCluster, was: int, now: int, sessions: list[int]
) -> None:
    def place(gap: int) -> Application:
        return build(lambda frame: frame.session_window(gap, name="s").count().final("partition"))

    send(cluster, 0)
    cluster.run(place(was))
    for at in (15_000, 60_000):
        send(cluster, at)
    cluster.run(place(now))
    assert [json.loads(record.value or b"")["value"] for _, record in cluster.read("out")] == sessions


def test_a_new_gap_or_grace_is_another_definition() -> None:
    def described(gap: int, grace: int) -> tuple[str, ...]:
        app = build(lambda frame: frame.session_window(gap, grace, "w").count().final("partition"))
        [store] = app.topology().stores
        return store.columns

    first = described(10, 0)
    assert first[0] == "window = session gap 10 ms, grace 0 ms, retention 86400000 ms, closed by partition, final"
    assert len({first, described(10, 5), described(20, 0)}) == 3
