"""Joins of streams: merging, self-joins, streams of two topics, and refused declarations."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, HoldfastError, InMemoryCluster
from holdfast.dataframe.windows import Count
from holdfast.processors.engine.joins.merge import JoinInvalid
from holdfast.processors.engine.state.time import dated_values
from holdfast.processors.engine.steps.durations import DurationInvalid


def made(**options: Any) -> tuple[Application, Any, Any]:
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)
    return app, app.dataframe(app.topic("l")), app.dataframe(app.topic("r"))


def world(*topics: str, partitions: int = 1) -> InMemoryCluster:
    cluster = InMemoryCluster()
    for topic in topics or ("l", "r"):
        cluster.create_topic(topic, partitions=partitions)
    return cluster


def feed(cluster: InMemoryCluster, topic: str, *messages: tuple[int, Any], key: bytes | None = b"k") -> None:
    for time_ms, value in messages:
        cluster.produce(topic, json.dumps(value).encode(), key, timestamp_ms=time_ms)


def sent(cluster: InMemoryCluster, topic: str = "out") -> list[tuple[int, Any]]:
    return [(record.timestamp_ms, json.loads(record.value or b"null")) for _, record in cluster.read(topic)]


@pytest.mark.parametrize(
    ("on_merge", "expected"),
    [
        ("keep-left", {"a": 1, "b": 1, "c": 2}),
        ("keep-right", {"a": 1, "b": 2, "c": 2}),
        (lambda left, right: [left, right], [{"a": 1, "b": 1}, {"b": 2, "c": 2}]),
    ],
)
def test_a_merge_says_whose_field_stays(on_merge: Any, expected: Any) -> None:
    cluster = world()
    feed(cluster, "r", (1, {"b": 2, "c": 2}))
    feed(cluster, "l", (2, {"a": 1, "b": 1}))
    app, left, right = made()
    left.join_asof(right, on_merge=on_merge).to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(2, expected)]


@pytest.mark.parametrize(
    ("left", "right", "says"),
    [
        ({"a": 1, "b": 1}, {"b": 2}, "Both values of a join have the field b"),
        (5, {"b": 2}, "The left value of a join is of type int"),
        ({"a": 1}, [1], "The right value of a join is of type list"),
    ],
)
def test_what_can_not_be_merged_is_named_and_put_aside(left: Any, right: Any, says: str) -> None:
    cluster = world()
    feed(cluster, "r", (1, right))
    feed(cluster, "l", (2, left), (3, {"z": 1}))
    app, stream, other = made(dead_letter_topic="dead")
    stream.join_table(other.to_table("t"), on_merge="raise").to_topic(app.topic("out"))
    cluster.run(app)
    dead = [dict(record.headers or [])["holdfast.error"] or b"" for _, record in cluster.read("dead")]
    assert says.encode() in dead[0]
    assert len(sent(cluster)) == (0 if isinstance(right, list) else 1)


def test_a_merge_of_objects_takes_none_for_one_without_fields_and_a_match_of_none_is_kept() -> None:
    cluster = world()
    feed(cluster, "l", (1, {"a": 1}), (3, {"a": 3}), (6, None), (8, None))
    feed(cluster, "r", (2, None), (5, {"b": 5}), (7, None))
    app, left, right = made()
    left.join_asof(right).to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(3, {"a": 3}), (6, {"b": 5}), (8, {})]
    assert {key for (message_key, key) in cluster.state(app, "l-r-asof") if message_key == b"k"} == {"right"}


def test_a_stream_is_joined_with_itself() -> None:
    cluster = world("l", "r")
    feed(cluster, "l", (10, 1), (12, 2), (30, 3))
    app, left, _ = made()
    pairs = left.join_interval(left.apply(lambda value: value), on_merge=lambda a, b: [a, b], backward_ms=5)
    pairs.to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(10, [1, 1]), (12, [2, 1]), (12, [2, 2]), (30, [3, 3])]


def test_a_message_that_failed_is_not_kept_and_one_of_its_time_matches_once() -> None:
    def merged(left: int, right: str) -> list[Any]:
        if right == "bad":
            raise ValueError(right)
        return [left, right]

    cluster = world()
    feed(cluster, "l", (1, 1), (4, 4))
    feed(cluster, "r", (2, "bad"), (2, "good"))
    app, left, right = made(dead_letter_topic="dead")
    left.join_interval(right, "outer", merged, 10, backward_ms=5, forward_ms=5).to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(2, [1, "good"]), (4, [4, "good"])]


def test_a_late_message_finds_what_is_older_than_the_times_in_memory() -> None:
    cluster = world()

    def run() -> None:
        app, left, right = made()
        left.join_interval(right, on_merge=lambda a, b: [a, b], name="j").to_topic(app.topic("out"))
        cluster.run(app)

    feed(cluster, "r", (1_000, 1), (2_000, 2))
    run()
    # The first message that this worker joins has the time 500 s. So the worker loads the key's times from 499 s on
    # into memory (one second more than it needs). Later it drops the oldest times from memory.
    feed(cluster, "r", *((500_000 + each * 1_000, 0) for each in range(dated_values.TRIM_FROM + 9)), (502_000, 3))
    feed(cluster, "l", (600_000, 0), (2_000, 4), (502_000, 5), (1_000, 6))
    run()
    assert sent(cluster) == [(2_000, [4, 2]), (502_000, [5, 0]), (502_000, [5, 3]), (1_000, [6, 1])]


@pytest.mark.parametrize("join", ["asof", "inner", "left", "outer"])
def test_what_has_ended_leaves_the_store_with_all_that_belongs_to_it(join: str) -> None:
    cluster = world()
    feed(cluster, "r", *((10 * each, each) for each in range(1, 200)), (1_505, "late"))
    feed(cluster, "l", *((10 * each, each) for each in range(1, 200)))
    app, left, right = made(commit_every=7)
    if join == "asof":
        left.join_asof(right, on_merge=lambda a, b: [a, b], grace_ms=100, tolerance_ms=50, name="j")
    else:
        how: Any = join
        left.join_interval(right, how, lambda a, b: [a, b], 50, "j", 20, 30)
    cluster.run(app)
    kept = {name for _, name in cluster.state(app, "j")}
    assert 0 < len(kept) < 50
    feed(cluster, "l", (100_000, "moves the time"))
    cluster.run(app)
    left_over = {place for place in cluster.state(app, "j") if place[0] == b"k"}
    assert left_over == (set() if join == "asof" else {(b"k", "l/000000000100000")})
    # Each value that is left has exactly one index entry, for its expiry. This also holds if a timer sends a row at
    # that time.
    entries = [name for key, name in cluster.state(app, "j") if key != b"k" and name != "__holdfast/clock"]
    assert len(entries) == len(left_over)


def test_a_row_without_a_match_leaves_the_store_also_if_its_function_fails() -> None:
    def merged(left: str, right: Any) -> list[Any]:
        if left == "bad":
            raise ValueError(left)
        return [left, right]

    cluster = world()
    feed(cluster, "l", (1, "bad"), (2, "good"), (1_000, "moves the time"))
    app, left, right = made(dead_letter_topic="dead")
    left.join_interval(right, "left", merged, 10, "j").to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(2, ["good", None])]
    assert len(cluster.read("dead")) == 1
    assert {name for key, name in cluster.state(app, "j") if key == b"k"} == {"l/000000000001000"}


def test_a_window_behind_two_streams_counts_both_and_closes_once() -> None:
    cluster = world()
    feed(cluster, "l", (1, {}), (40, {}), (110, {}))
    feed(cluster, "r", (20, {}), (60, {}), (210, {}))
    app, left, right = made()
    counted = left.concat(right).tumbling_window(100, name="w").agg(n=Count()).final(closing_strategy="partition")
    counted.to_topic(app.topic("out"))
    cluster.run(app)
    results = [made for _, made in sent(cluster)]
    assert results == [{"start": 0, "end": 100, "n": 4}, {"start": 100, "end": 200, "n": 1}]


@pytest.mark.parametrize("first", ["l", "r"])
def test_a_row_of_an_interval_join_has_no_headers_whichever_message_came_last(first: str) -> None:
    cluster = world()
    app, left, right = made()
    joined = left.join_interval(right, "outer", lambda left, right: [left, right], backward_ms=10, forward_ms=10)
    joined.to_topic(app.topic("out"))
    for topic in sorted(["l", "r"], key=lambda each: each != first):
        cluster.produce(topic, b"1", b"k", timestamp_ms=5, headers=[("of", topic.encode())])
        cluster.run(app)
    found = [record for _, record in cluster.read("out")]
    assert [(json.loads(record.value or b""), record.headers) for record in found] == [([1, 1], None)]


def test_rows_of_other_joins_have_the_headers_of_the_left_message() -> None:
    cluster = world()
    app, left, right = made()
    left.join_asof(right, on_merge=lambda left, right: [left, right]).to_topic(app.topic("out"))
    for topic in ("r", "l"):
        cluster.produce(topic, b"1", b"k", timestamp_ms=5, headers=[("of", topic.encode())])
    cluster.run(app)
    assert [record.headers for _, record in cluster.read("out")] == [[("of", b"l")]]


def test_a_function_behind_two_streams_has_one_store_and_a_name_made_of_both() -> None:
    cluster = world()
    feed(cluster, "l", (1, 1), (3, 3))
    feed(cluster, "r", (2, 2))
    app, left, right = made()

    def numbered(value: Any, state: Any) -> list[Any]:
        return [state.increment("n"), value]

    left.concat(right).apply(numbered, stateful=True).to_topic(app.topic("out"))
    assert [store.name for store in app.topology().stores] == ["l-r"]
    assert [sub.inputs for sub in app.topology().subtopologies] == [("l", "r")]
    cluster.run(app)
    assert sent(cluster) == [(1, [1, 1]), (2, [2, 2]), (3, [3, 3])]


def _other(join: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: join(left, made()[2])


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda left, right: left.join_asof(right, "right"), "`how` is 'right', expected 'inner' or 'left'"),
        (lambda left, right: left.join_interval(right, "full"), "`how` is 'full'"),
        (lambda left, right: left.join_table(right), "expected a table"),
        (lambda left, right: left.join_table(right.to_table(), on_merge="both"), "`on_merge` is 'both'"),
        (
            _other(lambda left, right: left.join_asof(right)),
            "The stream of topic l can't be joined with the stream of topic r: they are of two applications",
        ),
        (_other(lambda left, right: left.join_table(right.to_table())), "with the stream of topic r: they are of two"),
        (_other(lambda left, right: left.concat(right)), "they are of two applications"),
        (lambda left, right: left.join_asof(None), "`join_asof` got None of type NoneType; expected a stream"),
        (lambda left, right: left.join_interval("r"), "`join_interval` got 'r' of type str; expected a stream"),
        (
            lambda left, right: left.join_asof(right.to_table()),
            "`join_asof` got the table 'r-table'; expected a stream.*Write `join_table",
        ),
        (
            lambda left, right: left.join_table(right),
            r"`join_table` got the stream of topic r; expected a table.*`join_table\(other.to_table\(\)\)`",
        ),
        (lambda left, right: left.to_table().join(right), "`join` got .*; expected a table"),
        (lambda left, right: left.to_table().join(right.to_table(), "right"), "`how` is 'right'"),
        (lambda left, right: left.to_table().join(right.to_table(), on_merge="both"), "`on_merge` is 'both'"),
        (_other(lambda left, right: left.to_table().join(right.to_table())), "they are of two applications"),
    ],
)
def test_a_join_that_can_not_run_is_refused(declare: Callable[[Any, Any], Any], says: str) -> None:
    _, left, right = made()
    with pytest.raises(JoinInvalid, match=says):
        declare(left, right)


@pytest.mark.parametrize("duration", ["grace_ms", "backward_ms", "forward_ms"])
def test_a_duration_below_zero_is_refused(duration: str) -> None:
    _, left, right = made()
    with pytest.raises(DurationInvalid, match=duration):
        left.join_interval(right, **{duration: -1})


def test_a_name_that_another_join_has_is_refused() -> None:
    app, left, right = made()
    left.join_asof(right, name="j")
    with pytest.raises(HoldfastError, match="Two steps have the store 'j'.* `name=\"j-2\"`"):
        left.join_interval(right, name="j")
    app, left, right = made()
    left.join_interval(right, name="j")
    left.join_interval(right, name="j")
    with pytest.raises(HoldfastError, match="used by 2 steps"):
        app.topology()


def test_two_as_of_joins_of_one_name_are_refused() -> None:
    app, left, right = made()
    left.join_asof(right, name="j")
    left.join_asof(right, name="j")
    with pytest.raises(HoldfastError, match="of one join or table"):
        app.topology()


def test_topics_of_other_counts_are_refused_before_the_start() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("l", partitions=2)
    cluster.create_topic("r", partitions=3)
    app, left, right = made()
    left.join_asof(right).to_topic(app.topic("out"))
    with pytest.raises(HoldfastError, match="different partition counts") as refused:
        cluster.run(app)
    assert (
        'bring the stream of l to 3 partitions, by the field that is its key: `sdf.group_by("field", partitions=3)`'
        in (str(refused.value))
    )
    feed(cluster, "r", (1, {"b": 2}), key=b"K")
    feed(cluster, "l", (2, {"id": "K"}), key=b"K")
    app, left, right = made()
    left.group_by("id", partitions=3).join_asof(right).to_topic(app.topic("out"))
    cluster.run(app)
    assert [json.loads(record.value or b"") for _, record in cluster.read("out")] == [{"id": "K", "b": 2}]


@pytest.mark.parametrize("join", ["join_asof", "join_interval", "join_table"])
def test_a_message_without_a_key_goes_by_the_failure_policy(join: str) -> None:
    cluster = world()
    feed(cluster, "l", (1, {"a": 1}), key=None)
    feed(cluster, "r", (1, {"b": 1}), key=None)
    app, left, right = made(dead_letter_topic="dead")
    getattr(left, join)(right.to_table() if join == "join_table" else right).to_topic(app.topic("out"))
    cluster.run(app)
    types = [dict(record.headers or [])["holdfast.error.type"] for _, record in cluster.read("dead")]
    assert types == [b"NullKey", b"NullKey"]


def test_another_rule_of_a_join_is_another_version() -> None:
    def version(**options: Any) -> str:
        app, left, right = made()
        left.join_interval(right, **options)
        return app.topology().code_version

    assert version(backward_ms=5) != version(backward_ms=6)
    assert version(how="left") != version()
    first = version(on_merge=lambda a, b: a)
    assert first != version(on_merge=lambda a, b: b)
    assert version() == version()

    def of_tables(how: Any) -> str:
        app, left, right = made()
        left.to_table().join(right.to_table(), how)
        return app.topology().code_version

    assert of_tables("left") != of_tables("inner") == of_tables("inner")


def test_a_right_side_that_stays_empty_holds_nothing_back() -> None:
    cluster = world()
    feed(cluster, "l", (1, {"a": 1}), (2, {"a": 2}))
    app, left, right = made()
    left.join_asof(right, "left").to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(1, {"a": 1}), (2, {"a": 2})]


def test_a_right_side_that_is_an_hour_behind_is_joined_by_time_after_a_restart() -> None:
    hour = 3_600_000
    cluster = world()
    feed(cluster, "r", (1, {"b": 1}))
    feed(cluster, "l", (2, {"a": 1}))
    app, left, right = made()
    left.join_table(right.to_table("t")).to_topic(app.topic("out"))
    cluster.run(app)
    feed(cluster, "l", *((hour + each, {"a": each}) for each in range(300)))
    feed(cluster, "r", *((hour + each, {"b": each}) for each in range(0, 300, 2)))
    again, left, right = made()
    left.join_table(right.to_table("t")).to_topic(again.topic("out"))
    cluster.run(again)
    # The left stream was declared first. Still, the table's row is processed first if the times are equal.
    expected = [(hour + each, {"a": each, "b": each // 2 * 2}) for each in range(300)]
    assert sent(cluster)[1:] == expected
