"""``message_context()`` returns the message's topic, partition and offset; without a message it is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, Context, InMemoryCluster, message_context
from holdfast.context import MessageContextNotSetError
from tests.window_apps import T, build, send


def placed(value: Any, *rest: Any) -> Any:
    here = message_context()
    return {"n": value, "at": [here.topic, here.partition, here.offset]}


def places(cluster: InMemoryCluster, topic: str) -> dict[int, list[Any]]:
    return {json.loads(record.value or b""): [topic, number, record.offset] for number, record in cluster.read(topic)}


def found(cluster: InMemoryCluster) -> dict[int, list[Any]]:
    return {each["n"]: each["at"] for _, record in cluster.read("out") for each in [json.loads(record.value or b"")]}


@pytest.mark.parametrize("stateful", [False, True])
def test_each_message_has_its_place(stateful: bool) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 3)
    for number in range(30):
        send(cluster, number, number, b"k%d" % (number % 7))
    cluster.run(build(lambda sdf: sdf.apply(placed, stateful=stateful)))
    assert found(cluster) == places(cluster, "in")


def test_two_inputs_of_one_task_and_behind_async_calls() -> None:
    async def awaited(value: Any) -> Any:
        return value

    cluster = InMemoryCluster()
    for topic in ("a", "b", "c"):
        cluster.create_topic(topic, 2)
    for number in range(30):
        topic = "abc"[number % 3]
        cluster.produce(topic, json.dumps(number).encode(), b"k%d" % (number % 5), timestamp_ms=T + number)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    out = app.topic("out")
    one, two = app.dataframe(app.topic("a")), app.dataframe(app.topic("b"))
    one.concat(two).apply(placed, stateful=True).to_topic(out)
    app.dataframe(app.topic("c")).apply_async(awaited).apply(placed).to_topic(out)
    cluster.run(app)
    assert found(cluster) == places(cluster, "a") | places(cluster, "b") | places(cluster, "c")


def test_before_an_async_call_a_message_has_its_place() -> None:
    async def awaited(value: Any) -> Any:
        return value

    cluster = InMemoryCluster()
    cluster.create_topic("in", 2)
    for number in range(30):
        send(cluster, number, number, b"k%d" % (number % 7))
    cluster.run(build(lambda sdf: sdf.apply(placed).apply_async(awaited)))
    assert found(cluster) == places(cluster, "in")


def test_a_failed_message_does_not_shift_the_places_of_others() -> None:
    def fails(value: Any) -> Any:
        if value % 5 == 2:
            raise ValueError(value)
        return placed(value)

    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in range(20):
        send(cluster, number, number)
    cluster.run(build(lambda sdf: sdf.apply(fails), on_processing_error=lambda error, message, logger: True))
    assert found(cluster) == {number: place for number, place in places(cluster, "in").items() if number % 5 != 2}


def test_without_a_message_it_is_refused() -> None:
    with pytest.raises(MessageContextNotSetError, match="no message is processed"):
        message_context()

    class Timed:
        def on_message(self, value: Any, context: Context) -> None:
            context.emit(message_context().offset)
            context.set_timer(f"t{context.timestamp}", context.timestamp + 5)

        def on_timer(self, name: str, time: int, context: Context) -> None:
            with pytest.raises(MessageContextNotSetError):
                message_context()
            context.emit("timer")

    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in range(3):
        send(cluster, 10 * number, number)
    cluster.run(build(lambda sdf: sdf.process(Timed)))
    made = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert [each for each in made if each != "timer"] == [0, 1, 2]
    assert "timer" in made
