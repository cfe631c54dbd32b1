"""JSON Schema and Protobuf on a real broker and schema registry are compatible with confluent-kafka's serializers."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer as TheirReader
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirWriter
from confluent_kafka.serialization import SerializationContext

from holdfast import (
    JSONDeserializer,
    JSONSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistryClientConfig,
    SchemaRegistrySerializationConfig,
)
from holdfast.infra.schemas.codecs import ID_HEADERS
from tests.kafka.formats.conftest import Shop
from tests.kafka.formats.test_avro import copy
from tests.parts.protobuf_messages import Bill, Item, Order

SETTINGS = SchemaRegistryClientConfig()
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
    },
    "required": ["id"],
}
CONF = {"use.deprecated.format": False}


def their_json() -> Any:
    """Confluent's module. Its import takes 2 s of CPU, because it loads the grammars of all URI formats."""
    return importlib.import_module("confluent_kafka.schema_registry.json_schema")


def context(shop: Shop, topic: str) -> SerializationContext:
    return SerializationContext(shop.topic(topic), "value")


def test_json_of_confluents_serializer_is_read_and_theirs_reads_ours(shop: Shop) -> None:
    orders = [{"id": number, "items": [{"price": number / 2}]} for number in range(10)]
    write = their_json().JSONSerializer(json.dumps(SCHEMA), shop.client)
    shop.send(*(write(each, context(shop, "in")) for each in orders))
    reader = JSONDeserializer(schema_registry_client_config=SETTINGS)
    copy(shop, 10, reader, JSONSerializer(SCHEMA, schema_registry_client_config=SETTINGS))
    read = their_json().JSONDeserializer(None, schema_registry_client=shop.client)
    assert [read(each.value, context(shop, "out")) for each in shop.records("out")] == orders


def test_json_that_its_schema_refuses_is_a_dead_letter_with_its_path(shop: Shop) -> None:
    free = {"$schema": SCHEMA["$schema"], "title": "Order", "type": "object"}
    good = their_json().JSONSerializer(json.dumps(free), shop.client)({"id": 1}, context(shop, "in"))
    assert good is not None
    bad = [good[:5] + b'{"id": 1, "items": [{}, {}, {"price": "x"}]}', good[:5] + b"{", good[:5] + b'{"items": []}']
    shop.send(good, *bad)
    reader = JSONDeserializer(SCHEMA, schema_registry_client_config=SETTINGS)
    copy(shop, 4, reader, JSONSerializer(SCHEMA, schema_registry_client_config=SETTINGS))
    assert [each.value for each in shop.records("dead")] == bad
    assert "`$.items[2].price`" in shop.errors()[0]
    assert "'id' is a required property" in shop.errors()[2]


@pytest.mark.thorough
def test_a_value_that_a_json_schema_refuses_is_not_written(shop: Shop) -> None:
    shop.send(b'{"id": 1}', b'{"id": "one"}', b'{"id": 1, "items": [{"price": null}]}')
    app = shop.application()
    sink = app.topic(shop.topic("out"), value_serializer=JSONSerializer(SCHEMA, schema_registry_client_config=SETTINGS))
    app.dataframe(app.topic(shop.topic("in"))).to_topic(sink)
    app.run(count=3, timeout=60)
    assert len(shop.records("out")) == 1
    assert "`$.id`" in shop.errors()[0]
    assert "`$.items[0].price`" in shop.errors()[1]


def test_protobuf_of_confluents_serializer_is_read_and_theirs_reads_ours(shop: Shop) -> None:
    orders = [Order(id=number, price=number / 2, items=[Item(sku="a", n=number)]) for number in range(10)]
    write = TheirWriter(Order, shop.client, CONF)
    shop.send(*(write(each, context(shop, "in")) for each in orders))
    reader = ProtobufDeserializer(Order, schema_registry_client_config=SETTINGS)
    copy(shop, 10, reader, ProtobufSerializer(Order, schema_registry_client_config=SETTINGS))
    read = TheirReader(Order, CONF, shop.client)
    assert [read(each.value, context(shop, "out")) for each in shop.records("out")] == orders
    assert shop.records("dead") == []


@pytest.mark.thorough
def test_functions_get_messages_or_dicts(shop: Shop) -> None:
    raw = TheirWriter(Order, shop.client, CONF)(Order(id=1 << 60, price=2.0), context(shop, "in"))
    shop.send(raw)
    seen: list[Any] = []
    for to_dict in (True, False):
        reader = ProtobufDeserializer(Order, to_dict=to_dict, schema_registry_client_config=SETTINGS)
        app = shop.application(consumer_group=f"{shop.group}-{to_dict}")
        app.dataframe(app.topic(shop.topic("in"), value_deserializer=reader)).update(seen.append)
        app.run(count=1, timeout=60)
    assert seen == [{"id": str(1 << 60), "price": 2.0, "items": []}, Order(id=1 << 60, price=2.0)]


@pytest.mark.thorough
def test_a_message_of_another_type_or_index_is_a_dead_letter(shop: Shop) -> None:
    good = TheirWriter(Order, shop.client, CONF)(Order(id=1, price=2.0), context(shop, "in"))
    bill = TheirWriter(Bill, shop.client, CONF)(Bill(number=1, total=2.0), context(shop, "in"))
    item = TheirWriter(Item, shop.client, CONF)(Item(sku="a"), context(shop, "in"))
    assert good is not None
    bad = [
        bill,  # these bytes would also parse as an order
        item,
        good[:5] + b"\x02\x28" + good[6:],  # the payload names message index 20, which does not exist
        # the payload names message index 0, which exists, and a nested message 9, which does not
        good[:5] + b"\x04\x00\x12" + good[6:],
        good[:5],
        good + b"\xff",
    ]
    shop.send(good, *bad)
    reader = ProtobufDeserializer(Order, schema_registry_client_config=SETTINGS)
    copy(shop, 7, reader, ProtobufSerializer(Order, schema_registry_client_config=SETTINGS))
    assert len(shop.records("out")) == 1
    assert [each.value for each in shop.records("dead")] == bad
    reasons = shop.errors()
    assert "it is a message of type Bill, expected Order" in reasons[0]
    assert "it is a message of type Order.Item, expected Order" in reasons[1]
    assert "no message with the index [20]" in reasons[2]
    assert "no message with the index [0, 9]" in reasons[3]


@pytest.mark.thorough
def test_protobufs_id_and_index_go_into_a_header(shop: Shop) -> None:
    raw = TheirWriter(Bill, shop.client, CONF)(Bill(number=1, total=2.0), context(shop, "in"))
    shop.send(raw)
    writing = SchemaRegistrySerializationConfig(schema_id="header")
    writer = ProtobufSerializer(
        Bill, schema_registry_client_config=SETTINGS, schema_registry_serialization_config=writing
    )
    copy(shop, 1, ProtobufDeserializer(Bill, schema_registry_client_config=SETTINGS), writer)
    (record,) = shop.records("out")
    assert record.value == Bill(number=1, total=2.0).SerializeToString()
    assert [name for name, _ in record.headers or ()] == [ID_HEADERS["value"]]
    read = TheirReader(Bill, CONF, shop.client)
    assert read(record.value, SerializationContext(shop.topic("out"), "value", record.headers)).number == 1


@pytest.mark.thorough
def test_a_dict_that_no_message_can_be_made_of_is_not_written(shop: Shop) -> None:
    shop.send(b'{"id": "7", "price": 1.5}', b'{"id": "x"}', b'{"total": 1}', b"[1]")
    app = shop.application()
    writer = ProtobufSerializer(Order, schema_registry_client_config=SETTINGS)
    app.dataframe(app.topic(shop.topic("in"))).to_topic(app.topic(shop.topic("out"), value_serializer=writer))
    app.run(count=4, timeout=60)
    assert len(shop.records("out")) == 1
    assert len(shop.records("dead")) == 3
