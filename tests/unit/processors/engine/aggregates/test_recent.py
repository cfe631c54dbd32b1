"""The steps `drop_duplicates` and `moving_average` remember messages, for a number of messages or for a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.task.store_time import declared_stores
from holdfast.processors.engine.runtime.task.timed_steps import time_of
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from tests.mechanics.tiers import variants

T = 1_690_000_000_000


def build(step: Callable[[Any], Any], **settings: Any) -> Application:
    given = {"consumer_group": "g", "auto_offset_reset": "earliest", "dead_letter_topic": "dead", **settings}
    app = Application("in-memory", loglevel=None, **given)
    step(app.dataframe(app.topic("in"))).to_topic(app.topic("out"))
    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        made.create_topic(topic)
    return made


def run(cluster: InMemoryCluster, app: Application, *messages: tuple[int, Any], key: bytes = b"a") -> list[Any]:
    for at, value in messages:
        cluster.produce("in", json.dumps(value).encode(), key, timestamp_ms=T + at)
    seen = len(cluster.read("out"))
    cluster.run(app)
    return [json.loads(record.value or b"") for _, record in cluster.read("out")[seen:]]


def test_the_first_of_equal_messages_is_kept_until_the_time_is_over(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.drop_duplicates("id", within=timedelta(seconds=1)))
    messages = [(0, {"id": 1, "n": 0}), (1, {"id": 1, "n": 1}), (999, {"id": 2, "n": 2}), (999, {"id": 1, "n": 3})]
    assert [each["n"] for each in run(cluster, app, *messages)] == [0, 2]
    # A duplicate does not extend the time for which a message is remembered. That time has ended at 1,000 ms.
    assert [each["n"] for each in run(cluster, app, (1_000, {"id": 1, "n": 4}), (1_001, {"id": 1, "n": 5}))] == [4]
    assert [each["n"] for each in run(cluster, app, (1_002, {"id": 1, "n": 6}), key=b"b")] == [6]


@pytest.mark.parametrize("commit_every", [0, 1])
def test_behind_group_by_the_time_is_that_of_the_messages(cluster: InMemoryCluster, commit_every: int) -> None:
    """Behind ``group_by``, stream time moves only at commits.

    So the event times of the messages decide which message is a duplicate.
    """
    app = build(lambda frame: frame.group_by("k").drop_duplicates("id", within=1_000), commit_every=commit_every)
    messages = [(number * 400, {"k": "a", "id": 1, "n": number}) for number in range(10)]
    assert [each["n"] for each in run(cluster, app, *messages)] == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("by", "first", "second", "same"),
    [
        (None, {"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        (None, {"a": 1}, {"a": 2}, False),
        (None, "x" * 500, "x" * 500, True),
        (None, "x" * 500, "x" * 499, False),
        ("id", {"id": 1}, {"id": "1"}, False),
        ("id", {"id": None}, {"id": None, "n": 1}, True),
        (lambda value: value["id"] % 10, {"id": 1}, {"id": 11}, True),
    ],
)
def test_what_makes_messages_equal(cluster: InMemoryCluster, by: Any, first: Any, second: Any, same: bool) -> None:
    app = build(lambda frame: frame.drop_duplicates(by, within=1_000))
    assert run(cluster, app, (0, first), (1, second)) == ([first] if same else [first, second])


def test_an_average_over_messages(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.moving_average("price", over=3))
    found = run(cluster, app, *((0, {"price": price, "n": 1}) for price in (1, 2, 6, 7)))
    assert found == [
        {"price": price, "n": 1, "price_average": mean} for price, mean in ((1, 1.0), (2, 1.5), (6, 3.0), (7, 5.0))
    ]


def test_an_average_over_time_as_in_plain_python(cluster: InMemoryCluster) -> None:
    random, over, messages, wanted = Random(5), 100, [], []
    at = 0
    for _ in range(300):
        at += random.choice([0, 1, 10, 30, 300])
        messages.append((max(0, at - random.choice([0, 0, 20, 120])), {"price": random.randint(1, 9)}))
        newest = max(time for time, _ in messages)
        prices = [value["price"] for time, value in messages if time > newest - over]
        wanted.append(pytest.approx(sum(prices) / len(prices)))
    app = build(lambda frame: frame.moving_average("price", over=timedelta(milliseconds=over), into="mean"))
    found = []
    for first in range(0, 300, 60):  # process each part of the messages on a new, empty disk
        found += [each["mean"] for each in run(cluster, app, *messages[first : first + 60])]
    assert found == wanted


STEPS: dict[str, Callable[[Any], Any]] = {
    "duplicates": lambda frame: frame.drop_duplicates("id", within=1_000, store="s", remember=10_000),
    "averages": lambda frame: frame.moving_average(
        "n", over=timedelta(seconds=1), into="mean", store="s", remember=10_000
    ),
}


def test_a_key_that_is_behind_the_others_of_its_partition_goes_by_its_own_messages(cluster: InMemoryCluster) -> None:
    app = build(STEPS["duplicates"])
    run(cluster, app, (100_000_000, {"id": 1}), key=b"b")
    messages = [(number * 400, {"id": 1, "n": number}) for number in range(10)]
    assert [each["n"] for each in run(cluster, app, *messages[:5])] == [0, 3]
    assert [each["n"] for each in run(cluster, app, *messages[5:])] == [6, 9]


def test_an_average_of_a_key_that_is_behind_goes_by_its_own_messages(cluster: InMemoryCluster) -> None:
    app = build(STEPS["averages"])
    run(cluster, app, (100_000_000, {"n": 1}), key=b"b")
    found = [run(cluster, app, (number * 400, {"n": number}))[0]["mean"] for number in range(5)]
    assert found == [0, 0.5, 1, 2, 3]


def test_a_batch_that_is_sent_again_with_its_old_times_is_no_new_one(cluster: InMemoryCluster) -> None:
    app = build(STEPS["duplicates"])
    batch = [(number * 300, {"id": number, "n": number}) for number in range(8)]
    assert len(run(cluster, app, *batch)) == 8
    # another key moves stream time forward, and a commit removes expired values
    run(cluster, app, (9_000, {"id": 1}), key=b"b")
    assert run(cluster, app, *batch) == []
    assert len(run(cluster, app, (60_000, {"id": 70}))) == 1  # now the key's own time moves forward as well
    assert run(cluster, app, *batch) == []


def test_a_late_message_is_dropped_and_leaves_an_average_as_it_is(cluster: InMemoryCluster) -> None:
    messages = [(2_000, {"id": 1, "n": 4}), (1_000, {"id": 2, "n": 100}), (1_001, {"id": 3, "n": 6})]
    assert [each["id"] for each in run(cluster, build(STEPS["duplicates"]), *messages)] == [1, 3]
    assert [each["mean"] for each in run(cluster, build(STEPS["averages"], consumer_group="means"))] == [4, 4, 5]


@pytest.mark.parametrize("name", STEPS)
def test_late_messages_are_counted(name: str) -> None:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    frame = app.dataframe(app.topic("in"))
    STEPS[name](frame)
    states = {"s": StoreState("s", TaskStore(MemoryDatabases(lambda path, items: None), Path("unused")))}
    declared = declared_stores(states, [frame])
    time = time_of([frame], states, declared, RecordTimes())
    assert time is not None
    time.stream.look(10**12)
    state = declared["s"][0]
    for at in (5_000, 4_000, 4_001, 3_999):
        state.point_at(b"a", at)
        state.key_times.admits()
    assert time.stores["s"].late == 2


@pytest.mark.parametrize(("name", "results"), [("duplicates", [9, 1, 3]), ("averages", [9, 1, 2])])
def test_a_message_that_is_dated_ahead_makes_no_other_late(
    cluster: InMemoryCluster, name: str, results: list[float]
) -> None:
    now = int(cluster.clock.time() * 1000) - T
    app = build(STEPS[name])
    found = run(cluster, app, (now + 600_000, {"id": 1, "n": 9}), (now - 5, {"id": 2, "n": 1}))
    found += run(cluster, app, (now - 4, {"id": 3, "n": 3}))
    assert [each.get("mean", each["n"]) for each in found] == results
    cluster.advance(700)  # now the clock has reached the time of the early message, so this time counts
    late = run(cluster, app, (now, {"id": 4, "n": 7}), (now, {"id": 5, "n": 7}))
    assert [each["mean"] for each in late] == ([9, 9] if name == "averages" else [])


@pytest.mark.parametrize("name", STEPS)
def test_a_key_without_messages_is_forgotten_and_nothing_of_it_stays(cluster: InMemoryCluster, name: str) -> None:
    app = build(STEPS[name])
    run(cluster, app, (0, {"id": 1, "n": 1}), (50, {"id": 2, "n": 2}), (40, {"id": 3, "n": 3}))
    run(cluster, app, (6_000, {"id": 1, "n": 1}), key=b"b")
    run(cluster, app, (10_000, {"id": 1, "n": 1}), key=b"b")
    assert any(key == b"a" for key, _ in cluster.state(app, "s"))
    run(cluster, app, (12_000, {"id": 1, "n": 1}), key=b"b")
    assert [name for key, name in cluster.state(app, "s") if key == b"a" or "/61/" in name] == []
    # the key was forgotten, so its message is not a duplicate
    assert len(run(cluster, app, (0, {"id": 1, "n": 1}))) == 1


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("how", ["backlog", "live", "each"])
def test_a_key_is_forgotten_by_the_stream_time_and_not_by_a_commit(
    cluster: InMemoryCluster, name: str, how: str
) -> None:
    app = build(STEPS[name], commit_every=1 if how == "each" else 0)
    messages = [(b"a", 0, 1), (b"a", 40, 2), (b"b", 12_000, 1), (b"a", 0, 4), (b"a", 1, 2), (b"a", 2, 2)]
    for key, at, number in messages:
        cluster.produce("in", json.dumps({"id": number, "n": number}).encode(), key, timestamp_ms=T + at)
        if how == "live":
            cluster.run(app)
    cluster.run(app)
    found = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    if name == "averages":
        assert [each["mean"] for each in found] == [1, 1.5, 1, 4, 3, 8 / 3]
    else:
        assert [each["id"] for each in found] == [1, 2, 1, 4, 2]


def test_what_a_key_has_seen_leaves_with_its_own_time(cluster: InMemoryCluster) -> None:
    app = build(STEPS["duplicates"])
    run(cluster, app, (1_000_000, {"id": 0, "n": 0}), key=b"b")
    for number in range(0, 40, 5):  # key a is far behind key b, and both get messages
        batch = [((number + each) * 500, {"id": number + each, "n": 1}) for each in range(5)]
        run(cluster, app, *batch)
        run(cluster, app, *((1_000_000 + at, value) for at, value in batch), key=b"b")
    seen = [key for key, name in cluster.state(app, "s") if name.startswith("seen/")]
    assert {seen.count(b"a"), seen.count(b"b")} <= set(range(4, 14))
    entries = [name for key, name in cluster.state(app, "s") if name.startswith("__holdfast/expires/")]
    assert len(entries) == len(seen) + 2


@pytest.mark.parametrize("seed", variants(range(6), tested=2))
def test_duplicates_as_in_plain_python(cluster: InMemoryCluster, seed: int) -> None:
    """Duplicates are the same as in plain Python: keys with distant event times, messages out of order, new disks."""
    random, within = Random(seed), 100
    at = {b"a": 0, b"b": 5_000, b"c": 100_000}
    app = build(lambda frame: frame.drop_duplicates("id", within=within))
    first: dict[tuple[bytes, int], int] = {}
    newest: dict[bytes, int] = {}
    for _ in range(12):
        key = random.choice(list(at))
        messages, wanted = [], []
        for _ in range(30):
            at[key] += random.choice([0, 1, 10, 40, 130])
            time, name = max(0, at[key] - random.choice([0, 0, 20, 90, 120])), random.randint(1, 4)
            messages.append((time, {"id": name, "at": time}))
            newest[key] = max(newest.get(key, -1), time)
            is_late = time <= newest[key] - within
            if not is_late and time >= first.get((key, name), -within) + within:
                first[key, name] = time
                wanted.append(messages[-1][1])
        assert run(cluster, app, *messages, key=key) == wanted


def test_state_of_the_time_before_keys_had_their_own_is_read(cluster: InMemoryCluster) -> None:
    """Older versions of Holdfast let values expire by stream time.

    They stored the expiry, but not the newest message of a key.
    """

    def former(value: Any, state: Any) -> bool:
        if state.exists(f"seen/{value['id']}"):
            return False
        state.set(f"seen/{value['id']}", 1)
        return True

    old = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    old.dataframe(old.topic("in")).filter(former, stateful=True, store=old.store("s", ttl=1_000))
    run(cluster, old, (0, {"id": 1, "n": 0}))
    assert [each["n"] for each in run(cluster, build(STEPS["duplicates"]), (5, {"id": 1, "n": 1}))] == []
    assert [each["n"] for each in run(cluster, build(STEPS["duplicates"]), (1_000, {"id": 1, "n": 2}))] == [2]
    run(cluster, build(STEPS["duplicates"]), (100_000, {"id": 1, "n": 3}), key=b"b")
    assert [name for key, name in cluster.state(build(STEPS["duplicates"]), "s") if key == b"a"] == []


@pytest.mark.parametrize(
    ("step", "value", "said"),
    [
        (lambda frame: frame.drop_duplicates("id", within=1), {"n": 1}, "drop_duplicates(id)"),
        (lambda frame: frame.drop_duplicates("id", within=1), 7, "expected an object"),
        (lambda frame: frame.drop_duplicates(lambda value: {1: object()}, within=1), 7, "is no JSON"),
        (lambda frame: frame.drop_duplicates(lambda value: value["x"], within=1), {}, "raised KeyError"),
        (lambda frame: frame.moving_average("p", over=2), {"p": "1"}, "is '1', expected a number"),
        (lambda frame: frame.moving_average("p", over=2), {"p": True}, "is True, expected a number"),
        (lambda frame: frame.moving_average("p", over=2), {}, "is missing"),
        (lambda frame: frame.moving_average(float, over=2, into="m"), 5, "in a value of type int, expected an object"),
    ],
)
def test_a_message_that_does_not_fit_fails(cluster: InMemoryCluster, step: Any, value: Any, said: str) -> None:
    assert run(cluster, build(step), (0, value)) == []
    [(_, dead)] = cluster.read("dead")
    assert said in (dict(dead.headers or ())["holdfast.error"] or b"").decode()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            lambda frame: frame.drop_duplicates(7, within=1),
            "drop_duplicates got 7, expected a field's name or a",
        ),
        (
            lambda frame: frame.drop_duplicates(["id", "x"], within=1),
            r'Write `drop_duplicates\(lambda value: \[value\["id"\], value\["x"\]\]',
        ),
        (lambda frame: frame.moving_average(7, over=1), "moving_average got 7"),
        (lambda frame: frame.drop_duplicates("id", within=0), "`within` is 0"),
        (lambda frame: frame.moving_average("p", over=0), "`over` is 0"),
        (lambda frame: frame.moving_average("p", over=True), "`over` is True"),
        (lambda frame: frame.moving_average("p", over=timedelta(0)), "`over` is datetime"),
        (lambda frame: frame.moving_average(len, over=1), "has no name for the average"),
        (
            lambda frame: frame.drop_duplicates("a", within=1).drop_duplicates("b", within=1),
            r"Two steps have the store 'in-duplicates': drop_duplicates\(a\), .*; drop_duplicates\(b\), ",
        ),
    ],
)
def test_declarations_that_can_not_run(step: Any, said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        build(step)


def test_two_such_steps_are_told_to_take_two_stores() -> None:
    with pytest.raises(HoldfastError) as refused:
        build(lambda frame: frame.drop_duplicates("a", within=1).drop_duplicates("b", within=1))
    assert refused.value.action == 'Give the second one another store: `store="in-duplicates-2"`.'
    build(lambda frame: frame.drop_duplicates("a", within=1).drop_duplicates("b", within=1, store="in-duplicates-2"))


def test_a_store_of_such_a_step_is_its_own() -> None:
    app = build(lambda frame: frame.moving_average("p", over=2).moving_average("p", over=2))
    with pytest.raises(HoldfastError, match="is used by 2 steps, not one"):
        app.topology()


def test_another_span_is_another_definition() -> None:
    [first], [second] = (
        build(lambda frame, over=over: frame.moving_average("p", over=over)).topology().stores for over in (20, 30)
    )
    assert first.columns == ("p_average = moving_average(p) over 20 messages",)
    assert first.columns != second.columns
    [seen] = build(lambda frame: frame.drop_duplicates("id", within=5)).topology().stores
    line = "drop_duplicates(id), each key by its own time, remembered for 86400000 ms"
    assert (seen.columns, seen.timed) == ((line, "ttl = 5 ms"), True)
