"""Windows in an application: refused declarations, the treatment of late messages, and the content of their store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdfast import Application, ApplicationInvalid, InMemoryCluster, ProcessingFailed
from holdfast.dataframe.windows import Collect, Count, Earliest, First, Last, Latest, Max, Mean, Min, Reduce, Sum
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.state.time.window_keys import OWN_KEY, window_of
from holdfast.processors.engine.windows.spec import WindowUnplaced
from tests.window_apps import T, build, send

DAY = 86_400_000


def closing(frame: StreamingDataFrame, **times: Any) -> StreamingDataFrame:
    return frame.tumbling_window(10_000, **{"name": "w", **times}).count().final(closing_strategy="partition")


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def values(cluster: InMemoryCluster) -> list[Any]:
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def windows(cluster: InMemoryCluster, app: Application) -> dict[tuple[bytes, int], Any]:
    """The windows in the store, by key and start."""
    state = cluster.state(app, "w")
    return {(key, found[0] - T): made for (key, name), made in state.items() if (found := window_of(name))}


def test_each_column_by_its_own_rule(cluster: InMemoryCluster) -> None:
    columns: dict[str, Any] = {
        "n": Count(),
        "total": Sum("v"),
        "mean": Mean("v"),
        "least": Min("v"),
        "most": Max("v"),
        "first": First("v"),
        "last": Last("v"),
        "earliest": Earliest("v"),
        "latest": Latest("v"),
        "all": Collect("v"),
        "text": Reduce(lambda held, value: f"{held},{value['v']}", lambda value: str(value["v"])),
    }
    app = build(lambda frame: frame.tumbling_window(timedelta(seconds=10), 0, "w").agg(**columns).final("partition"))
    for at, number in ((5, 3), (2, 8), (9, 1), (2, 7), (9, 5)):
        send(cluster, at, {"v": number})
    send(cluster, 10_000, {"v": 0})
    cluster.run(app)
    assert values(cluster) == [
        {"start": T, "end": T + 10_000, "n": 5, "total": 24, "mean": 4.8, "least": 1, "most": 8}
        | {"first": 3, "last": 5, "earliest": 8, "latest": 5, "all": [3, 8, 1, 7, 5], "text": "3,8,1,7,5"}
    ]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        *(("count", 3), ("sum", 9), ("mean", 3.0), ("min", 1), ("max", 5)),
        *(("first", 3), ("last", 5), ("earliest", 1), ("latest", 5), ("collect", [3, 1, 5])),
    ],
)
def test_one_column_is_called_value(cluster: InMemoryCluster, method: str, expected: Any) -> None:
    app = build(lambda frame: getattr(frame.tumbling_window(10_000, name="w"), method)().final("partition"))
    for at, number in ((5, 3), (2, 1), (9, 5), (10_000, 7)):
        send(cluster, at, number)
    cluster.run(app)
    assert [made["value"] for made in values(cluster)] == [expected]


def test_a_column_that_is_new_begins_where_it_is_absent(cluster: InMemoryCluster) -> None:
    former = build(lambda frame: frame.tumbling_window(10_000, name="w").agg(n=Count()).final("partition"))
    send(cluster, 1, 5)
    cluster.run(former)
    newer = build(lambda frame: frame.tumbling_window(10_000, name="w").agg(n=Count(), most=Max()).final("partition"))
    send(cluster, 10_000, 6)
    cluster.run(newer)
    assert values(cluster) == [{"start": T, "end": T + 10_000, "n": 1, "most": None}]


def test_windows_that_are_open_end_as_they_were_declared(cluster: InMemoryCluster) -> None:
    send(cluster, 1)
    cluster.run(build(lambda frame: frame.tumbling_window(10_000, name="w").count().final("partition")))
    send(cluster, 2)
    send(cluster, 10_000)
    cluster.run(build(lambda frame: frame.tumbling_window(5_000, name="w").count().final("partition")))
    assert [(made["start"] - T, made["end"] - T) for made in values(cluster)] == [(0, 5_000), (0, 10_000)]


@pytest.mark.parametrize(("was", "now", "late_counts"), [(0, 10_000, True), (10_000, 0, False)])
def test_a_new_grace_holds_for_windows_that_are_open(
    cluster: InMemoryCluster, was: int, now: int, late_counts: bool
) -> None:
    def place(grace: int) -> Application:
        return build(lambda frame: frame.tumbling_window(10_000, grace, "w").count().final("partition"))

    send(cluster, 1)
    cluster.run(place(was))
    for at in (12_000, 2, 25_000):  # without a grace, the second message is late
        send(cluster, at)
    cluster.run(place(now))
    assert [made["value"] for made in values(cluster) if made["start"] == T] == [1 + late_counts]


def test_another_strategy_is_refused_where_windows_are_open(cluster: InMemoryCluster) -> None:
    send(cluster, 1)
    cluster.run(build(closing))
    with pytest.raises(HoldfastError, match="closed by partition, and the step has `closing_strategy='key'`"):
        cluster.run(build(lambda frame: frame.tumbling_window(10_000, name="w").count().final()))


# -- late messages -----------------------------------------------------------------------------------------------------


def test_a_function_is_told_of_each_window_that_is_missed(cluster: InMemoryCluster) -> None:
    told: list[Any] = []

    def late(*given: Any) -> bool:
        told.append(given)
        return False

    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        return frame.hopping_window(10_000, 5_000, 1_000, "w", late).count().final("partition")

    for at in (11_500, 3, 6_000):
        send(cluster, at, at)
    cluster.run(build(place))
    # The message at 3 belongs to the windows from -5,000 and 0. The message at 6,000 belongs to the windows from 0 and
    # 5,000; the last one is still open.
    assert told == [
        (3, b"k", T + 3, 5_500, T - 5_000, T + 5_000, "w", "in", 0, 1),
        (3, b"k", T + 3, 500, T, T + 10_000, "w", "in", 0, 1),
        (6_000, b"k", T + 6_000, 500, T, T + 10_000, "w", "in", 0, 2),
    ]


def test_late_messages_are_put_aside_by_choice(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: closing(frame, on_late="dead-letter"), dead_letter_topic="dead")
    for at in (25_000, 3, 26_000):
        send(cluster, at, at)
    cluster.run(app)
    [(_, dead)] = cluster.read("dead")
    headers = dict(dead.headers or [])
    assert (dead.value, headers["holdfast.error.type"]) == (b"3", b"LateMessage")
    assert (headers["holdfast.error"] or b"").decode() == (
        "The message's event time is 2023-07-22T04:26:40.003+00:00. Its window ended at 2023-07-22T04:26:50.000+00:00, "
        "and closed when stream time reached 2023-07-22T04:26:50.000+00:00. Stream time is "
        "2023-07-22T04:27:05.000+00:00: the message is 15.000 s too late."
    )


def test_what_is_late_by_nothing_says_when_its_window_closed(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: closing(frame, on_late="dead-letter", grace_ms=5_000), dead_letter_topic="dead")
    for at in (15_000, 3):
        send(cluster, at, at)
    cluster.run(app)
    [(_, dead)] = cluster.read("dead")
    assert (
        "closed when stream time reached 2023-07-22T04:26:55.000+00:00 (the grace of 5,000 ms later). Stream time is "
        "2023-07-22T04:26:55.000+00:00: the message is 0.000 s too late."
    ) in (dict(dead.headers or [])["holdfast.error"] or b"").decode()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "match"),
    [
        (lambda frame: frame.tumbling_window(0), "`duration_ms` is 0, expected whole milliseconds from 1"),
        (lambda frame: frame.tumbling_window(-5), "`duration_ms` is -5"),
        (lambda frame: frame.tumbling_window(1.5), "`duration_ms` is 1.5"),
        (lambda frame: frame.tumbling_window(timedelta(microseconds=1500)), "`duration_ms` is datetime.timedelta"),
        (lambda frame: frame.tumbling_window(10**15), "`duration_ms` is 1000000000000000"),
        (lambda frame: frame.tumbling_window(10, grace_ms=-1), "`grace_ms` is -1"),
        (lambda frame: frame.hopping_window(10, 0), "`step_ms` is 0"),
        (lambda frame: frame.hopping_window(10, 20), "messages between two windows would be lost"),
        (lambda frame: frame.hopping_window(DAY, 1), "each message belongs to 86400000 windows; at most 1000"),
        (lambda frame: frame.tumbling_window(10, grace_ms=60, retention=50), "longer than the retention of 50 ms"),
        (lambda frame: frame.tumbling_window(10, on_late="log"), "`on_late` is 'log', expected"),
        (
            lambda frame: frame.tumbling_window(10).count().final(closing_strategy="task"),
            "`closing_strategy` is 'task'",
        ),
        (lambda frame: frame.tumbling_window(10).agg(), "has no columns"),
        (lambda frame: frame.tumbling_window(10).agg(start=Count()), "the name 'start'"),
        (lambda frame: frame.tumbling_window(10).agg(n=len), "expected one of Count"),
        (lambda frame: frame.tumbling_window(10).agg(n=3), "or an object of a subclass of `Aggregator` or `Collector`"),
        (lambda frame: frame.tumbling_window(10).agg(n=Count), "is the class Count.*Write `Count\\(...\\)`: an object"),
        (lambda frame: frame.tumbling_window(10).agg(), "no columns.*`agg\\(total=Sum"),
        (lambda frame: frame.tumbling_window(10).reduce(None, len), "Reduce got the reducer None"),
        (lambda frame: frame.tumbling_window(10, name="x" * 300).count().final(), "can't be used"),
        (lambda frame: frame.tumbling_window(10).count().final().tumbling_window(10).count().final(), "behind another"),
    ],
)
def test_a_declaration_that_can_not_run_is_refused(place: Callable[[StreamingDataFrame], Any], match: str) -> None:
    with pytest.raises(HoldfastError, match=match) as raised:
        build(place)
    assert raised.value.action


def test_two_windows_of_one_stream_need_names() -> None:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    frame = app.dataframe(app.topic("in"))
    frame.tumbling_window(10).count().final()
    frame.tumbling_window(20).count().final()
    with pytest.raises(HoldfastError, match="'in-tumbling' of a window is used by 2 steps"):
        app.topology()


def test_exactly_once_without_changelogs_is_refused() -> None:
    with pytest.raises(ApplicationInvalid, match="'w' has windows, but use_changelog_topics is off"):
        build(closing, use_changelog_topics=False).topology()
    assert build(closing, use_changelog_topics=False, processing_guarantee="at-least-once").topology().stores


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"at": T, "key": None}, b"NullKey"),
        ({"at": -7}, b"EventTimeInvalid"),
        ({"at": "yesterday"}, b"EventTimeInvalid"),
        ({"at": 1_700_000_000_000 + 7_200_000}, b"EventTimeAhead"),
        ({"at": T, "v": "three"}, b"AggregationFailed"),
        ({"at": T}, b"AggregationFailed"),
    ],
)
def test_a_message_that_no_window_can_use_is_put_aside(
    cluster: InMemoryCluster, message: dict[str, Any], error: bytes
) -> None:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    topic = app.topic("in", timestamp_extractor=lambda value, *_: value["at"])
    window = app.dataframe(topic).tumbling_window(10_000, name="w").sum("v")
    window.final("partition").to_topic(app.topic("out"))
    for value in ({"at": T, "v": 1}, message, {"at": T + 10_000, "v": 5}):
        cluster.produce("in", json.dumps(value).encode(), value.get("key", b"k"))
    cluster.run(app)
    assert {dict(record.headers or [])["holdfast.error.type"] for _, record in cluster.read("dead")} == {error}
    assert [made["value"] for made in values(cluster)] == [1]


def test_a_message_of_1970_is_late_and_no_error(cluster: InMemoryCluster) -> None:
    send(cluster, 0)
    cluster.produce("in", b"1", b"k", timestamp_ms=1)
    send(cluster, 10_000)
    cluster.run(build(closing))
    assert [made["value"] for made in values(cluster)] == [1]


def test_a_result_that_can_not_be_processed_goes_by_the_failure_policy(cluster: InMemoryCluster) -> None:
    def spoilt(value: dict[str, Any]) -> dict[str, Any]:
        if value["value"] == 2:
            raise ValueError("two")
        return value

    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        return closing(frame).apply(spoilt)

    for at, key in ((0, b"a"), (1, b"b"), (2, b"b"), (3, b"c"), (10_000, b"a")):
        send(cluster, at, key=key)
    with pytest.raises(ProcessingFailed, match="raised ValueError: two"):
        cluster.run(build(place))
    # the window before the failed one was sent, and is not sent again
    assert [made["value"] for made in values(cluster)] == [1]
    cluster.run(build(place, dead_letter_topic="dead"))
    assert [made["value"] for made in values(cluster)] == [1, 1]
    [(_, dead)] = cluster.read("dead")
    assert (dead.key, json.loads(dead.value or b"")["value"]) == (b"b", 2)


# -- event times -------------------------------------------------------------------------------------------------------


def test_the_time_that_a_step_sets_decides_from_there_on(cluster: InMemoryCluster) -> None:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        return closing(frame.set_timestamp(lambda value, key, timestamp, headers: T + value))

    for value in (1, 2, 10_000, 3):
        cluster.produce("in", json.dumps(value).encode(), b"k")  # the record's own timestamp is the present time
    cluster.run(build(place))
    assert [(made["start"], made["value"]) for made in values(cluster)] == [(T, 2)]


def test_outputs_and_state_have_the_extracted_time(cluster: InMemoryCluster) -> None:
    seen: list[Any] = []

    def extract(value: Any, headers: Any, timestamp: int, kind: int) -> int:
        seen.append((headers, timestamp, int(kind)))
        return T + int(value)

    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in", timestamp_extractor=extract)).to_topic(app.topic("out"))
    cluster.produce("in", b"5", b"k", timestamp_ms=T + 77, headers=[("h", b"1")])
    cluster.run(app)
    assert seen == [([("h", b"1")], T + 77, 1)]
    assert [record.timestamp_ms for _, record in cluster.read("out")] == [T + 5]


def test_an_extractor_that_returns_seconds_is_named_once(cluster: InMemoryCluster) -> None:
    """The error is logged once. The messages are still processed, because real data of early 1970 looks the same."""

    def in_seconds(value: Any, headers: Any, timestamp: int, kind: int) -> int:
        return T // 1000 + int(value)

    def in_milliseconds(value: Any, headers: Any, timestamp: int, kind: int) -> int:
        return int(value)

    for number in (1, 2, T):
        cluster.produce("in", str(number).encode(), b"k")
    for name, extract in (("seconds", in_seconds), ("milliseconds", in_milliseconds)):
        app = Application("in-memory", consumer_group=name, auto_offset_reset="earliest", loglevel=None)
        closing(app.dataframe(app.topic("in", timestamp_extractor=extract))).to_topic(app.topic(f"out-{name}"))
        with structlog.testing.capture_logs() as told:
            cluster.run(app)
        warnings = [each for each in told if "seconds, perhaps" in each["event"]]
        if name == "milliseconds":
            assert not warnings, "1 and 2 are of 1970 as milliseconds and as seconds"
            continue
        [warning] = warnings
        assert warning["log_level"] == "warning"
        assert warning["function"].endswith("in_seconds")
        assert warning["means"].startswith("1970-01-20T")
        assert warning["as_seconds"].startswith("2023-07-22T")


# -- the life of the store ---------------------------------------------------------------------------------------------


def test_what_ends_at_once_closes_in_many_commits(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_time, "CLOSED_AT_ONCE", 7)
    monkeypatch.setattr(task_time, "REMOVED_AT_ONCE", 5)
    for number in range(40):
        send(cluster, 0, key=b"%d" % number)
    send(cluster, 10_000)
    app = build(lambda frame: closing(frame, retention=30_000))
    cluster.run(app)
    assert len(values(cluster)) == len({record.key for _, record in cluster.read("out")}) == 40
    assert len(windows(cluster, app)) == 41
    send(cluster, 45_000)
    cluster.run(app)
    assert set(windows(cluster, app)) == {(b"k", 10_000), (b"k", 40_000)}
    indexed = [name for key, name in cluster.state(app, "w") if key == OWN_KEY and name != "clock"]
    assert len(indexed) == 2


def test_a_run_of_so_many_messages_closes_all_windows_that_they_end(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_time, "CLOSED_AT_ONCE", 7)
    for number in range(40):
        send(cluster, 0, key=b"%d" % number)
    send(cluster, 10_000)
    send(cluster, 20_000)
    cluster.run(build(closing), count=41)
    assert len(values(cluster)) == 40, "nothing is left to the next run"
    assert cluster.committed_offsets("g") == {("in", 0): 41}


def test_a_run_of_so_many_messages_that_is_stopped_leaves_windows_to_the_next_one(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_time, "CLOSED_AT_ONCE", 7)
    for number in range(40):
        send(cluster, 0, key=b"%d" % number)
    send(cluster, 10_000)
    app = build(lambda frame: closing(frame).update(lambda _: app.stop()))
    cluster.run(app, count=41)
    assert len(values(cluster)) == 7
    cluster.run(build(closing))
    assert len(values(cluster)) == 40


def test_a_closed_window_stays_until_its_retention_is_over(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: closing(frame, grace_ms=1_000, retention=20_000))
    held = []
    for at in (0, 11_000, 30_999, 31_000):
        send(cluster, at)
        cluster.run(app)
        held.append((b"k", 0) in windows(cluster, app))
    assert held == [True, True, True, False]


def test_a_restart_on_a_new_disk_decides_as_the_worker_before_it(cluster: InMemoryCluster) -> None:
    app = build(closing)
    for at in (0, 15_000):
        send(cluster, at)
    cluster.run(app)
    for at in (5_000, 16_000, 20_000):  # the message at 5,000 is late
        send(cluster, at)
    cluster.run(app)
    assert [made["value"] for made in values(cluster)] == [1, 2]


def test_after_a_clean_slate_from_the_beginning_the_same_windows_come_again(cluster: InMemoryCluster) -> None:
    app = build(closing)
    for at in (0, 3, 15_000):
        send(cluster, at)
    cluster.run(app)
    before = values(cluster)
    cluster.clear_state(app, rewind="earliest")
    assert windows(cluster, app) == {}
    cluster.run(app)
    assert values(cluster) == [*before, *before]


def test_at_least_once_closes_windows_as_well(cluster: InMemoryCluster, tmp_path: Path) -> None:
    app = build(closing, processing_guarantee="at-least-once", state_dir=tmp_path, use_changelog_topics=False)
    for at in (0, 3, 15_000):
        send(cluster, at)
    cluster.run(app)
    send(cluster, 25_000)
    cluster.run(app)
    assert [made["value"] for made in values(cluster)] == [2, 1]


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (lambda frame: frame.tumbling_window(60_000), "before its columns, as `.count\\(\\)`, and `.final"),
        (lambda frame: frame.tumbling_window(60_000).count(), "before `.final\\(\\)` or `.current\\(\\)`"),
        (lambda frame: frame.tumbling_count_window(3).count(), "before `.final\\(\\)` or `.current\\(\\)`"),
    ],
)
def test_a_step_on_a_window_that_is_no_stream_yet_says_what_is_missing(window: Any, says: str) -> None:
    app = Application("in-memory", loglevel=None)
    made = window(app.dataframe(app.topic("in")))
    with pytest.raises(WindowUnplaced, match=says):
        made.to_topic(app.topic("out"))
    assert not hasattr(made, "_repr_html_")
