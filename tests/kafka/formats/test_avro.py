"""The Avro formats on a real broker and schema registry are compatible with confluent-kafka's (de)serializers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirReader
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirWriter
from confluent_kafka.serialization import SerializationContext

from holdfast import (
    AvroDeserializer,
    AvroSerializer,
    SchemaRegistryClientConfig,
    SchemaRegistrySerializationConfig,
)
from holdfast.infra.schemas.codecs import ID_HEADERS
from tests.kafka.formats.conftest import Shop

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
#: The schema's next version: one more field, with a default.
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"], {"name": "paid", "type": "boolean", "default": False}]}
#: An incompatible schema. It has a field for which readers with the first version have no value.
NOT_AN_ORDER = {**ORDER, "fields": [{"name": "total", "type": "string"}]}
SETTINGS = SchemaRegistryClientConfig()


def theirs(shop: Shop, value: Any, schema: Any = ORDER, topic: str = "in", part: str = "value") -> bytes:
    made = TheirWriter(shop.client, json.dumps(schema))(value, SerializationContext(shop.topic(topic), part))
    assert made is not None
    return made


def read_by_them(shop: Shop, raw: bytes | None, headers: Any = None, part: str = "value") -> Any:
    context = SerializationContext(shop.topic("out"), part, headers)
    return TheirReader(shop.client)(raw, context)


def copy(shop: Shop, count: int, reader: Any = None, writer: Any = None, **options: Any) -> None:
    """Run an application that copies this many messages from `in` to `out`."""
    app = shop.application(**options)
    reader = reader or AvroDeserializer(schema_registry_client_config=SETTINGS)
    writer = writer or AvroSerializer(ORDER, schema_registry_client_config=SETTINGS)
    source = app.topic(shop.topic("in"), value_deserializer=reader)
    sink = app.topic(shop.topic("out"), value_serializer=writer)
    app.dataframe(source).to_topic(sink)
    app.run(count=count, timeout=60)


def test_messages_of_confluents_serializer_are_read_and_theirs_reads_ours(shop: Shop) -> None:
    orders = [{"id": number, "price": number / 4, "note": "x" * number or None} for number in range(20)]
    shop.send(*(theirs(shop, each) for each in orders))
    copy(shop, 20)
    assert [read_by_them(shop, each.value) for each in shop.records("out")] == orders
    assert shop.client.get_latest_version(f"{shop.topic('out')}-value").schema.schema_type == "AVRO"
    assert shop.records("dead") == []


@pytest.mark.thorough
def test_keys_have_a_schema_of_their_own(shop: Shop) -> None:
    key = {"type": "record", "name": "Id", "fields": [{"name": "id", "type": "long"}]}
    shop.send(theirs(shop, {"id": 1, "price": 1.0}), key=theirs(shop, {"id": 7}, key, part="key"))
    seen: list[Any] = []
    app = shop.application()
    source = app.topic(
        shop.topic("in"),
        key_deserializer=AvroDeserializer(schema_registry_client_config=SETTINGS),
        value_deserializer=AvroDeserializer(schema_registry_client_config=SETTINGS),
    )
    sink = app.topic(
        shop.topic("out"),
        key_serializer=AvroSerializer(key, schema_registry_client_config=SETTINGS),
        value_serializer=AvroSerializer(ORDER, schema_registry_client_config=SETTINGS),
    )
    frame = app.dataframe(source).update(lambda value, key, time, headers: seen.append(key), metadata=True)
    frame.to_topic(sink, key=lambda value: {"id": value["id"] + 1})
    app.run(count=1, timeout=60)
    (record,) = shop.records("out")
    assert seen == [{"id": 7}]
    assert read_by_them(shop, record.key, part="key") == {"id": 2}


def test_a_reader_schema_gives_each_message_its_form(shop: Shop) -> None:
    shop.send(theirs(shop, {"id": 1, "price": 1.0}), theirs(shop, {"id": 2, "price": 2.0, "paid": True}, ORDER_2))
    writer = AvroSerializer(ORDER_2, schema_registry_client_config=SETTINGS)
    copy(shop, 2, AvroDeserializer(ORDER_2, schema_registry_client_config=SETTINGS), writer)
    assert [read_by_them(shop, each.value)["paid"] for each in shop.records("out")] == [False, True]


def test_schemas_that_refer_to_others_are_read_and_written(shop: Shop) -> None:
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    bill = {
        "type": "record",
        "name": "Bill",
        "namespace": "shop",
        "fields": [{"name": "total", "type": "shop.Money"}],
    }
    subject = f"{shop.topic('in')}-money"
    shop.client.register_schema(subject, Schema(json.dumps(money), "AVRO"))
    schema = Schema(json.dumps(bill), "AVRO", [SchemaReference("shop.Money", subject, 1)])
    value = {"total": {"cents": 12}}
    written = TheirWriter(shop.client, schema)(value, SerializationContext(shop.topic("in"), "value"))
    shop.send(written)
    copy(shop, 1, writer=AvroSerializer(schema, schema_registry_client_config=SETTINGS))
    (record,) = shop.records("out")
    assert read_by_them(shop, record.value) == value


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("record", "shop.Order"), ("topic-record", "{topic}-shop.Order"), ("topic", "{topic}-value")],
)
def test_the_subject_is_that_of_the_strategy(shop: Shop, strategy: str, subject: str) -> None:
    named = {**ORDER, "namespace": f"shop.{shop.group.replace('-', '_')}"}
    subject = subject.format(topic=shop.topic("out")).replace("shop.Order", f"{named['namespace']}.Order")
    shop.send(theirs(shop, {"id": 1, "price": 1.0}))
    writing = SchemaRegistrySerializationConfig(subject_name_strategy=strategy)
    writer = AvroSerializer(named, schema_registry_client_config=SETTINGS, schema_registry_serialization_config=writing)
    copy(shop, 1, writer=writer)
    assert shop.client.get_versions(subject) == [1]
    assert read_by_them(shop, shop.records("out")[0].value)["id"] == 1


@pytest.mark.thorough
def test_the_id_of_a_schema_goes_into_a_header_and_is_read_from_one(shop: Shop) -> None:
    prefixed = theirs(shop, {"id": 1, "price": 1.5})
    own = ("trace", b"7")
    shop.send(prefixed[5:], headers=[own, (ID_HEADERS["value"], prefixed[:5])])
    shop.send(prefixed, headers=[own])
    writing = SchemaRegistrySerializationConfig(schema_id="header")
    writer = AvroSerializer(ORDER, schema_registry_client_config=SETTINGS, schema_registry_serialization_config=writing)
    copy(shop, 2, writer=writer)
    for record in shop.records("out"):
        assert record.value == prefixed[5:]
        assert [name for name, _ in record.headers or ()] == ["trace", ID_HEADERS["value"]]
        assert read_by_them(shop, record.value, record.headers) == {"id": 1, "price": 1.5, "note": None}


@pytest.mark.thorough
def test_an_id_from_a_header_goes_no_further_than_its_value(shop: Shop) -> None:
    prefixed = theirs(shop, {"id": 1, "price": 1.5})
    shop.send(prefixed[5:], headers=[("trace", b"7"), (ID_HEADERS["value"], prefixed[:5])])
    copy(shop, 1)
    (record,) = shop.records("out")
    assert record.headers == [("trace", b"7")]
    assert read_by_them(shop, record.value, record.headers)["id"] == 1


@pytest.mark.thorough
def test_with_the_latest_version_the_registered_schema_writes(shop: Shop) -> None:
    subject = f"{shop.topic('out')}-value"
    shop.client.register_schema(subject, Schema(json.dumps(ORDER), "AVRO"))
    latest = shop.client.register_schema(subject, Schema(json.dumps(ORDER_2), "AVRO"))
    shop.send(theirs(shop, {"id": 1, "price": 1.5}))
    writing = SchemaRegistrySerializationConfig(auto_register_schemas=False, use_latest_version=True)
    writer = AvroSerializer(ORDER, schema_registry_client_config=SETTINGS, schema_registry_serialization_config=writing)
    copy(shop, 1, writer=writer)
    (record,) = shop.records("out")
    assert int.from_bytes((record.value or b"")[1:5], "big") == latest
    assert read_by_them(shop, record.value)["paid"] is False


@pytest.mark.thorough
def test_without_a_registry_the_bytes_are_the_payload(shop: Shop) -> None:
    payload = theirs(shop, {"id": 1, "price": 1.5})[5:]
    shop.send(payload, payload + b"\x00", payload[:3])
    copy(shop, 3, AvroDeserializer(ORDER), AvroSerializer(ORDER))
    assert [each.value for each in shop.records("out")] == [payload]
    assert [each.value for each in shop.records("dead")] == [payload + b"\x00", payload[:3]]


@pytest.mark.thorough
def test_schemas_are_asked_for_once(shop: Shop, front: Any) -> None:
    config = SchemaRegistryClientConfig(url=front.url)
    written = theirs(shop, {"id": 1, "price": 1.5})
    shop.send(*[written] * 300)
    writer = AvroSerializer(ORDER, schema_registry_client_config=config)
    copy(shop, 300, AvroDeserializer(schema_registry_client_config=config), writer)
    assert len(shop.records("out")) == 300
    ids = [each for each in front.requests if each.startswith("GET /schemas/ids/")]
    registrations = [each for each in front.requests if each.startswith("POST /subjects/")]
    assert (len(ids), len(registrations)) == (1, 1)
