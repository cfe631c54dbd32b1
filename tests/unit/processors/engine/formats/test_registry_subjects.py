"""A registry whose schemas were deleted, whose subject has another format, and whose schemas refer to others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirWriter
from confluent_kafka.serialization import SerializationContext

from holdfast import (
    Application,
    AvroDeserializer,
    AvroSerializer,
    InMemoryCluster,
    JSONDeserializer,
    JSONSerializer,
    ProcessingFailed,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistryClientConfig,
    SchemaRegistrySerializationConfig,
)
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.schemas.registry import Registries
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings
from tests.parts.protobuf_messages import Invoice

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "n", "type": "string"}]}
DRAFT = "http://json-schema.org/draft-07/schema#"
LATEST = SchemaRegistrySerializationConfig(auto_register_schemas=False, use_latest_version=True)


class World:
    """A cluster with topics `in`, `out` and `dead`, and a schema registry in memory."""

    def __init__(self, registry: str) -> None:
        self.config = SchemaRegistryClientConfig(url=f"mock://subjects-{registry}")
        self.client: Any = Registries(SchemaRegistrySettings()).client(self.config)
        self.cluster = InMemoryCluster()
        for topic in ("in", "out", "dead"):
            self.cluster.create_topic(topic)

    def run(self, reader: Any, writer: Any, function: Callable[[Any], Any], *messages: bytes) -> list[bytes | None]:
        for message in messages:
            self.cluster.produce("in", message, b"k")
        app = Application(
            consumer_group="subjects", auto_offset_reset="earliest", dead_letter_topic="dead", loglevel=None
        )
        source = app.topic("in", value_deserializer=reader)
        app.dataframe(source).apply(function).to_topic(app.topic("out", value_serializer=writer))
        self.cluster.run(app)
        return self.values("out")

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for _, record in self.cluster.read(topic)]

    def errors(self) -> list[str]:
        return [dict(each.headers or ())["holdfast.error"].decode() for _, each in self.cluster.read("dead")]  # type: ignore[union-attr]


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    return World(request.node.name.replace("[", "-").rstrip("]"))


def where(topic: str) -> SerializationContext:
    return SerializationContext(topic, "value")


def test_a_message_whose_schema_was_deleted_is_a_dead_letter_that_says_so(world: World) -> None:
    def written(schema: Any, value: Any, topic: str) -> Any:
        return AvroSerializer(schema, schema_registry_client_config=world.config)(value, where(topic))

    order, other = written(ORDER, {"id": 1}, "in"), written(OTHER, {"n": "a"}, "others")
    seen: list[Any] = []

    def deleting(value: Any) -> Any:
        if not seen:
            for subject in ("in-value", "others-value"):
                world.client.delete_subject(subject)
                world.client.delete_subject(subject, permanent=True)
        seen.append(value)
        return value

    reader = AvroDeserializer(schema_registry_client_config=world.config)
    world.run(reader, "json", deleting, order)
    # A new worker has no schema in its cache.
    outputs = world.run(AvroDeserializer(schema_registry_client_config=world.config), "json", deleting, order, other)
    assert seen == [{"id": 1}]
    assert [json.loads(each or b"") for each in outputs] == [{"id": 1}]
    assert world.values("dead") == [order, other]
    assert all("the schema registry knows no such schema (HTTP status 404" in each for each in world.errors())


def test_a_worker_reads_schemas_that_it_knows_after_they_were_deleted(world: World) -> None:
    order = AvroSerializer(ORDER, schema_registry_client_config=world.config)({"id": 1}, where("in"))
    reader = AvroDeserializer(schema_registry_client_config=world.config)
    assert reader(order, where("in")) == {"id": 1}
    world.client.delete_subject("in-value")
    world.client.delete_subject("in-value", permanent=True)
    assert reader(order, where("in")) == {"id": 1}


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_a_subject_with_another_format_stops_the_writer_and_blames_no_message(world: World, kind: str) -> None:
    text = (
        '{"title": "n", "type": "object"}' if kind == "JSON" else 'syntax = "proto3"; message Order { int64 id = 1; }'
    )
    world.client.register_schema("out-value", Schema(text, kind))

    def writer() -> AvroSerializer:
        return AvroSerializer(
            ORDER, schema_registry_client_config=world.config, schema_registry_serialization_config=LATEST
        )

    with pytest.raises(ProcessingFailed, match=f"subject out-value is of format {kind}, expected AVRO") as failed:
        world.run("json", writer(), lambda value: value, b'{"id": 1}', b'{"id": 2}')
    assert (failed.value.exit_code, failed.value.cause) == (EXIT_BAD_CONFIGURATION, "bad-configuration")
    assert (world.values("out"), world.values("dead")) == ([], [])
    assert "Register a schema of format AVRO for subject out-value" in failed.value.action
    world.client.register_schema("out-value", Schema(json.dumps(ORDER), "AVRO"))
    assert len(world.run("json", writer(), lambda value: value)) == 2
    assert world.values("dead") == []


@pytest.mark.slow
def test_a_json_schema_that_refers_to_another_one_reads_writes_and_refuses(world: World) -> None:
    money = {"$schema": DRAFT, "$id": "http://shop/money.json", "title": "Money", "type": "object"}
    money["properties"] = {"cents": {"type": "integer"}}  # type: ignore[assignment]
    bill = {"$schema": DRAFT, "$id": "http://shop/bill.json", "title": "Bill", "type": "object"}
    bill["properties"] = {"total": {"$ref": "money.json"}}  # type: ignore[assignment]
    world.client.register_schema("money", Schema(json.dumps(money), "JSON"))
    schema = Schema(json.dumps(bill), "JSON", [SchemaReference("http://shop/money.json", "money", 1)])
    writer = JSONSerializer(schema, schema_registry_client_config=world.config)
    good, bad = {"total": {"cents": 5}}, {"total": {"cents": "five"}}
    raw = writer(good, where("in"))
    messages = raw, raw[:5] + json.dumps(bad).encode()
    for reader_schema in (None, schema):
        reader = JSONDeserializer(reader_schema, schema_registry_client_config=world.config)
        outputs = world.run(reader, writer, lambda value: value, *messages)
        read = JSONDeserializer(schema_registry_client_config=world.config)
        assert [read(each, where("out")) for each in outputs][-1] == good
    assert world.values("dead") == [messages[1]] * 2
    assert all("`$.total.cents`" in each for each in world.errors())
    world.run("json", writer, lambda value: value, json.dumps(bad).encode(), json.dumps(good).encode())
    assert world.values("dead")[2:] == [json.dumps(bad).encode()]
    assert len(world.values("out")) == 3


def test_protobuf_that_imports_another_file_registers_it_and_is_read(world: World) -> None:
    invoice = Invoice(number=7)
    invoice.total.cents = 1 << 40
    theirs = TheirWriter(Invoice, world.client._client, {"use.deprecated.format": False})(invoice, where("in"))
    writer = ProtobufSerializer(Invoice, schema_registry_client_config=world.config)
    reader = ProtobufDeserializer(Invoice, schema_registry_client_config=world.config)
    assert theirs is not None
    (raw,) = world.run(reader, writer, lambda value: value, theirs)
    assert raw is not None
    assert (world.values("dead"), raw[5:]) == ([], theirs[5:])
    read = ProtobufDeserializer(Invoice, to_dict=False, schema_registry_client_config=world.config)
    assert read(raw, where("out")) == invoice
    (reference,) = world.client.get_latest_version("out-value").schema.references
    assert world.client.get_latest_version(reference.subject).schema.schema_type == "PROTOBUF"
