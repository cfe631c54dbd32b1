"""A step gets messages and window results. Each result is processed between the messages, in the order of time.

The times of commits must not change this order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.runtime.task.timed_steps import meeting_windows
from tests.mechanics.tiers import variants

TIMES = (0, 11_000, 12_000, 23_000, 24_000, 60_000, 61_000)


def merged(left: Any, right: Any) -> Any:
    return {"at": left["at"], "window": right and right.get("start")}


def noted(value: Any, state: Any) -> None:
    state.set("window", value["start"])


def looked_up(value: Any, state: Any) -> Any:
    return {"at": value["at"], "window": state.get("window")}


def either(value: Any, state: Any) -> Any:
    """A step for a stream that contains both messages and window results. A window result has the field ``start``."""
    if "start" in value:
        state.set("window", value["start"])
        return {"at": None, "window": value["start"]}
    return looked_up(value, state)


def as_of(clicks: Any, closed: Any) -> Any:
    return clicks.join_asof(closed, how="left", on_merge=merged)


def table(clicks: Any, closed: Any) -> Any:
    return clicks.join_table(closed.to_table("t"), how="left", on_merge=merged)


def history(clicks: Any, closed: Any) -> Any:
    return clicks.join_table(closed.to_table("t", history_retention=86_400_000), how="left", on_merge=merged)


def store(clicks: Any, closed: Any) -> Any:
    closed.update(noted, stateful=True, store="s")
    return clicks.apply(looked_up, stateful=True, store="s")


def one_stream(clicks: Any, closed: Any) -> Any:
    return closed.concat(clicks).apply(either, stateful=True, store="s").filter(lambda value: value["at"] is not None)


KINDS = (as_of, table, history, store, one_stream)


def build(kind: Callable[..., Any], commit_every: int = 0, *, suppressed: bool = False) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        commit_every=commit_every,
        dead_letter_topic="dead",
        loglevel=None,
    )
    clicks = app.dataframe(app.topic("clicks"))
    window = clicks.tumbling_window(10_000, name="w").count()
    if suppressed:
        closed = window.current(closing_strategy="partition").suppress(every=10_000)
    else:
        closed = window.final(closing_strategy="partition")
    kind(clicks, closed.filter(lambda value: 1 // (value["start"] % 1_000_000 != 20_000))).to_topic(app.topic("out"))
    return app


def fed(make: Callable[[int], Application], how: str) -> tuple[list[Any], list[Any]]:
    """The outputs and the values of the dead letters."""
    cluster = InMemoryCluster()
    for topic in ("clicks", "dead"):
        cluster.create_topic(topic)
    begin = int(cluster.clock.time() * 1000) // 1_000_000 * 1_000_000 - 1_000_000
    for at in TIMES:
        cluster.produce("clicks", json.dumps({"at": at}).encode(), b"alice", timestamp_ms=begin + at)
        if how == "live":
            cluster.run(make(0))
    cluster.run(make(1 if how == "each" else 0))
    rows = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    dead = [json.loads(record.value or b"") for _, record in cluster.read("dead")]
    return (
        [(row["at"], row["window"] and row["window"] - begin) for row in rows],
        [value.get("start", begin) - begin for value in dead],
    )


@pytest.mark.parametrize("how", ["backlog", "live", "each"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_finds_each_window_that_was_closed_before_it(kind: Callable[..., Any], how: str) -> None:
    """Each message finds the windows that were closed before it.

    The result of the window from 20 s fails in a later step. No other result fails.
    """
    rows, dead = fed(lambda every: build(kind, every), how)
    assert rows == [
        *((0, None), (11_000, None), (12_000, 0), (23_000, 0), (24_000, 10_000), (60_000, 10_000), (61_000, 10_000))
    ]
    assert dead == [20_000]


@pytest.mark.parametrize("kind", variants(KINDS, tested=2))
def test_results_that_were_held_back_come_between_messages(kind: Callable[..., Any]) -> None:
    found = [fed(lambda every: build(kind, every, suppressed=True), how)[0] for how in ("backlog", "live", "each")]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_comes_where_more_windows_are_due_than_it_may_close(
    kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fed(build_of(kind), "backlog")
    monkeypatch.setattr(task_time, "CLOSED_AT_ONCE", 1)
    assert fed(build_of(kind), "backlog") == expected


def build_of(kind: Callable[..., Any]) -> Callable[[int], Application]:
    return lambda every: build(kind, every)


def test_results_that_meet_no_message_close_with_the_commit() -> None:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    clicks, others = app.dataframe(app.topic("clicks")), app.dataframe(app.topic("others"))
    closed = clicks.tumbling_window(10_000, name="w").count().final(closing_strategy="partition")
    closed.apply(looked_up, stateful=True, store="alone").to_topic(app.topic("out"))
    clicks.apply(looked_up, stateful=True, store="before").to_topic(app.topic("out"))
    assert meeting_windows([clicks.source, others.source]) == frozenset()
    others.join_asof(closed, how="left", on_merge=merged)
    assert meeting_windows([clicks.source, others.source]) == {"w"}
