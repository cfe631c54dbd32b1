"""The one-line steps: duplicates are dropped for a while, averages move over messages or over time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.errors import HoldfastError

T = 1_690_000_000_000


def build(step: Callable[[Any], Any], **settings: Any) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        dead_letter_topic="dead",
        **settings,
    )
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
    # A duplicate makes the time no longer; it ended at 1,000 ms.
    assert [each["n"] for each in run(cluster, app, (1_000, {"id": 1, "n": 4}), (1_001, {"id": 1, "n": 5}))] == [4]
    assert [each["n"] for each in run(cluster, app, (1_002, {"id": 1, "n": 6}), key=b"b")] == [6]


@pytest.mark.parametrize("commit_every", [0, 1])
def test_behind_group_by_the_time_is_that_of_the_messages(cluster: InMemoryCluster, commit_every: int) -> None:
    """Stream time moves with commits there, and is behind the messages."""
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
    for first in range(0, 300, 60):  # each part on a new disk
        found += [each["mean"] for each in run(cluster, app, *messages[first : first + 60])]
    assert found == wanted


def test_a_key_without_messages_keeps_no_numbers(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.moving_average("price", over=timedelta(milliseconds=100)))
    run(cluster, app, (0, {"price": 1}), (50, {"price": 2}), (40, {"price": 3}))
    assert (b"a", "numbers") in cluster.state(app, "in-price_average")
    run(cluster, app, (149, {"price": 1}), key=b"b")
    assert (b"a", "numbers") in cluster.state(app, "in-price_average")
    run(cluster, app, (150, {"price": 1}), key=b"b")
    assert {key for key, _ in cluster.state(app, "in-price_average") if key == b"a"} == set()


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
            r"Two steps have the store 'in-duplicates': drop_duplicates\(a\); drop_duplicates\(b\)",
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
    assert (seen.columns, seen.timed) == (("drop_duplicates(id)", "ttl = 5 ms"), True)
