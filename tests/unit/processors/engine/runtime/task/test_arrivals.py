"""Messages that arrive late, fail or are in the wrong partition are counted, over restarts, rebalances and aborts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.records import NotedOffset, Partition
from holdfast.processors.engine.runtime.task.arrivals import NONE, RATE_MINUTES, Arrivals, Counts, Newest, together
from holdfast.processors.engine.runtime.task.failed_message import FailedMessage
from holdfast.processors.engine.runtime.task.noted_time import note_of, noted
from holdfast.processors.engine.runtime.task.task import Task

FAILED = FailedMessage(Partition("orders", 1), 7, b"k", b"v", 0, None, ValueError("odd"))


def feed(cluster: InMemoryCluster, numbers: list[int], *, step_ms: int = 1_000) -> None:
    cluster.create_topic("orders", 2)
    for number in numbers:
        value = json.dumps({"n": number}).encode()
        cluster.produce("orders", value, b"k", partition=1, timestamp_ms=1_000_000 + number * step_ms)


def refuse_odd(value: dict[str, int]) -> dict[str, int]:
    if value["n"] % 2:
        raise ValueError("odd")
    return value


def letters() -> Application:
    app = Application(consumer_group="shop", dead_letter_topic="shop-dead", auto_offset_reset="earliest")
    app.dataframe(app.topic("orders")).apply(refuse_odd).to_topic(app.topic("out"))
    return app


def skipping() -> Application:
    app = Application(consumer_group="shop", on_processing_error=lambda *_: True, auto_offset_reset="earliest")
    app.dataframe(app.topic("orders")).apply(refuse_odd).to_topic(app.topic("out"))
    return app


def windowed() -> Application:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    frame = app.dataframe(app.topic("orders")).tumbling_window(10_000, name="sums").count()
    frame.final().to_topic(app.topic("out"))
    return app


def counts_of(cluster: InMemoryCluster, number: int = 1) -> Counts:
    """The counts that the group's committed offset holds for one task."""
    offset = cluster._broker.group("shop").committed[Partition("orders", number)]
    return noted(f"orders-{number}", [offset]).arrivals


@pytest.mark.parametrize(
    ("declare", "numbers", "expected"),
    [
        (letters, [1, 2, 3], Counts(put_aside=2)),
        (skipping, [1, 2, 3], Counts(skipped=2)),
        (windowed, [100, 1, 2], Counts(late=2)),
    ],
)
def test_counts_go_on_in_the_next_owner(
    declare: Callable[[], Application], numbers: list[int], expected: Counts
) -> None:
    cluster = InMemoryCluster()
    feed(cluster, numbers)
    cluster.run(declare())
    first = counts_of(cluster)
    assert (first.late, first.put_aside, first.skipped) == (expected.late, expected.put_aside, expected.skipped)
    assert first.newest is not None
    feed(cluster, numbers)
    cluster.run(declare())
    again = counts_of(cluster)
    assert again.total >= 2 * expected.total
    assert again.newest is not None
    assert again.newest.at >= first.newest.at


def test_the_newest_reason_has_the_place_of_the_message() -> None:
    cluster = InMemoryCluster()
    feed(cluster, [1, 2, 3])
    cluster.run(letters())
    newest = counts_of(cluster).newest
    assert newest is not None
    assert (newest.kind, newest.reason) == ("put_aside", "ValueError at orders[1] offset 2")


def test_a_processor_whose_messages_arrive_notes_nothing() -> None:
    cluster = InMemoryCluster()
    feed(cluster, [2, 4])
    cluster.run(letters())
    assert all(type(each) is int for each in cluster._broker.group("shop").committed.values())


def test_work_that_is_dropped_is_counted_once() -> None:
    arrivals = Arrivals()
    arrivals.recall(Counts(late=1, put_aside=2))
    arrivals.failed(FAILED, put_aside=True)
    arrivals.restore()
    assert arrivals.counts() == Counts(late=1, put_aside=2)
    arrivals.failed(FAILED, put_aside=True)
    arrivals.failed(FAILED, put_aside=False)
    arrivals.committed(kept := arrivals.counts())
    arrivals.restore()
    assert arrivals.counts() == kept
    assert (kept.late, kept.put_aside, kept.skipped) == (1, 3, 1)


def test_late_messages_of_dropped_work_are_counted_once() -> None:
    class Windows:
        late: dict[str, int] = {"sums": 0}  # noqa: RUF012

    windows, arrivals = Windows(), Arrivals()
    arrivals.recall(Counts(late=5))
    arrivals.begin(windows, lambda: 60_000)
    windows.late["sums"] = 2
    assert arrivals.counts() == Counts(late=7, newest=Newest("late", "too late for store sums", 60.0))
    arrivals.restore()
    windows.late["sums"] = 4  # the same two messages are processed again, and no others
    assert arrivals.counts().late == 7


def test_the_rate_is_that_of_the_last_minutes() -> None:
    now = 100 * 60_000
    arrivals = Arrivals()
    arrivals.begin(None, lambda: now)
    for _ in range(20):
        arrivals.failed(FAILED, put_aside=True)
    arrivals.committed(arrivals.counts())
    assert arrivals.per_minute == 2.0
    now += RATE_MINUTES * 60_000
    assert arrivals.per_minute == 0.0


def test_counts_of_tasks_that_became_one_are_added() -> None:
    task = Task("a+b-0", "a+b", 0, ("a", "b"))
    one = NotedOffset(4, note_of(Task("a-0", "a", 0, ("a",)), Counts(late=2)))
    two = NotedOffset(9, note_of(Task("b-0", "b", 0, ("b",)), Counts(skipped=3, newest=Newest("skipped", "x", 1.0))))
    found = noted(task.name, [one, two])
    assert found.time is None
    assert found.arrivals == Counts(late=2, skipped=3, newest=Newest("skipped", "x", 1.0))
    assert noted(task.name, [one, one]).arrivals == Counts(late=2), "both inputs of one task have its note"
    assert noted(task.name, [4, None]).arrivals == NONE


def test_a_note_of_a_former_version_has_its_time_and_no_counts() -> None:
    found = noted("a-0", [NotedOffset(4, '{"task":"a-0","time_ms":12,"ahead":[]}')])
    assert found.time is not None
    assert (found.time.time_ms, found.arrivals) == (12, NONE)
    assert noted("a-0", [NotedOffset(4, "of another tool")]).arrivals == NONE


def test_the_newest_of_several_tasks_is_the_last_one() -> None:
    early, late = Newest("skipped", "a", 1.0), Newest("late", "b", 2.0)
    assert together([Counts(1, 1, 1, late), Counts(1, 0, 1, early), NONE]) == Counts(2, 1, 2, late)
