"""Values that are nested deeply: each message comes out whole or is a dead letter, and all others are processed.

The depth at which Python's recursion limit ends a format differs between versions of Python. A value of 1,000 levels
may come out whole or fail; a value of 100,000 levels fails.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import struct_pb2

from holdfast import (
    Application,
    AvroDeserializer,
    AvroSerializer,
    InMemoryCluster,
    JSONDeserializer,
    JSONSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistryClientConfig,
)

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"], "default": None}]}
ANY_DEPTH = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Node",
    "type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
}
REGISTRY = SchemaRegistryClientConfig(url="mock://deep-values")


def nested(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = {"next": value}
    return value


def depth_of(value: Any) -> int:
    depth = 0
    while value is not None:
        value, depth = value["next"], depth + 1
    return depth


def as_json(levels: int) -> bytes:
    return b'{"next":' * levels + b"null" + b"}" * levels


def as_msgpack(levels: int) -> bytes:
    return b"\x81\xa4next" * levels + b"\xc0"


def as_avro(levels: int) -> bytes:
    return b"\x02" * (levels - 1) + b"\x00"


def as_protobuf(levels: int) -> bytes:
    """A message of type Struct, inside of Struct, and so on. The library refuses more than 100 levels."""
    raw = b""
    for _ in range(min(levels, 1_000)):
        value = b"\x2a" + _length(raw) + raw
        entry = b"\x0a\x04next\x12" + _length(value) + value
        raw = b"\x0a" + _length(entry) + entry
    return raw


def _length(raw: bytes) -> bytes:
    made, number = bytearray(), len(raw)
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


class World:
    """A cluster, and an application that applies a function to each message."""

    def __init__(self, reader: Any, writer: Any, function: Any) -> None:
        self.cluster = InMemoryCluster()
        for topic in ("in", "out", "dead"):
            self.cluster.create_topic(topic)
        self.app = Application(
            consumer_group="deep", auto_offset_reset="earliest", dead_letter_topic="dead", loglevel=None
        )
        source = self.app.topic("in", value_deserializer=reader)
        self.app.dataframe(source).apply(function).to_topic(self.app.topic("out", value_serializer=writer))

    def run(self, *values: bytes) -> list[bytes | None]:
        for value in values:
            self.cluster.produce("in", value, b"k")
        self.cluster.run(self.app)
        return self.values("out")

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for _, record in self.cluster.read(topic)]

    def headers(self, name: str) -> list[str]:
        return [dict(each.headers or ())[f"holdfast.{name}"].decode() for _, each in self.cluster.read("dead")]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("reader", "form"),
    [
        (lambda: "json", as_json),
        (lambda: "msgpack", as_msgpack),
        (lambda: AvroDeserializer(NODE), as_avro),
        pytest.param(lambda: JSONDeserializer(ANY_DEPTH), as_json, marks=pytest.mark.slow),
        (lambda: ProtobufDeserializer(struct_pb2.Struct), as_protobuf),
    ],
    ids=["json", "msgpack", "avro", "json-schema", "protobuf"],
)
@pytest.mark.parametrize("levels", [1_000, 100_000])
def test_a_message_that_is_nested_deeply_is_read_whole_or_a_dead_letter(reader: Any, form: Any, levels: int) -> None:
    seen: list[Any] = []

    def noted(value: Any) -> int:
        seen.append(value)
        return 1

    world = World(made := reader(), "json", noted)
    deep = form(levels)
    outputs = world.run(form(2), deep, form(3))
    dead = world.values("dead")
    assert len(outputs) + len(dead) == 3
    assert dead in ([], [deep])
    assert levels < 100_000 or dead == [deep]
    if not isinstance(made, ProtobufDeserializer):
        assert [depth_of(value) for value in seen] == [2, *([] if dead else [levels]), 3]
    assert all("can't be read" in reason for reason in world.headers("error"))


@pytest.mark.parametrize(
    "writer",
    [
        lambda: "json",
        lambda: "msgpack",
        lambda: AvroSerializer(NODE),
        pytest.param(lambda: JSONSerializer(ANY_DEPTH), marks=pytest.mark.slow),
        lambda: ProtobufSerializer(struct_pb2.Struct),
        lambda: AvroSerializer(NODE, schema_registry_client_config=REGISTRY),
        pytest.param(lambda: JSONSerializer(ANY_DEPTH, schema_registry_client_config=REGISTRY), marks=pytest.mark.slow),
        lambda: ProtobufSerializer(struct_pb2.Struct, schema_registry_client_config=REGISTRY),
    ],
    ids=["json", "msgpack", "avro", "json-schema", "protobuf", "avro-id", "json-schema-id", "protobuf-id"],
)
def test_a_result_that_is_nested_too_deeply_fails_its_message_alone(writer: Any) -> None:
    world = World("json", writer(), lambda levels: nested(levels))
    assert len(world.run(b"2", b"100000", b"3")) == 2
    assert world.values("dead") == [b"100000"]
    (reason,) = world.headers("error")
    assert reason.startswith("A value of type dict can't be written to topic out: ")
    assert world.headers("error.action") == ["Write a value that is nested less deeply."]


def test_a_deep_value_of_msgpack_is_written_as_equal_json() -> None:
    """Levels that all versions of Python read come through both formats unchanged."""
    world = World("msgpack", "json", lambda value: value)
    (raw,) = world.run(as_msgpack(500))
    assert json.loads(raw or b"") == nested(500)
