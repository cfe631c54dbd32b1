"""Plans and answers describe a store's windows, timers and TTL in words, with their durations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application
from holdfast.processors.engine.state.time.window_keys import due_key, session_key, window_key
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.plan import Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Clear, Deploy, Keys
from holdfast.processors.lifecycle.plans.store_words import (
    calls_again,
    in_duration,
    kept_of_time,
    rebuilt_otherwise,
    record_in_words,
)
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import stopped, world_of
from tests.window_apps import T, build


class Quiet:
    def on_message(self, value: Any, context: Any) -> None: ...

    def on_timer(self, name: str, time: int, context: Any) -> None: ...


def with_timers(frame: Any) -> Any:
    return frame.process(Quiet, store="w")


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        (
            lambda frame: frame.hopping_window(3_600_000, 60_000, 90_000, "w").count().final("partition"),
            "hopping windows: 1 h, step 1 min, grace 90 s, retention 1 d, closed by partition, final",
        ),
        (
            lambda frame: frame.session_window(1_500, name="w").count().current(),
            "session windows: gap 1500 ms, grace 0 s, retention 1 d, closed by key, current",
        ),
        (
            lambda frame: frame.sliding_window(timedelta(hours=1), name="w").count().final(),
            "sliding windows: 1 h, grace 0 s, retention 1 d, closed by key, final",
        ),
        (
            lambda frame: frame.hopping_count_window(10, 5, name="w").count().final(),
            "hopping count windows: 10 messages, step 5, final",
        ),
        (with_timers, "timers"),
        (lambda frame: frame.drop_duplicates(within=timedelta(hours=2), store="w"), "values that end after 2 h"),
        (lambda frame: frame.apply(lambda value, state: 1, stateful=True, store="w"), ""),
    ],
    ids=["hopping", "session", "sliding", "count", "timers", "duplicates", "functions"],
)
def test_what_a_store_keeps(place: Callable[[Any], Any], kept: str) -> None:
    topology = build(place).topology()
    assert kept_of_time(topology.stores[0]) == kept
    sentence = f"store `w` has {kept}"
    for request in (Deploy("g"), Clear("g", ("w",), Keys(("a",)))):
        told = decide(request, world_of(topology), topology).findings
        assert (sentence in told) == bool(kept)


def idle(frame: Any) -> Any:
    return frame.tumbling_window(60_000, name="w").count().final("partition", close_when_idle=timedelta(minutes=5))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (idle, "windows of store `w` close after a silence of 5 min"),
        (with_timers, "timers of the worker's clock in store `w` do not fire while old messages are read"),
        (lambda frame: frame.tumbling_window(60_000, name="w").count().final("partition"), ""),
    ],
    ids=["idle", "timers", "windows"],
)
def test_plans_that_read_old_messages_tell_what_time_did_alone(place: Callable[[Any], Any], said: str) -> None:
    topology = build(place).topology()
    assert [each.startswith(said) for each in rebuilt_otherwise(topology.stores)] == [True] * bool(said)
    for request, facts in (
        (Backfill("g", "w", "topic"), world_of(topology)),
        (Clear("g", rewind="earliest"), stopped(topology)),
    ):
        plan = decide(request, facts, topology)
        assert set(rebuilt_otherwise(topology.stores)) <= set(plan.findings), explain(plan)
    assert not any("old messages" in each for each in decide(Clear("g"), stopped(topology), topology).findings)


async def asked(value: Any) -> Any:
    return value


def test_plans_that_read_old_messages_tell_that_durable_calls_are_made_again() -> None:
    def place(frame: Any) -> Any:
        called = frame.apply_async(asked, durable=True, ttl=timedelta(hours=2), store="answers")
        return called.apply(lambda value, state: 1, stateful=True, store="w")

    topology = build(place).topology()
    assert kept_of_time(topology.stores[0]) == "answers of calls that are not used after 2 h"
    sentence = calls_again(topology.stores)
    assert sentence[0].startswith("the calls with answers in store `answers` are made again for each message")
    for request, facts in (
        (Backfill("g", "w", "topic"), world_of(topology)),
        (Clear("g", rewind="earliest"), stopped(topology)),
    ):
        plan = decide(request, facts, topology)
        assert set(sentence) <= set(plan.findings), explain(plan)
    assert not set(sentence) & set(decide(Clear("g"), stopped(topology), topology).findings)


def test_answers_of_calls_are_not_built_from_messages_and_the_named_clear_is_possible() -> None:
    topology = build(lambda frame: frame.apply_async(asked, durable=True, store="answers")).topology()
    verdict = decide(Backfill("g", "answers", "topic"), world_of(topology), topology).verdict
    assert isinstance(verdict, Refused)
    assert "Store `answers` has answers of calls. Another system gives them" in verdict.sentence
    assert "`holdfast apply clear g --store answers --all`" in verdict.action
    assert isinstance(decide(Clear("g", ("answers",)), stopped(topology), topology).verdict, Ready)


def test_a_store_with_timers_and_a_ttl() -> None:
    app = Application(consumer_group="g")
    store = app.store("w", ttl="by value")
    app.dataframe(app.topic("in")).process(Quiet, store=store)
    assert kept_of_time(app.topology().stores[0]) == "values that end when their `ttl` says; timers"


@pytest.mark.parametrize(("ms", "said"), [(0, "0 s"), (1, "1 ms"), (61_000, "61 s"), (120_000, "2 min")])
def test_durations(ms: int, said: str) -> None:
    assert in_duration(ms) == said


def test_records_in_words() -> None:
    (windows,) = build(lambda frame: frame.tumbling_window(60_000, name="w").count().final()).topology().stores
    (timers,) = build(with_timers).topology().stores
    at = "2023-07-22T04:26:40.000+00:00"
    for store, state, value, said in (
        (windows, window_key(T, T + 1_000), {}, f"window {at} to 2023-07-22T04:26:41.000+00:00"),
        (windows, session_key(5), {"session": {"start": T, "end": T}}, f"open session {at} to {at}"),
        (windows, "clock", {"time": T}, f"stream time {at}"),
        (windows, due_key(T, T, T, b"k"), 1, f"index: {due_key(T, T, T, b'k')}"),
        (windows, "time", {}, "time and open windows of the key"),
        (timers, "__holdfast/timers/unpaid", ["stream", T], f"timer unpaid: {at}, stream time"),
        (timers, "__holdfast/ends/cart", [T, T], f"end of cart: {at}"),
        (timers, "__holdfast/newest", [T, T, T, None], f"newest message of the key: {at}"),
        (timers, "clock", 1, "clock"),
    ):
        assert record_in_words(store, state, value) == said
