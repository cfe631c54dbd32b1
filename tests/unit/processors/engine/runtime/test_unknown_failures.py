"""Nothing is committed after an exception that the worker does not know.

A serializer's error fails its own message only.
"""

import json
from typing import Any

import pytest

from holdfast import Application
from holdfast.infra.kafka.errors import KafkaFailed, TransactionAborted
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.testing import InMemoryCluster
from holdfast.processors.testing.network import Fate, Network
from holdfast.processors.testing.producer import ClientRaised, InMemoryProducer


def count(value: Any, state: Any) -> dict[str, int]:
    state.set("n", state.get("n", 0) + 1)
    return {"n": state.get("n")}


def build(guarantee: str = "exactly-once", key: Any = None, **options: Any) -> Application:
    app = Application(
        consumer_group="p",
        auto_offset_reset="earliest",
        loglevel=None,
        processing_guarantee=guarantee,
        commit_every=100,
    )
    app.dataframe(app.topic("in")).apply(count, stateful=True, store="counts").to_topic(
        app.topic("out", **options), key=key
    )
    return app


def fed(count: int, network: Network | None = None) -> InMemoryCluster:
    cluster = InMemoryCluster(network=network)
    cluster.create_topic("in")
    for _ in range(count):
        cluster.produce("in", b"{}", b"k")
    return cluster


class RaisingOnce(Network):
    """The client library raises one error while the first outputs are sent."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1

    def fate(self, process: str, request: str) -> Fate:
        if request == "queue" and self.left:
            self.left -= 1
            return Fate.RAISES
        return Fate.OK


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_an_unknown_exception_between_outputs_commits_nothing(guarantee: str) -> None:
    cluster = fed(6, RaisingOnce())
    with pytest.raises(ClientRaised):
        cluster.run(build(guarantee))
    assert cluster.committed_offsets("p").get(Partition("in", 0)) in (None, 0)
    assert cluster.state(build(), "counts") == {}
    cluster.run(build(guarantee))
    assert cluster.state(build(), "counts") == {(b"k", "n"): 6}
    values = [json.loads(record.value or b"")["n"] for _, record in cluster.read("out")]
    assert sorted(set(values)) == [1, 2, 3, 4, 5, 6]
    assert guarantee == "at-least-once" or values == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("make", [bytearray, memoryview, bytes, bytes.decode], ids=lambda make: make.__name__)
def test_a_serializer_may_return_a_text_or_any_bytes(make: Any) -> None:
    cluster = fed(2)
    cluster.run(
        build(
            value_serializer=lambda value: make(json.dumps(value).encode()),
            key=lambda value: value["n"],
            key_serializer=lambda made: make(b"%d" % made),
        )
    )
    assert [(record.key, record.value) for _, record in cluster.read("out")] == [
        (b"1", b'{"n": 1}'),
        (b"2", b'{"n": 2}'),
    ]


BAD = {
    "a lone surrogate": lambda value: "\ud800" if value["n"] == 3 else "v",
    "a number": lambda value: value["n"] if value["n"] == 3 else "v",
    "nothing": lambda value: None if value["n"] == 3 else "v",
    "an error of its own": lambda value: {}["no such key"] if value["n"] == 3 else "v",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("part", ["value", "key"])
def test_what_a_serializer_can_not_give_fails_its_message_alone(bad: str, part: str) -> None:
    options: dict[str, Any] = {f"{part}_serializer": BAD[bad]}
    cluster = fed(5)
    with pytest.raises(ProcessingFailed, match=r"in\[0\] offset 2"):
        cluster.run(build(key=(lambda value: value) if part == "key" else None, **options))
    assert cluster.committed_offsets("p") == {Partition("in", 0): 2}
    assert cluster.state(build(), "counts") == {(b"k", "n"): 2}
    assert len(list(cluster.read("out"))) == 2


def test_a_producer_that_cannot_abort_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output topic was missing for a moment, so the transaction never began, and Kafka refuses to abort it."""
    refusals = [KafkaFailed("INVALID_TXN_STATE", action="-")]
    aborting, sending = InMemoryProducer.abort, InMemoryProducer.send_offsets

    def send_offsets(self: InMemoryProducer, *of: Any) -> None:
        if refusals:
            raise TransactionAborted("UNKNOWN_TOPIC_OR_PART", action="-")
        sending(self, *of)

    def abort(self: InMemoryProducer) -> None:
        if refusals:
            raise refusals.pop()
        aborting(self)

    monkeypatch.setattr(InMemoryProducer, "send_offsets", send_offsets)
    monkeypatch.setattr(InMemoryProducer, "abort", abort)
    cluster = fed(3)
    cluster.run(build())
    assert [json.loads(record.value or b"")["n"] for _, record in cluster.read("out")] == [1, 2, 3]
    assert cluster.state(build(), "counts") == {(b"k", "n"): 3}
