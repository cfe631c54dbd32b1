"""``topic.serialize`` and ``topic.deserialize`` outside of streams use the same bytes as streams, for key and value."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import InMemoryCluster, Topic
from holdfast.models import KafkaMessage
from holdfast.processors.engine.formats.serialization import ValueUnreadable, ValueUnwritable


class LibraryMessage:
    """A message like those of confluent-kafka: its parts are methods."""

    def key(self) -> bytes:
        return b"ann"

    def value(self) -> bytes:
        return b'{"n":1}'

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h", b"1")]

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_690_000_000_000)


def topic(**formats: Any) -> Topic:
    return Topic("orders", **formats)


def test_what_is_serialized_is_deserialized() -> None:
    orders = topic(key_serializer="str", key_deserializer="str")
    made = orders.serialize(key="ann", value={"n": 1}, headers={"h": "1", "none": None}, timestamp_ms=7)
    assert made == KafkaMessage(b"ann", b'{"n":1}', [("h", b"1"), ("none", None)], 7)
    assert orders.deserialize(made) == KafkaMessage("ann", {"n": 1}, [("h", b"1"), ("none", None)], 7)


def test_none_stays_none_on_both_sides() -> None:
    assert topic().serialize() == KafkaMessage(None, None)
    assert topic().deserialize(KafkaMessage(None, None)) == KafkaMessage(None, None)


def test_a_message_of_the_library_and_a_record_of_the_cluster_in_memory_are_read() -> None:
    wanted = KafkaMessage("ann", {"n": 1}, [("h", b"1")], 1_690_000_000_000)
    orders = topic(key_deserializer="str")
    assert orders.deserialize(LibraryMessage()) == wanted
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    cluster.produce("orders", b'{"n":1}', b"ann", timestamp_ms=1_690_000_000_000, headers=[("h", b"1")])
    [(_, record)] = cluster.read("orders")
    assert orders.deserialize(record) == wanted


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"value": {1, 2}}, "A value of type set can't be written to topic orders"),
        ({"value": float("nan")}, "A value of type float can't be written"),
        ({"key": 5}, "A key of type int can't be written to topic orders: expected bytes"),
        ({"headers": {"h": 5}}, "headers .* can't be written to topic orders"),
    ],
)
def test_what_can_not_be_written_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueUnwritable, match=told):
        topic().serialize(**given)


def test_what_can_not_be_read_is_named_with_its_bytes() -> None:
    with pytest.raises(ValueUnreadable, match=r"The value of a message of topic orders can't be read: .*b'{\"n'"):
        topic().deserialize(KafkaMessage(b"k", b'{"n'))
    with pytest.raises(ValueUnreadable, match="The key of a message"):
        topic(key_deserializer="long").deserialize(KafkaMessage(b"k", b"{}"))
