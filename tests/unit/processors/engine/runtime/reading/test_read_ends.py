"""The end of an input is valid only if it was fetched after the input's last pause, resume, seek or assignment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, Count, InMemoryCluster
from holdfast.infra.kafka.clients.read_ends import ReadEnds
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.reading import reading_order

PLACE = Partition("t", 0)


def test_only_an_answer_behind_the_start_makes_an_end_count() -> None:
    ends = ReadEnds()
    assert not ends.is_ended(PLACE, 5, 5)
    ends.came(PLACE)
    assert ends.is_ended(PLACE, 5, 5)
    assert not ends.is_ended(PLACE, 4, 5)
    assert not ends.is_ended(PLACE, None, 5)
    assert not ends.is_ended(PLACE, 5, None)
    ends.begin([PLACE])
    assert not ends.is_ended(PLACE, 5, 5)
    ends.told(PLACE, 5)
    assert ends.is_ended(PLACE, 4, 5)  # the offset between the position and the end offset holds no record
    ends.begin([PLACE])
    ends.came(PLACE)
    assert not ends.is_ended(PLACE, 4, 5)


def world(**topics: int) -> InMemoryCluster:
    cluster = InMemoryCluster()
    for topic, partitions in topics.items():
        cluster.create_topic(topic, partitions=partitions)
    return cluster


def feed(cluster: InMemoryCluster, topic: str, *messages: tuple[int, Any]) -> None:
    for time_ms, value in messages:
        cluster.produce(topic, json.dumps(value).encode(), b"k", timestamp_ms=time_ms)


def joined(state_dir: Path, left: str, right: str, how: str, **options: Any) -> Application:
    app = Application(
        "in-memory",
        consumer_group="p",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        **options,
    )
    orders, prices = app.dataframe(app.topic(left)), app.dataframe(app.topic(right))
    made = orders.join_asof(prices) if how == "as of" else orders.join_table(prices.to_table("t"))
    made.to_topic(app.topic("out"))
    return app


def until(worker: Any, reached: Callable[[], Any]) -> Any:
    """Let the worker run, with simulated time, until the condition holds."""
    worker.maintenance.errand = None  # this generator is the worker's command; it must run only once
    worker.maintenance.waits = True
    while not reached():
        yield
    worker.maintenance.waits = False


def committed(worker: Any) -> int:
    """How many messages the tasks have committed."""
    return sum(sum(task.committed.values()) for task in worker.assignment.tasks)


def interrupted(cluster: InMemoryCluster, app: Application, stop: str, meanwhile: Callable[[], None]) -> None:
    """Run the application. After two committed messages it stops reading, and ``meanwhile`` writes more messages."""

    def errand(worker: Any, ticket: Any) -> Any:
        yield from until(worker, lambda: worker.assignment.tasks and committed(worker) >= 2)
        if stop == "a pause":
            worker.pause()
            meanwhile()
            yield
            worker.resume()
        elif stop == "a rebalance":
            cluster.rebalance("p")
            meanwhile()
        else:
            worker.commit_all()
            meanwhile()
            worker.seek(worker.assignment.tasks)
        yield
        return {}

    app._errand = errand
    cluster.run(app)


@pytest.mark.parametrize("how", ["as of", "table"])
@pytest.mark.parametrize("stop", ["a pause", "a rebalance", "a seek"])
@pytest.mark.parametrize(("left", "right"), [("l", "r"), ("r", "l")], ids=["left side first", "right side first"])
def test_rows_are_those_of_the_time_though_one_side_is_read_again_before_the_other(
    tmp_path: Path, how: str, stop: str, left: str, right: str
) -> None:
    cluster = world(**{left: 1, right: 1})

    def others_write() -> None:
        feed(cluster, left, *((number, {"a": number}) for number in range(11, 200, 2)))
        feed(cluster, right, *((number, {"b": number}) for number in range(10, 200, 2)))

    feed(cluster, right, (1, {"b": 1}))
    feed(cluster, left, (2, {"a": 2}))
    interrupted(cluster, joined(tmp_path, left, right, how), stop, others_write)
    rows = [json.loads(record.value or b"null") for _, record in cluster.read("out")]
    assert rows == [{"a": 2, "b": 1}, *({"a": number, "b": number - 1} for number in range(11, 200, 2))]


@pytest.mark.parametrize("how", ["as of", "table"])
def test_an_input_that_was_paused_because_its_buffer_was_full_is_at_no_end_until_it_is_read_again(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_order, "BUFFERED_MAX", 10)
    cluster = world(l=1, r=1)
    feed(cluster, "r", *((number, {"b": number}) for number in range(1, 20)))
    feed(cluster, "l", (2, {"a": 2}))
    awaited = cluster.open_foreign_transaction("l", 0, [(b"k", b"{}")])
    app = joined(tmp_path, "l", "r", how)

    def errand(worker: Any, ticket: Any) -> Any:
        yield from until(worker, lambda: worker.assignment.ordered and worker.assignment.ordered[0].order.paused)
        for side, name in (("r", "b"), ("l", "a")):
            feed(cluster, side, *((number, {name: number}) for number in range(20, 200)))
        awaited.abort()
        return {}

    app._errand = errand
    cluster.run(app)
    rows = [json.loads(record.value or b"null") for _, record in cluster.read("out")]
    assert rows == [{"a": 2, "b": 2}, *({"a": number, "b": number} for number in range(20, 200))]


def test_windows_behind_group_by_lose_nothing_over_a_pause(tmp_path: Path) -> None:
    """A task must not report an end offset of its input from before a pause.

    Otherwise newer messages would close windows too early.
    """
    cluster = world(**{"in": 2})
    app = Application(
        "in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, state_dir=tmp_path, commit_every=5
    )
    by_group = app.dataframe(app.topic("in")).group_by("g")
    by_group.tumbling_window(10).agg(n=Count()).final().to_topic(app.topic("out"))

    def others_write() -> None:
        for partition in (0, 1):
            for at in range(10, 400):
                cluster.produce("in", b'{"g": "a"}', b"k", partition=partition, timestamp_ms=at)

    for partition in (0, 1):
        cluster.produce("in", b'{"g": "a"}', b"k", partition=partition, timestamp_ms=1)
    interrupted(cluster, app, "a pause", others_write)
    results = [json.loads(record.value or b"null") for _, record in cluster.read("out")]
    assert {each["start"]: each["n"] for each in results} == {0: 2} | dict.fromkeys(range(10, 390, 10), 20)
