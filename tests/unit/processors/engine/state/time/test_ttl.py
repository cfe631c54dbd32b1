"""Values with a TTL cannot be read after their expiry. They are removed completely, in steps of bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, State
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.commands.table import COMMANDS
from holdfast.processors.engine.runtime.owner_commands.commands import Read
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

#: The event time of the first message in milliseconds.
T = 1_690_000_000_000
TTL = 1_000


def step(value: Any, state: Any) -> Any:
    """Carries out the calls in a message, and returns the keys that can be read afterwards."""
    for name, *rest in value:
        done = {
            "set": lambda key, ttl=None: state.set(key, "v", ttl=ttl),
            "bytes": lambda key, ttl=None: state.set_bytes(key, b"v", ttl=ttl),
            "delete": state.delete,
            "fail": lambda: 1 // 0,
        }[name]
        done(*rest)
    return state.keys()


def build(ttl: Any = TTL, function: Callable[..., Any] = step, **settings: Any) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        dead_letter_topic="dead",
        **settings,
    )
    kept = "s" if ttl is None else app.store("s", ttl=ttl)
    app.dataframe(app.topic("in")).apply(function, stateful=True, store=kept).to_topic(app.topic("out"))
    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        made.create_topic(topic)
    return made


def send(cluster: InMemoryCluster, at: int, *steps: Any, key: bytes = b"a") -> None:
    cluster.produce("in", json.dumps(steps).encode(), key, timestamp_ms=T + at)


def results(cluster: InMemoryCluster) -> list[Any]:
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def own(cluster: InMemoryCluster, app: Application) -> set[Any]:
    """All records of the store except its clock."""
    return set(cluster.state(app, "s")) - {(OWN_KEY, CLOCK_OF_STORE)}


def test_a_value_is_readable_up_to_its_end_and_not_from_there_on(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n"])
    for at in (TTL - 1, TTL, TTL + 1):
        send(cluster, at)
    cluster.run(build())
    assert results(cluster) == [["n"], ["n"], [], []]
    assert own(cluster, build()) == set()


def test_messages_of_other_keys_move_the_time(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n"])
    send(cluster, TTL, key=b"b")
    send(cluster, 1)  # an older message does not read the expired value, either
    cluster.run(build())
    assert results(cluster) == [["n"], [], []]


def test_reads_of_each_kind_do_not_see_it(cluster: InMemoryCluster) -> None:
    def look(value: Any, state: Any) -> Any:
        if value:
            state.set("n", 5)
            state.set_bytes("b", b"x")
        seen = [state.get("n", 7), state.exists("n"), [*dict(state.items())], state.keys(reverse=True)]
        return [*seen, (state.get_bytes("b") or b"").decode()]

    app = build(function=look)
    cluster.produce("in", b"1", b"a", timestamp_ms=T)
    cluster.produce("in", b"0", b"a", timestamp_ms=T + TTL)
    cluster.run(app)
    [first, second] = results(cluster)
    assert first[:2] == [5, True]
    assert first[2:] == [["b", "n"], ["n", "b"], "x"]
    assert second == [7, False, [], [], ""]


def test_counting_begins_anew_after_the_end(cluster: InMemoryCluster) -> None:
    app = build(function=lambda value, state: [state.increment("n"), state.append("l", value)])
    for at in (0, TTL - 1, 3 * TTL):
        cluster.produce("in", b"%d" % at, b"a", timestamp_ms=T + at)
    cluster.run(app)
    assert results(cluster) == [[1, [0]], [2, [0, TTL - 1]], [1, [3 * TTL]]]


def test_a_value_that_is_set_again_gets_a_new_end(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n"])
    send(cluster, 600, ["set", "n"])
    send(cluster, 1_500)
    cluster.run(build())
    send(cluster, 1_600)
    cluster.run(build())
    assert results(cluster) == [["n"], ["n"], ["n"], []]
    assert own(cluster, build()) == set()


def test_a_shorter_time_counts_as_well(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n", 10_000], ["set", "m"])
    send(cluster, 1, ["set", "n", 5])
    send(cluster, 6)
    cluster.run(build("by value"))
    assert results(cluster) == [["m", "n"], ["m", "n"], ["m"]]
    assert own(cluster, build("by value")) == {(b"a", "m")}


def test_a_late_message_brings_the_end_of_a_value_no_nearer(cluster: InMemoryCluster) -> None:
    for at in (4, 5, 1):
        send(cluster, at, ["set", "n"])
    for at in (TTL + 1, TTL + 4, TTL + 5):
        send(cluster, at)
    cluster.run(build())
    assert results(cluster) == [["n"]] * 5 + [[]]
    assert own(cluster, build()) == set()


@pytest.mark.parametrize("commit_every", [0, 1])
def test_a_late_message_gives_no_end_to_a_value_that_has_none(cluster: InMemoryCluster, commit_every: int) -> None:
    send(cluster, 5, ["set", "n"], ["set", "m", 50], ["set", "k", 50])
    send(cluster, 1, ["set", "n", 10], ["set", "m", 10], ["set", "k"])
    send(cluster, 54)
    send(cluster, 55)
    cluster.run(build("by value", commit_every=commit_every))
    assert results(cluster)[2:] == [["k", "m", "n"], ["k", "n"]]
    assert own(cluster, build("by value")) == {(b"a", "n"), (b"a", "k")}


def test_a_query_shows_no_value_that_is_over(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query does not show expired values that are not removed yet.

    Many values may expire at once, and a commit removes only a part of them. In this test, it removes none.
    """
    monkeypatch.setattr(task_time.TaskTime, "_remove", lambda self: None)
    send(cluster, 0, ["set", "n"], ["set", "m"])
    send(cluster, 500, ["set", "m"])
    send(cluster, TTL)
    app, seen = build(), list[str]()

    def errand(worker: Any, ticket: Any) -> Any:
        worker.maintenance.waits = True  # the worker must wait, so that the simulated time passes
        while not worker.assignment.tasks or not all(task.running for task in worker.assignment.tasks):
            yield
        worker.maintenance.waits = False
        answer = COMMANDS.read(Read(store="s", keys=None, all=True), worker)
        seen.extend(row["state"] for row in answer["rows"] if row["key"] == "a")
        worker.stop()
        return {}

    cluster.run(app)
    assert {(b"a", "n"), (b"a", "m")} <= own(cluster, app)  # the values are expired, but not removed yet
    app._errand = errand
    cluster.run(app)
    assert seen == ["__holdfast/ends/m", "m"]


def test_without_a_time_of_its_own_a_value_stays_in_a_store_by_value(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n", 5], ["bytes", "b", 5])
    send(cluster, 1, ["set", "n"])
    send(cluster, 100)
    cluster.run(build("by value"))
    assert results(cluster)[-1] == ["n"]
    assert own(cluster, build("by value")) == {(b"a", "n")}


def test_a_deleted_value_leaves_no_entry(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n"], ["set", "m"])
    send(cluster, 1, ["delete", "n"])
    cluster.run(build())
    assert {key for _, key in own(cluster, build()) if "/n" in key or key == "n"} == set()
    # three records stay: the value of m, the record of its expiry time, and its index entry
    assert len(own(cluster, build())) == 3


def test_a_value_whose_time_is_over_at_once_is_not_set(cluster: InMemoryCluster) -> None:
    send(cluster, 5_000)
    send(cluster, 0, ["set", "n"])
    cluster.run(build())
    assert results(cluster) == [[], []]
    assert own(cluster, build()) == set()


def test_a_message_dated_ahead_ends_nothing_of_others(cluster: InMemoryCluster) -> None:
    now = int(cluster.clock.time() * 1000) - T
    send(cluster, now, ["set", "n"])
    send(cluster, now + 50_000, key=b"b")
    send(cluster, now + 60_000)
    cluster.run(build())
    assert results(cluster) == [["n"], [], ["n"]]
    cluster.advance(120)
    send(cluster, now)
    cluster.run(build())
    assert results(cluster)[-1] == []


def test_a_failed_message_sets_and_ends_nothing(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n"])
    send(cluster, 500, ["set", "n"], ["set", "m"], ["delete", "n"], ["fail"])
    send(cluster, 999)
    send(cluster, 1_000)
    cluster.run(build())
    assert results(cluster) == [["n"], ["n"], []]
    assert own(cluster, build()) == set()


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_many_values_leave_in_bounded_steps(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(task_time, "REMOVED_AT_ONCE", at_once)
    for number in range(25):
        send(cluster, 0, ["set", f"n{number}"], key=b"k%d" % number)
    cluster.run(build())
    commits = cluster.log_end(_changelog())
    send(cluster, TTL)
    cluster.run(build())
    assert own(cluster, build()) == set()
    steps = sum(b'"transaction"' in (record.value or b"") for _, record in cluster.read("g-s-changelog"))
    assert commits < cluster.log_end(_changelog())
    assert steps >= 25 // at_once


def _changelog() -> Any:
    from holdfast import Partition

    return Partition("g-s-changelog", 0)


def test_a_store_keeps_one_entry_for_a_value_that_is_set_often(cluster: InMemoryCluster) -> None:
    for at in range(200):
        send(cluster, at * 20, ["set", "n"])
    cluster.run(build(commit_every=10))
    assert len(own(cluster, build())) == 3


def test_another_ttl_is_for_values_that_are_set_from_then_on(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n"])
    cluster.run(build())
    send(cluster, 500, ["set", "m"])
    cluster.run(build(10 * TTL))
    send(cluster, 1_200)
    cluster.run(build(10 * TTL))
    assert results(cluster) == [["n"], ["m", "n"], ["m"]]


def test_values_of_before_there_was_a_ttl_stay(cluster: InMemoryCluster) -> None:
    send(cluster, 0, ["set", "n"])
    cluster.run(build(None))
    send(cluster, 9_000, ["set", "m"])
    cluster.run(build())
    send(cluster, 20_000)
    cluster.run(build())
    assert results(cluster) == [["n"], ["m", "n"], ["n"]]


def test_a_timedelta_is_taken_and_a_store_without_time_refuses(cluster: InMemoryCluster) -> None:
    def put(value: Any, state: Any) -> Any:
        state.set("n", 1, ttl=timedelta(seconds=value))
        return state.keys()

    def by_another_function(value: Any, state: Any) -> Any:
        return put(value, state)

    for number in (1, 0, 1e-9):
        cluster.produce("in", json.dumps(number).encode(), b"a", timestamp_ms=T)
    cluster.run(build(function=put))
    cluster.produce("in", b"1", b"a", timestamp_ms=T)
    cluster.run(build(None, by_another_function))
    assert results(cluster) == [["n"]]
    dead = [dict(record.headers or ()) for _, record in cluster.read("dead")]
    errors = [headers["holdfast.error"] or b"" for headers in dead]
    assert all(b"`ttl` is datetime.timedelta(0)" in error for error in errors[:2])
    assert b"A value of store 's' was set with `ttl`, and the store is not declared for it" in errors[2]
    assert dead[2]["holdfast.error.action"] == b"Declare the store: `app.store('s', ttl=\"by value\")`."


def test_without_changelogs_exactly_once_refuses_it() -> None:
    with pytest.raises(HoldfastError, match="has ttl = 1000 ms, but use_changelog_topics is off"):
        build(use_changelog_topics=False).topology()
    assert build(use_changelog_topics=False, processing_guarantee="at-least-once").topology().stores[0].timed


def test_a_message_without_a_usable_time_fails(cluster: InMemoryCluster) -> None:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    topic = app.topic("in", timestamp_extractor=lambda value, *_: value)
    app.dataframe(topic).apply(lambda value, state: 1, stateful=True, store=app.store("s", ttl=1)).to_topic(
        app.topic("out")
    )
    for value in (-1, 10**15, "now", T, 0):
        cluster.produce("in", json.dumps(value).encode(), b"a")
    cluster.run(app)
    assert len(cluster.read("dead")) == 3
    assert results(cluster) == [1, 1]


def test_a_store_is_declared_for_ttl_only_where_a_function_sets_it() -> None:
    def sets(value: Any, state: State) -> None:
        state.set("n", value, ttl=timedelta(minutes=5))

    def sets_bytes(value: Any, state: State) -> None:
        state.set_bytes("n", b"1", ttl=timedelta(minutes=5))

    def other(value: Any, state: State) -> None:
        cache: Any = value
        cache.set("n", 1, ttl=5)
        state.set("n", value)

    def columns(func: Any, **declared: Any) -> Any:
        app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
        app.dataframe(app.topic("in")).update(func, stateful=True)
        if declared:  # also behind the step
            app.store("in", **declared)
        (store,) = app.topology().stores
        return store.columns

    by_value = columns(sets)
    assert by_value
    assert by_value == columns(sets_bytes) == columns(sets, ttl="by value") == columns(other, ttl="by value")
    assert columns(other) == ()
    assert columns(sets, ttl=timedelta(hours=1)) == columns(other, ttl=timedelta(hours=1)) != by_value
