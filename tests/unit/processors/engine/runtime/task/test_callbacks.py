"""The callbacks of an application: the errors that each one gets, and the effect of a callback that returns True.

Each callback is called once for each message.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, ApplicationInvalid, Count, InMemoryCluster, ProcessingFailed
from holdfast.processors.engine.runtime.task.failure_policy import CallbackFailed

START = 1_700_000_000_000


def application(**given: Any) -> Application:
    return Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)


def fed(*values: bytes) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions=2)
    for at, value in enumerate(values):
        cluster.produce("in", value, f"k{at % 3}".encode(), partition=at % 2, timestamp_ms=START + at * 1000)
    return cluster


def results(cluster: InMemoryCluster, topic: str = "out") -> list[Any]:
    return sorted(json.loads(record.value or b"null") for _, record in cluster.read(topic))


def test_each_error_reaches_its_callback_first() -> None:
    calls: list[tuple[str, str]] = []

    def of(name: str, skips: bool) -> Any:
        def callback(error: Exception, message: Any, logger: Any) -> bool:
            calls.append((name, type(error).__name__))
            return skips

        return callback

    def step(value: Any, state: Any) -> Any:
        if value == 2:
            raise ValueError("no")
        if value == 3:
            # the record of a state value is too large, but it is no output, so the producer's callback is not called
            state.set("a", "x" * 2_000_000)
        return {1} if value == 4 else value

    cluster = fed(b"1", b"{no", b"2", b"3", b"4", b"5")
    app = application(
        on_processing_error=of("processing", True),
        on_consumer_error=of("consumer", False),
        on_producer_error=of("producer", True),
    )
    app.dataframe(app.topic("in")).apply(step, stateful=True, store="s").to_topic(app.topic("out"))
    cluster.run(app)
    assert sorted(calls) == [
        ("consumer", "ValueUnreadable"),
        ("processing", "RecordTooLarge"),
        ("processing", "ValueError"),
        ("processing", "ValueUnreadable"),
        ("producer", "ValueUnwritable"),
    ]
    assert results(cluster) == [1, 5]


def test_false_goes_on_to_the_dead_letters() -> None:
    cluster = fed(b"{no", b"1")
    app = application(on_consumer_error=lambda error, message, logger: None, dead_letter_topic="dead")
    app.dataframe(app.topic("in")).to_topic(app.topic("out"))
    cluster.run(app)
    assert [record.value for _, record in cluster.read("dead")] == [b"{no"]
    assert results(cluster) == [1]


def test_an_error_of_a_callback_stops_the_worker() -> None:
    def breaks(*given: Any) -> bool:
        raise KeyError("x")

    cluster = fed(b"{no", b"1")
    app = application(on_consumer_error=breaks)
    app.dataframe(app.topic("in")).to_topic(app.topic("out"))
    with pytest.raises(ProcessingFailed, match=r"`on_consumer_error` \(breaks\) raised KeyError") as failed:
        cluster.run(app)
    assert failed.value.action == "Correct `on_consumer_error`: True skips."


def test_a_change_of_a_group_is_not_skipped_by_a_callback() -> None:
    cluster = fed(b'{"g": "a", "n": 1}')
    app = application(on_processing_error=lambda *_: True, on_producer_error=lambda *_: True)
    table = app.table(app.topic("in"))
    groups = table.group_by("g").aggregate(n=Count())
    groups.to_stream().apply(lambda value: {1}).to_topic(app.topic("out"))
    with pytest.raises(ProcessingFailed, match="neither skipped nor put aside"):
        cluster.run(app)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("on_processing_error", lambda error: True),
        ("on_consumer_error", "skip"),
        ("on_producer_error", lambda: True),
        ("on_message_processed", lambda message: None),
    ],
)
def test_a_callback_with_other_arguments_is_refused(name: str, given: Any) -> None:
    with pytest.raises(ApplicationInvalid, match=f"`{name}` is .*; expected a function of ") as refused:
        application(**{name: given})
    assert refused.value.action.startswith("Write `def function(")


def test_an_async_callback_is_refused() -> None:
    async def skips(error: Any, message: Any, logger: Any) -> bool:
        return True

    with pytest.raises(ApplicationInvalid, match="`on_consumer_error` is async: skips"):
        application(on_consumer_error=skips)


def stateless(app: Application) -> None:
    app.dataframe(app.topic("in")).to_topic(app.topic("out"))


def columnar(app: Application) -> None:
    app.dataframe(app.topic("in")).aggregate({"n": Count()}, store="counts")


def windows(app: Application) -> None:
    app.dataframe(app.topic("in")).tumbling_window(timedelta(seconds=2)).count().final()


def several(app: Application) -> None:
    app.dataframe(app.topic("in")).concat(app.dataframe(app.topic("other"))).apply(
        lambda value, state: state.increment("n"), stateful=True, store="both"
    )


@pytest.mark.parametrize("steps", [stateless, columnar, windows, several])
def test_each_message_is_told_once(steps: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    cluster = fed(*(json.dumps(number).encode() for number in range(40)), b"{no")
    cluster.create_topic("other", partitions=2)
    cluster.produce("other", b"1", b"k0", timestamp_ms=START)
    app = application(on_message_processed=lambda *place: seen.append(place), dead_letter_topic="dead")
    steps(app)
    cluster.run(app)
    wanted = [("in", number % 2, number // 2) for number in range(41)]
    if steps is several:
        wanted += [
            (topic, partition, record.offset) for topic in ("other",) for partition, record in cluster.read(topic)
        ]
    assert sorted(seen) == sorted(wanted)


def test_messages_behind_group_by_are_told_and_watermarks_are_not() -> None:
    seen: list[tuple[str, int, int]] = []
    cluster = fed(*(json.dumps({"k": str(number % 2)}).encode() for number in range(6)))
    app = application(on_message_processed=lambda *place: seen.append(place))
    grouped = app.dataframe(app.topic("in")).group_by("k")
    grouped.tumbling_window(1_000, name="w").count().final().to_topic(app.topic("out"))
    cluster.run(app)
    own = cluster.read("g-k-repartition")
    messages = [("g-k-repartition", partition, record.offset) for partition, record in own if record.key is not None]
    assert len(messages) == 6 < len(own), (cluster.clock.monotonic(), seen, own)
    assert sorted(seen) == sorted([*(("in", number % 2, number // 2) for number in range(6)), *messages])


def test_an_error_behind_a_message_stops_the_worker_and_the_message_stays_done() -> None:
    seen: list[int] = []

    def breaks(topic: str, partition: int, offset: int) -> None:
        seen.append(offset)
        if len(seen) == 3:
            raise OSError("full")

    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in range(5):
        cluster.produce("in", json.dumps(number).encode(), b"k")
    app = application(on_message_processed=breaks)
    stateless(app)
    with pytest.raises(CallbackFailed, match=r"raised OSError: full\. The message at in\[0\] offset 2 is processed"):
        cluster.run(app)
    assert results(cluster) == [0, 1, 2]
    app = application(on_message_processed=breaks)
    stateless(app)
    cluster.run(app)
    assert seen == results(cluster) == [0, 1, 2, 3, 4]
