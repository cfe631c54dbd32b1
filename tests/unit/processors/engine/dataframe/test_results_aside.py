"""A result of earlier messages that fails: only the result goes by the failure policy, and not the message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Aggregator, Collect
from holdfast.processors.engine.dataframe import plain_loop
from holdfast.processors.engine.runtime.task import task as task_module
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed

#: A time in the past, in milliseconds, at which windows of every size in these tests start.
BEGIN = 1_700_000_000_000 // 600_000 * 600_000
Build = Callable[[Any, Any], Any]


class Fragile(Aggregator):
    """Collects the numbers of a window's messages.

    For a window with exactly the numbers ``bad``, `result` raises an error.
    """

    def __init__(self, bad: list[int]) -> None:
        self.bad = bad

    def initialize(self) -> list[Any]:
        return []

    def agg(self, old: list[Any], new: Any, timestamp: Any) -> list[Any]:
        return [*old, new["n"]]

    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return earlier + later

    def result(self, state: list[Any]) -> list[Any]:
        if state == self.bad:
            raise ValueError("an unlucky window")
        return state


def tumbling(sdf: Any, of: Any) -> Any:
    return sdf.tumbling_window(10_000, name="w").agg(of=of).final()


def hopping(sdf: Any, of: Any) -> Any:
    return sdf.hopping_window(10_000, 10_000, name="w").agg(of=of).final()


def sessions(sdf: Any, of: Any) -> Any:
    return sdf.session_window(3_000, name="w").agg(of=of).final()


def sliding(sdf: Any, of: Any) -> Any:
    return sdf.sliding_window(1, name="w").agg(of=of).final()


def counts(sdf: Any, of: Any) -> Any:
    return sdf.tumbling_count_window(2, name="w").agg(of=of).final()


def overlapping(sdf: Any, of: Any) -> Any:
    return sdf.hopping_count_window(2, 1, name="w").agg(of=of).final()


def held_back(sdf: Any, of: Any) -> Any:
    return sdf.tumbling_window(10_000, name="w").agg(of=of).current().suppress(every=5_000)


def sent_early(sdf: Any, of: Any) -> Any:
    return (
        sdf.tumbling_window(60_000, name="w", before_update=lambda aggregated, *rest: len(aggregated["of"]) == 2)
        .agg(of=of)
        .final()
    )


#: For each kind of window: the event times of messages 0, 1, and so on. Then the results that later steps get, each as
#: the numbers of its messages.
KINDS: Mapping[Build, tuple[tuple[int, ...], list[list[int]]]] = {
    tumbling: ((0, 11_000, 22_000, 33_000, 44_000), [[0], [1], [2], [3]]),
    hopping: ((0, 11_000, 22_000, 33_000, 44_000), [[0], [1], [2], [3]]),
    sessions: ((0, 11_000, 22_000, 33_000, 44_000), [[0], [1], [2], [3]]),
    sliding: ((0, 11_000, 22_000, 33_000, 44_000), [[0], [1], [2], [3]]),
    counts: ((0, 1, 2, 3, 4, 5), [[0, 1], [2, 3], [4, 5]]),
    overlapping: ((0, 1, 2, 3, 4), [[0, 1], [1, 2], [2, 3], [3, 4]]),
    sent_early: ((0, 1, 2, 3, 4, 5, 6), [[0, 1], [2, 3], [4, 5]]),
}


def world() -> InMemoryCluster:
    cluster = InMemoryCluster()
    for topic in ("orders", "dead", "out", "also"):
        cluster.create_topic(topic)
    return cluster


def make(kind: Build, fails: Callable[[Any], bool], of: Any = None, **options: Any) -> Application:
    """An application with a window of this kind, and steps behind it that raise an error for some results.

    A result first changes state and is sent to a first topic. Then a step may raise. Behind this step is a second
    topic.
    """
    given = {"auto_offset_reset": "earliest", "loglevel": None, "dead_letter_topic": "dead"} | options
    app = Application("in-memory", consumer_group="g", **given)
    orders = app.dataframe(app.topic("orders"))

    def counted(value: Any, state: Any) -> Any:
        state.set("seen", (state.get("seen") or 0) + 1)
        return {**value, "seen": state.get("seen")}

    def broken(value: Any) -> Any:
        if fails(value):
            raise ValueError("an unlucky result")
        return value

    results = kind(orders, Collect("n") if of is None else of)
    results.apply(counted, stateful=True, store="s").to_topic(app.topic("out")).apply(broken).to_topic(
        app.topic("also")
    )
    orders.apply(lambda value: value["n"]).to_topic(app.topic("also"))
    return app


def produce(cluster: InMemoryCluster, times: tuple[int, ...], key: bytes = b"alice") -> None:
    for number, at in enumerate(times):
        cluster.produce("orders", json.dumps({"n": number}).encode(), key, timestamp_ms=BEGIN + at)


def values(cluster: InMemoryCluster, topic: str) -> list[Any]:
    return [json.loads(record.value or b"") for _, record in cluster.read(topic)]


@pytest.fixture(params=["generated", "plain"], autouse=True)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(task_module, "compile_run", plain_loop.loop_over)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_result_that_fails_is_put_aside_alone(kind: Build) -> None:
    """The second result fails in a step behind the window.

    Its state and outputs are undone, and its window stays closed. No message fails.
    """
    times, results = KINDS[kind]
    cluster, bad = world(), results[1]
    produce(cluster, times)
    cluster.run(make(kind, lambda value: value["of"] == bad))
    good = [each for each in results if each != bad]
    assert [value["of"] for value in values(cluster, "out")] == good
    assert [value["seen"] for value in values(cluster, "out")] == list(range(1, len(good) + 1))
    also = values(cluster, "also")
    assert [value for value in also if isinstance(value, int)] == list(range(len(times)))
    assert [value["of"] for value in also if not isinstance(value, int)] == good
    [(_, letter)] = cluster.read("dead")
    headers = dict(letter.headers or ())
    assert json.loads(letter.value or b"")["of"] == bad
    assert letter.key == b"alice"
    assert headers["holdfast.kind"] == b"result"
    assert headers["holdfast.error.type"] == b"ValueError"
    assert headers["holdfast.topic"] == b"orders"


#: All kinds of windows except ``sent_early``. Its function ``before_update`` gets each result while a message is
#: processed, so an error in the result fails the message.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not sent_early], ids=lambda kind: kind.__name__)
def test_a_result_that_can_not_be_computed_is_put_aside_alone(kind: Build) -> None:
    times, results = KINDS[kind]
    cluster = world()
    produce(cluster, times)
    cluster.run(make(kind, lambda value: False, Fragile(results[1])))
    assert [value["of"] for value in values(cluster, "out")] == [each for each in results if each != results[1]]
    assert [value for value in values(cluster, "also") if isinstance(value, int)] == list(range(len(times)))
    [(_, letter)] = cluster.read("dead")
    assert set(json.loads(letter.value or b"")) == {"start", "end"}
    assert dict(letter.headers or ())["holdfast.kind"] == b"result"


def test_a_result_that_was_held_back_is_put_aside_alone() -> None:
    """`suppress` holds a result back until a later message.

    A held result that fails does not affect the next held result. Message 2 causes the result of message 1 to be sent,
    and this result fails. The result of message 2 is still held back.
    """
    cluster = world()
    produce(cluster, (0, 1, 7_000, 14_000))
    cluster.run(make(held_back, lambda value: value["of"] == [0, 1]))
    assert [value["of"] for value in values(cluster, "out")] == [[0], [0, 1, 2]]
    assert [value["of"] for value in values(cluster, "dead")] == [[0, 1]]
    assert [value for value in values(cluster, "also") if isinstance(value, int)] == [0, 1, 2, 3]


def test_the_result_of_the_message_itself_fails_the_message() -> None:
    cluster = world()
    produce(cluster, (0, 1, 2))
    current = lambda sdf, of: sdf.tumbling_window(10_000, name="w").agg(of=of).current()  # noqa: E731
    cluster.run(make(current, lambda value: value["of"] == [0, 1]))
    assert [value["of"] for value in values(cluster, "out")] == [[0], [0, 2]]
    assert values(cluster, "dead") == [{"n": 1}]


def test_without_a_policy_the_worker_stops_and_the_window_closes_after_the_correction() -> None:
    cluster, times = world(), KINDS[tumbling][0]
    produce(cluster, times)
    with pytest.raises(ProcessingFailed, match=r"The result of the window of key b'alice'"):
        cluster.run(make(tumbling, lambda value: value["of"] == [1], dead_letter_topic=None))
    assert [value["of"] for value in values(cluster, "out")] == [[0]]
    assert [value for value in values(cluster, "also") if isinstance(value, int)] == [0, 1]
    cluster.run(make(tumbling, lambda value: False, dead_letter_topic=None))
    assert [value["of"] for value in values(cluster, "out")] == [[0], [1], [2], [3]]
    assert [value for value in values(cluster, "also") if isinstance(value, int)] == [0, 1, 2, 3, 4]


def test_a_callback_skips_the_result_alone() -> None:
    cluster, times, asked = world(), KINDS[tumbling][0], list[Any]()
    produce(cluster, times)

    def skip(error: Exception, message: Any, logger: Any) -> bool:
        asked.append((type(error).__name__, message.offset, json.loads(message.value)["of"]))
        return True

    cluster.run(make(tumbling, lambda value: value["of"] == [1], on_processing_error=skip))
    assert asked == [("ValueError", 2, [1])]
    assert values(cluster, "dead") == []
    assert [value["of"] for value in values(cluster, "out")] == [[0], [2], [3]]


def test_a_message_that_fails_itself_leaves_the_window_open() -> None:
    """Message 2 closes a window whose result fails, but then message 2 itself fails. So the window stays open.

    The next message of the key closes the window again, and the failed result becomes a dead letter once.
    """
    cluster, times = world(), KINDS[tumbling][0]
    produce(cluster, times)
    given = {"auto_offset_reset": "earliest", "loglevel": None, "dead_letter_topic": "dead"}
    app = Application("in-memory", consumer_group="g", **given)
    orders = app.dataframe(app.topic("orders"))
    closed = tumbling(orders, Collect("n"))
    closed.apply(lambda value: {**value, "odd": 1 // (value["of"] != [1])}).to_topic(app.topic("out"))
    orders.apply(lambda value: 1 // (value["n"] != 2)).to_topic(app.topic("also"))
    cluster.run(app)
    assert [value["of"] for value in values(cluster, "out")] == [[0], [3]]
    assert values(cluster, "dead") == [{"n": 2}, {"start": BEGIN + 10_000, "end": BEGIN + 20_000, "of": [1]}]


def test_if_the_policy_stops_at_the_second_result_the_first_is_not_put_aside_twice() -> None:
    """One message closes two windows, and both results fail. The first result must become a dead letter only once.

    For the second result, the callback ``on_processing_error`` raises and so stops the worker. After the restart, it
    returns.
    """
    cluster = world()
    produce(cluster, (0, 11_000, 60_000))
    produce(cluster, (0,), key=b"bob")
    hopping_5 = lambda sdf, of: sdf.hopping_window(10_000, 5_000, name="w").agg(of=of).final()  # noqa: E731
    asked = list[int]()

    def stops_once(error: Exception, message: Any, logger: Any) -> bool:
        asked.append(json.loads(message.value)["start"] - BEGIN)
        if len(asked) == 2:
            raise RuntimeError("no answer")
        return False

    app = make(hopping_5, lambda value: value["of"] == [1], on_processing_error=stops_once)
    with pytest.raises(ProcessingFailed, match="no answer"):
        cluster.run(app)
    assert values(cluster, "dead") == []
    cluster.run(make(hopping_5, lambda value: value["of"] == [1], on_processing_error=stops_once))
    assert asked == [5_000, 10_000, 5_000, 10_000]
    assert [value["start"] - BEGIN for value in values(cluster, "dead")] == [5_000, 10_000]


def test_what_a_failed_result_wrote_into_a_table_and_an_expiring_store_is_undone() -> None:
    """Messages read the table of results, and results count in a store whose values expire."""
    given = {"auto_offset_reset": "earliest", "loglevel": None, "dead_letter_topic": "dead"}
    cluster, app = world(), Application("in-memory", consumer_group="g", **given)
    produce(cluster, KINDS[tumbling][0])
    orders = app.dataframe(app.topic("orders"))
    closed = tumbling(orders, Collect("n"))

    def counted(value: Any, state: Any) -> Any:
        state.set("seen", (state.get("seen") or 0) + 1, ttl=timedelta(hours=1))
        return {**value, "seen": state.get("seen")}

    table = closed.apply(counted, stateful=True, store=app.store("s", ttl=timedelta(hours=1))).to_table("t")
    closed.apply(lambda value: 1 // (value["of"] != [1])).to_topic(app.topic("also"))
    orders.join_table(
        table, how="left", on_merge=lambda left, right: [left["n"], right and [right["of"], right["seen"]]]
    ).to_topic(app.topic("out"))
    cluster.run(app)
    assert values(cluster, "out") == [[0, None], [1, [[0], 1]], [2, [[0], 1]], [3, [[2], 2]], [4, [[3], 3]]]
    assert [value["of"] for value in values(cluster, "dead")] == [[1]]
