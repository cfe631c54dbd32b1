"""The store of an as-of join. The newest right messages of a key share one record.

Older messages are in further (sealed) records. All messages expire.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import META_KEY, split_key
from holdfast.processors.engine.joins.as_of import OPEN_KEPT, OPEN_MAX, SLACK_MS
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

STORE = "l-r-asof"
CHANGELOG = f"g-{STORE}-changelog"
HOUR = 3_600_000
VALUES = [0, "", False, None, {}, []]


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def refuse(value: Any) -> None:
    if isinstance(value, dict) and value.get("fails"):
        raise ValueError("as asked")


def built(grace_ms: int = HOUR, tolerance_ms: int | None = None) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    left, right = (app.dataframe(app.topic(name)) for name in ("l", "r"))
    left.join_asof(right, "left", both, grace_ms, tolerance_ms=tolerance_ms).to_topic(app.topic("out"))
    right.update(refuse)
    return app


def world(**changelog: str) -> InMemoryCluster:
    cluster = InMemoryCluster()
    for topic in ("l", "r", "out", "dead"):
        cluster.create_topic(topic)
    if changelog:
        cluster.create_topic(CHANGELOG, config={"cleanup.policy": "compact", **changelog})
    return cluster


def feed(cluster: InMemoryCluster, topic: str, *messages: tuple[int, Any], key: bytes = b"k") -> None:
    for time_ms, value in messages:
        cluster.produce(topic, json.dumps(value).encode(), key, timestamp_ms=time_ms)


def rows(cluster: InMemoryCluster) -> list[Any]:
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def kept(cluster: InMemoryCluster, app: Application, key: bytes = b"k") -> dict[str, Any]:
    return {place: value for (of, place), value in cluster.state(app, STORE).items() if of == key}


def entries(cluster: InMemoryCluster, app: Application) -> int:
    return sum(of == OWN_KEY and "expires" in place for of, place in cluster.state(app, STORE))


def written(cluster: InMemoryCluster) -> list[str]:
    """The state keys of all changelog records that belong to message keys, in the order of the changelog."""
    keys = [record.key for _, record in cluster.read(CHANGELOG) if record.key not in (None, META_KEY)]
    return [place for of, place in (split_key(key) for key in keys if key is not None) if of != OWN_KEY]


def test_the_right_messages_of_a_key_are_one_record_and_one_entry() -> None:
    cluster, app = world(), built()
    feed(cluster, "r", *((1_000 + number, number) for number in range(10)))
    cluster.run(app)
    assert written(cluster) == ["right"]
    assert kept(cluster, app)["right"][2:] == [[1_000 + number, number] for number in range(10)]
    assert entries(cluster, app) == 1


def test_a_single_right_message_of_a_key_has_no_entry_unless_it_ends() -> None:
    for tolerance, expected in ((None, 0), (5, 1)):
        cluster, app = world(), built(tolerance_ms=tolerance)
        feed(cluster, "r", (1_000, 1), (1_000, 2))
        cluster.run(app)
        assert entries(cluster, app) == expected
        assert kept(cluster, app)["right"][2:] == [[1_000, 2]]


def test_left_messages_of_any_past_time_find_what_was_sealed() -> None:
    count = 5 * OPEN_MAX
    cluster, app = world(), built()
    feed(cluster, "r", *((1_000 + 10 * number, VALUES[number % len(VALUES)]) for number in range(count)))
    cluster.run(app)
    sealed = [value for place, value in kept(cluster, app).items() if place.startswith("past/")]
    assert len(sealed) > 2
    assert OPEN_KEPT <= len(kept(cluster, app)["right"][2:]) <= OPEN_MAX
    feed(cluster, "l", *((999 + 10 * number, number) for number in range(count + 1)))
    cluster.run(built())
    assert rows(cluster) == [[0, None], *([n, VALUES[(n - 1) % len(VALUES)]] for n in range(1, count + 1))]


def test_late_right_messages_join_what_was_sealed() -> None:
    count = 5 * OPEN_MAX
    cluster = world()
    feed(cluster, "r", *((1_000 + 10 * number, number) for number in range(count)))
    cluster.run(built())
    late = [*range(1_005, 1_000 + 10 * count, 10), 500, *range(1_000, 1_400, 20)]
    feed(cluster, "r", *((time_ms, f"late {time_ms}") for time_ms in late))
    cluster.run(built())
    asked = [499, 500, 999, *range(1_000, 1_010 + 10 * count)]
    feed(cluster, "l", *((time_ms, time_ms) for time_ms in asked))
    cluster.run(built())
    model = {1_000 + 10 * number: number for number in range(count)} | {each: f"late {each}" for each in late}
    newest = {each: max((time for time in model if time <= each), default=None) for each in asked}
    assert rows(cluster) == [[each, None if at is None else model[at]] for each, at in newest.items()]


def test_what_has_ended_leaves_with_the_next_message_of_its_key() -> None:
    cluster, app = world(), built(grace_ms=100)
    feed(cluster, "r", (1_000, 1), (1_050, 2), (1_200, 3), (1_201, 4))
    cluster.run(app)
    assert kept(cluster, app)["right"][2:] == [[1_050, 2], [1_200, 3], [1_201, 4]]  # the first message expired at 1,150


def test_what_has_ended_leaves_the_store_of_a_silent_key() -> None:
    app = built(grace_ms=100)
    cluster = world()
    feed(cluster, "r", (1_000, 1), (1_050, 2))
    feed(cluster, "r", *((2_000 + number, number) for number in range(2 * OPEN_MAX)), key=b"sealed")
    cluster.run(app)
    assert any(place.startswith("past/") for place in kept(cluster, app, b"sealed"))
    feed(cluster, "l", (2_200 + SLACK_MS, "another key"), key=b"other")
    cluster.run(built(grace_ms=100))
    assert kept(cluster, app) == {"right": [0, -1, [1_050, 2]]}
    assert [*kept(cluster, app, b"sealed")] == ["right"]
    assert len(kept(cluster, app, b"sealed")["right"][2:]) == 1
    assert entries(cluster, app) == 0


def test_the_newest_one_leaves_when_tolerance_and_grace_are_over() -> None:
    app, cluster = built(grace_ms=100, tolerance_ms=50), world()
    feed(cluster, "r", (1_000, 1), (1_100, 2))
    feed(cluster, "l", (1_250, "in time"))
    cluster.run(app)
    assert kept(cluster, app)["right"][2:] == [[1_100, 2]]
    feed(cluster, "l", (1_251, "too late"))
    cluster.run(built(grace_ms=100, tolerance_ms=50))
    assert (kept(cluster, app), entries(cluster, app)) == ({}, 0)


def test_a_right_message_that_fails_behind_the_join_is_not_found() -> None:
    cluster = world()
    for at in range(0, 400, 10):
        feed(cluster, "r", (1_000 + at, at), (1_003 + at, {"fails": True}))
        feed(cluster, "l", (1_002 + at, at), (1_005 + at, at))
    cluster.run(built())
    assert rows(cluster) == [[at, at] for at in range(0, 400, 10) for _ in range(2)]
    assert len(cluster.read("dead")) == 40


def test_a_right_message_that_is_too_large_fails_alone() -> None:
    cluster, app = world(**{"max.message.bytes": "1000"}), built()
    feed(cluster, "r", (1_000, "a" * 300), (1_001, "b" * 600), (1_002, "c" * 2_000), (1_003, "d" * 600))
    feed(cluster, "l", *((1_000 + number, number) for number in range(4)))
    cluster.run(app)
    assert [(left, right[0]) for left, right in rows(cluster)] == [(0, "a"), (1, "b"), (2, "b"), (3, "d")]
    assert [record.value[1:2] for _, record in cluster.read("dead") if record.value] == [b"c"]


def test_a_right_message_that_comes_after_its_tolerance_and_grace_is_not_found_in_place_of_one_that_has_left() -> None:
    minute = 60_000
    cluster = world()
    for time_ms, value in ((60, "12:00"), (65, "12:05"), (90, "12:30"), (59, "11:59, half an hour late")):
        feed(cluster, "r", (time_ms * minute, value))
        cluster.run(built(grace_ms=minute, tolerance_ms=10 * minute))
    feed(cluster, "l", (61 * minute, "12:01"))
    cluster.run(built(grace_ms=minute, tolerance_ms=10 * minute))
    assert rows(cluster) == [["12:01", None]]
