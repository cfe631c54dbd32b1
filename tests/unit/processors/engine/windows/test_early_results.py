"""A function sends results of windows early, and `suppress` holds results back."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import InMemoryCluster
from holdfast.dataframe.windows import Count, Sum
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.windows.fewer_results import FewerResults
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.oracles.window_rules import Event, Shape, Windows
from tests.window_apps import T, build, send
from tests.window_lives import live_through, world


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def results(cluster: InMemoryCluster) -> list[tuple[int, Any]]:
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    return [(each["start"] - T, each["value"]) for each in made]


# -- triggers ----------------------------------------------------------------------------------------------------------


def above_ten(aggregated: int, value: int, key: bytes, timestamp: int, headers: Any) -> bool:
    return aggregated > 10


def would_be_above_ten(aggregated: int, value: int, key: bytes, timestamp: int, headers: Any) -> bool:
    return aggregated + value > 10


@pytest.mark.parametrize("strategy", ["key", "partition"])
def test_after_update_sends_the_window_with_the_message_and_begins_it_again(
    cluster: InMemoryCluster, strategy: Any
) -> None:
    app = build(lambda frame: frame.tumbling_window(1_000, name="w", after_update=above_ten).sum().final(strategy))
    for value in (4, 5, 6, 3, 20, 2, 1):
        send(cluster, 5, value)
    cluster.run(app)
    assert results(cluster) == [(0, 15), (0, 23)]
    send(cluster, 1_000)
    cluster.run(app)
    assert results(cluster)[2:] == [(0, 3)]


@pytest.mark.parametrize("strategy", ["key", "partition"])
def test_before_update_sends_the_window_without_the_message_which_begins_it_again(
    cluster: InMemoryCluster, strategy: Any
) -> None:
    app = build(
        lambda frame: frame.tumbling_window(1_000, name="w", before_update=would_be_above_ten).sum().final(strategy)
    )
    for value in (50, 4, 5, 6):
        send(cluster, 5, value)
    send(cluster, 1_000)
    cluster.run(app)
    assert results(cluster) == [(0, 50), (0, 9), (0, 6)]


def test_current_sends_the_window_once_where_it_is_sent_early(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.tumbling_window(1_000, name="w", after_update=above_ten).sum().current())
    for value in (4, 7, 1):
        send(cluster, 5, value)
    cluster.run(app)
    assert results(cluster) == [(0, 4), (0, 11), (0, 1)]


def test_functions_get_the_columns_the_message_and_its_headers_for_each_window(cluster: InMemoryCluster) -> None:
    asked: list[Any] = []

    def watch(*given: Any) -> None:
        asked.append(given)

    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        hops = frame.hopping_window(10, 5, name="w", before_update=watch, after_update=watch)
        return hops.agg(n=Count(), total=Sum()).final("partition")

    for value in (4, 5):
        cluster.produce("in", str(value).encode(), b"k", timestamp_ms=T + 7, headers=[("h", b"1")])
    cluster.run(build(place))
    message = (b"k", T + 7, [("h", b"1")])
    assert asked == [
        *[({"n": 1, "total": 4}, 4, *message)] * 2,
        *[({"n": 1, "total": 4}, 5, *message), ({"n": 2, "total": 9}, 5, *message)] * 2,
    ]


def test_a_trigger_that_raises_fails_its_message_and_changes_no_window(cluster: InMemoryCluster) -> None:
    def broken(aggregated: int, value: int, *_: Any) -> bool:
        if value == 7:
            raise ValueError("seven")
        return False

    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        return frame.tumbling_window(1_000, name="w", after_update=broken).sum().final("partition")

    for at, value in ((1, 4), (2, 7), (3, 5), (1_000, 1)):
        send(cluster, at, value)
    cluster.run(build(place, dead_letter_topic="dead"))
    assert (results(cluster), len(cluster.read("dead"))) == ([(0, 9)], 1)


@pytest.mark.parametrize(
    ("place", "match"),
    [
        (lambda frame: frame.tumbling_window(10, before_update=5), "`before_update` is 5, expected a function"),
        (lambda frame: frame.hopping_window(10, 5, after_update="now"), "`after_update` is 'now'"),
        (lambda frame: frame.tumbling_window(10).count().current().suppress(0), "`every` is 0"),
        (lambda frame: frame.tumbling_window(10).count().final().suppress(5), "not the first step behind `current"),
        (lambda frame: frame.tumbling_count_window(10).count().current().suppress(5), "not the first step"),
        (lambda frame: frame.suppress(5), "not the first step"),
        (lambda frame: frame.tumbling_window(10).count().current().suppress(5).suppress(6), "not the first step"),
        (lambda frame: frame.tumbling_window(10).count().current().apply(len).suppress(6), "not the first step"),
    ],
)
def test_a_declaration_that_can_not_run_is_refused(place: Callable[[StreamingDataFrame], Any], match: str) -> None:
    with pytest.raises(HoldfastError, match=match) as raised:
        build(place)
    assert raised.value.action


def test_triggers_and_suppression_are_part_of_the_definition() -> None:
    app = build(lambda frame: frame.tumbling_window(10, after_update=above_ten).sum().current().suppress(5_000))
    [store] = app.topology().stores
    assert store.columns[0].endswith(", current, after_update above_ten, at most every 5000 ms")


# -- results that are held back ----------------------------------------------------------------------------------------


def test_the_newest_result_of_a_key_is_sent_at_most_so_often(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.tumbling_window(1_000, name="w").sum().current().suppress(100))
    for at, value in ((0, 1), (10, 2), (50, 4), (99, 8)):
        send(cluster, at, value)
    cluster.run(app)
    assert results(cluster) == [(0, 1)]
    send(cluster, 100, 0, b"other")  # this message moves the time on, so the held result of the first key is sent
    cluster.run(app)
    assert results(cluster) == [(0, 1), (0, 0), (0, 15)]
    send(cluster, 150, 16)
    cluster.run(app)
    assert results(cluster)[3:] == []
    send(cluster, 400, 32)  # this message sends the result that was held back, then its own result
    cluster.run(app)
    assert results(cluster)[3:] == [(0, 31), (0, 63)]
    send(cluster, 1_000, 0, b"other")
    cluster.run(app)
    assert not [name for key, name in cluster.state(app, "w") if key == b"k" and name == "held"]


def expect(every: int, shape: Shape, events: list[Event], now: int) -> list[tuple[Any, ...]]:
    """The expected outputs, computed in plain Python."""
    windows, sent = Windows(shape, now), []
    next_at: dict[bytes, int] = {}
    held: dict[bytes, Any] = {}
    for event in events:
        windows.take(event)
        # A message that is dated ahead of the worker's clock does not move the time.
        for key in [key for key in held if next_at[key] <= windows.time]:
            sent.append(held.pop(key))
            next_at[key] += every
        made, windows.results = windows.results, []
        if made and next_at.get(event.key, -1) <= windows.time:
            sent.append(made[-1])
            next_at[event.key] = windows.time + every
        elif made:
            held[event.key] = made[-1]
    return sent


def check(seed: int, tmp_path: Path) -> None:
    random, (cluster, now_ms) = Random(seed), world()
    every, step = random.choice([1, 10, 60, 500]), random.choice([10, 20])
    shape = Shape(20, step, random.choice([0, 40]), "partition", final=False)
    events, at = [], 0
    for _ in range(random.randint(5, 100)):
        at += random.choice([0, 1, 3, 10, 30, 200 if random.random() < 0.1 else 5])
        time_ms = now_ms + 2_000_000 if random.random() < 0.03 else max(1, at - random.choice([0, 0, 1, 10, 45]))
        events.append(Event(random.choice([b"a", b"b", b"", b"\x00holdfast"]), time_ms, random.randint(1, 9)))

    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        window = frame.hopping_window(20, step, shape.grace, "w").agg(n=Count(), total=Sum("v"))
        return window.current("partition").suppress(every)

    app = build(place, state_dir=tmp_path, commit_every=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_time, "CLOSED_AT_ONCE", (1, 3, 5_000)[seed % 3])
        found = live_through(cluster, copy(app), events, random)
    made = [(key, *result.values()) for key, result in found]
    model = expect(every, shape, events, now_ms)
    assert len(made) == len(model)
    for key in {event.key for event in events}:
        assert [each for each in made if each[0] == key] == [each for each in model if each[0] == key]


@pytest.mark.parametrize("seed", variants(range(100), tested=6))
def test_what_is_held_back_is_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def _loses_what_it_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FewerResults, "closing", lambda self, limit: [])


def _sends_it_twice(patch: pytest.MonkeyPatch) -> None:
    former = FewerResults._look_again

    def keeps(self: FewerResults, raw_key: bytes, due_ms: int, known: dict[str, Any] | None) -> dict[str, Any]:
        made = former(self, raw_key, due_ms, known)
        if known is not None:
            self._state.set("held", {"due": due_ms, "held": known["held"]})
        return made

    patch.setattr(FewerResults, "_look_again", keeps)


@pytest.mark.parametrize("bug", [_loses_what_it_holds, _sends_it_twice])
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    assert is_found(bug, check, tmp_path)
