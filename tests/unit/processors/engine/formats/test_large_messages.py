"""Messages of 10 MB: what is read, what the size limit of a record stops, and that nothing is lost or counted twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import Application, InMemoryCluster, ProcessingFailed
from holdfast.infra.errors import HoldfastError

SIZE = 10_000_000
pytestmark = pytest.mark.slow


class Order(msgspec.Struct):
    id: int
    note: str = ""


def order(number: int, size: int = 1) -> bytes:
    return json.dumps({"id": number, "note": "x" * size}).encode()


class World:
    """A cluster whose application counts the messages of a key and sends on the messages."""

    def __init__(self, model: Any, result: Callable[[Any], Any] = lambda value: value) -> None:
        self.cluster, self.model, self.result = InMemoryCluster(), model, result
        self.counts: list[int] = []
        for topic in ("in", "out", "dead"):
            self.cluster.create_topic(topic)

    def run(self, **options: Any) -> None:
        app = Application(
            consumer_group="large", auto_offset_reset="earliest", dead_letter_topic="dead", loglevel=None, **options
        )

        def counted(value: Any, state: Any) -> Any:
            state.set("n", state.get("n", 0) + 1)
            self.counts.append(state.get("n"))
            return self.result(value)

        typed = {} if self.model is None else {"value": self.model}
        frame = app.dataframe(app.topic("in", **typed)).apply(counted, stateful=True, store="counts")
        frame.to_topic(app.topic("out", **(typed if self.result(1) == 1 else {})))
        self.app = app
        self.cluster.run(app)

    def send(self, *values: bytes) -> None:
        for value in values:
            self.cluster.produce("in", value, b"k")

    def values(self, topic: str) -> list[bytes]:
        return [record.value or b"" for _, record in self.cluster.read(topic)]


def with_larger_records(failed: HoldfastError) -> dict[str, Any]:
    """The options of the application after the edit that the error names."""
    assert "`message.max.bytes` in `producer_extra_config`" in failed.action
    return {"producer_extra_config": {"message.max.bytes": SIZE + 1_000_000}}


both = pytest.mark.parametrize("model", [None, Order], ids=["untyped", "typed"])


@both
def test_a_large_message_with_a_small_result_needs_no_setting(model: Any) -> None:
    world = World(model, lambda value: 7)
    world.send(order(1), order(2, SIZE), order(3))
    world.run()
    assert (world.values("out"), world.values("dead"), world.counts) == ([b"7"] * 3, [], [1, 2, 3])


@both
def test_an_output_of_10_mb_stops_the_worker_in_front_of_its_message_until_records_may_be_larger(model: Any) -> None:
    world = World(model)
    world.send(order(1), order(2, SIZE), order(3))
    with pytest.raises(ProcessingFailed, match=r"An output has 10,000,0\d\d bytes with its key") as failed:
        world.run()
    assert "The dead letter, with its reasons in headers, has 10,000," in failed.value.message
    assert ([json.loads(each)["id"] for each in world.values("out")], world.values("dead")) == ([1], [])
    world.run(**with_larger_records(failed.value))
    outputs = [json.loads(each) for each in world.values("out")]
    assert [(each["id"], len(each["note"])) for each in outputs] == [(1, 1), (2, SIZE), (3, 1)]
    assert world.values("dead") == []
    assert world.cluster.state(world.app, "counts") == {(b"k", "n"): 3}


@both
def test_a_message_of_10_mb_that_cannot_be_read_stops_the_worker_until_a_dead_letter_may_be_as_large(
    model: Any,
) -> None:
    world = World(model)
    broken = order(2, SIZE)[:-1]
    world.send(order(1), broken, order(3))
    with pytest.raises(ProcessingFailed, match="can't be read") as failed:
        world.run()
    assert (len(world.values("out")), world.values("dead")) == (1, [])
    world.run(**with_larger_records(failed.value))
    assert [json.loads(each)["id"] for each in world.values("out")] == [1, 3]
    assert world.values("dead") == [broken]
    assert world.cluster.state(world.app, "counts") == {(b"k", "n"): 2}
