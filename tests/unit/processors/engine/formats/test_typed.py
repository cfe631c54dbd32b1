"""Typed topics. Functions get instances, errors name the path of the wrong field, dead letters keep the raw bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from holdfast import (
    Application,
    AvroDeserializer,
    AvroSerializer,
    Collect,
    Count,
    InMemoryCluster,
    JSONDeserializer,
    Last,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistryClientConfig,
    Sum,
)
from holdfast.processors.engine.formats.topic_format import FormatInvalid
from tests.parts import protobuf_messages


class StructItem(msgspec.Struct):
    price: float
    sku: str = ""


class StructOrder(msgspec.Struct):
    id: int
    status: str
    items: list[StructItem] = []


@dataclasses.dataclass
class DataItem:
    price: float
    sku: str = ""


@dataclasses.dataclass
class DataOrder:
    id: int
    status: str
    items: list[DataItem] = dataclasses.field(default_factory=list)


class ModelItem(BaseModel):
    price: float
    sku: str = ""


class ModelOrder(BaseModel):
    id: int
    status: str
    items: list[ModelItem] = []


@pydantic_dataclass
class CheckedOrder:
    id: int
    status: str
    items: list[ModelItem] = dataclasses.field(default_factory=list)


ORDERS = [StructOrder, DataOrder, ModelOrder, CheckedOrder]
GOOD = {"id": 1, "status": "paid", "items": [{"price": 1.5, "sku": "a"}]}
every_model = pytest.mark.parametrize("order", ORDERS)


class World:
    """A cluster with topics `in`, `out` and `dead`, and an application that reads and writes them."""

    def __init__(self) -> None:
        self.cluster = InMemoryCluster()
        for topic in ("in", "out", "dead"):
            self.cluster.create_topic(topic)
        self.app = Application(
            consumer_group="typed", auto_offset_reset="earliest", dead_letter_topic="dead", loglevel=None
        )

    def send(self, *values: Any, key: bytes = b"k") -> None:
        for at, value in enumerate(values):
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.cluster.produce("in", raw, key, timestamp_ms=1_000 + at)

    def run(self) -> None:
        self.cluster.run(self.app)

    def raw(self, topic: str = "out") -> list[bytes | None]:
        return [record.value for _, record in self.cluster.read(topic)]

    def out(self) -> list[Any]:
        return [json.loads(raw or b"null") for raw in self.raw()]

    def errors(self) -> list[str]:
        return [dict(each.headers or ())["holdfast.error"].decode() for _, each in self.cluster.read("dead")]  # type: ignore[union-attr]


@pytest.fixture
def world() -> World:
    return World()


@every_model
def test_functions_get_instances_and_results_are_written(world: World, order: Any) -> None:
    seen: list[Any] = []

    def paid(value: Any) -> Any:
        seen.append(value)
        value.status = value.status.upper()
        return value

    frame = world.app.dataframe(world.app.topic("in", value=order)).apply(paid)
    frame.to_topic(world.app.topic("out", value=order))
    world.send(GOOD)
    world.run()
    assert [type(each) for each in seen] == [order]
    assert world.out() == [{**GOOD, "status": "PAID"}]


@every_model
def test_what_does_not_fit_is_a_dead_letter_with_its_path_and_raw_bytes(world: World, order: Any) -> None:
    items = [{"price": 1.0}, {"price": 2.0}, {"price": "much"}]
    bad = [{**GOOD, "items": items}, {"id": 1}, b"{", b"[1]", {"id": None, "status": "x"}]
    world.app.dataframe(world.app.topic("in", value=order)).to_topic(world.app.topic("out", value=order))
    world.send(GOOD, *bad)
    world.run()
    assert world.out() == [GOOD]
    assert world.raw("dead") == [each if isinstance(each, bytes) else json.dumps(each).encode() for each in bad]
    errors = world.errors()
    assert "`$.items[2].price`" in errors[0]
    assert "status" in errors[1]
    assert "`$.id`" in errors[4]


@every_model
@pytest.mark.parametrize("result", [{"id": 1, "status": "x"}, 7, "text"])
def test_a_result_of_another_type_is_refused(world: World, order: Any, result: Any) -> None:
    frame = world.app.dataframe(world.app.topic("in")).apply(lambda value: result)
    frame.to_topic(world.app.topic("out", value=order))
    world.send({})
    world.run()
    assert world.out() == []
    assert f"expected {order.__name__}, got {type(result).__name__}" in world.errors()[0]


@every_model
def test_an_instance_that_its_model_would_refuse_is_not_written(world: World, order: Any) -> None:
    def broken(value: Any) -> Any:
        value.items[0].price = "much"
        return value

    frame = world.app.dataframe(world.app.topic("in", value=order)).apply(broken)
    frame.to_topic(world.app.topic("out", value=order))
    world.send(GOOD)
    world.run()
    assert world.out() == []
    assert len(world.errors()) == 1


@every_model
def test_a_tombstone_stays_none(world: World, order: Any) -> None:
    world.app.dataframe(world.app.topic("in", value=order)).to_topic(world.app.topic("out", value=order))
    world.cluster.produce("in", None, b"k")
    world.run()
    assert world.raw() == [None]


@every_model
def test_steps_read_fields_by_their_names(world: World, order: Any) -> None:
    frame = world.app.dataframe(world.app.topic("in", value=order))
    columns = {
        "n": Count(),
        "ids": Sum("id"),
        "last": Last("status"),
        "all": Collect("items", limit=9),
        "whole": Collect(limit=9),
    }
    frame.group_by("status").drop_duplicates(by="id", within=10_000).aggregate(columns).to_topic(world.app.topic("out"))
    world.send(GOOD, GOOD, {**GOOD, "id": 2}, {**GOOD, "id": 5, "status": "new"})
    world.run()
    assert world.errors() == []
    results = world.out()
    second = {**GOOD, "id": 2}
    assert {"n": 2, "ids": 3, "last": "paid", "all": [GOOD["items"]] * 2, "whole": [GOOD, second]} in results
    assert len(results) == 3


@every_model
def test_windows_and_averages_read_fields(world: World, order: Any) -> None:
    frame = world.app.dataframe(world.app.topic("in", value=order))
    frame.tumbling_window(10_000).agg(total=Sum("id")).current().to_topic(world.app.topic("out"))
    frame.moving_average("id", over=2).to_topic(world.app.topic("averages"))
    world.cluster.create_topic("averages")
    world.send(GOOD, {**GOOD, "id": 2})
    world.run()
    assert world.errors() == []
    assert [each["value"]["total"] if "value" in each else each["total"] for each in world.out()] == [1, 3]


@every_model
def test_rows_of_a_typed_table_are_json_and_join(world: World, order: Any) -> None:
    world.cluster.create_topic("prices")
    prices = world.app.table(world.app.topic("prices", value=order))
    frame = world.app.dataframe(world.app.topic("in", value=order))
    merged = frame.join_table(prices, on_merge=lambda left, right: {"left": left.id, "right": right["id"]})
    merged.to_topic(world.app.topic("out"))
    world.cluster.produce("prices", json.dumps({**GOOD, "id": 7}).encode(), b"k", timestamp_ms=1)
    world.send(GOOD)
    world.run()
    assert world.errors() == []
    assert world.out() == [{"left": 1, "right": 7}]


@every_model
def test_joins_of_streams_take_instances(world: World, order: Any) -> None:
    world.cluster.create_topic("prices")
    left = world.app.dataframe(world.app.topic("in", value=order))
    right = world.app.dataframe(world.app.topic("prices", value=order))
    joined = left.join_asof(right, on_merge=lambda one, other: {"left": one.id, "right": other.id})
    joined.to_topic(world.app.topic("out"))
    world.cluster.produce("prices", json.dumps({**GOOD, "id": 7}).encode(), b"k", timestamp_ms=1)
    world.send(GOOD)
    world.run()
    assert world.errors() == []
    assert world.out() == [{"left": 1, "right": 7}]


@pytest.mark.parametrize("order", [StructOrder, DataOrder, ModelOrder])
def test_msgpack_and_avro_become_instances_too(world: World, order: Any) -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "price", "type": "double"}]}
    item["fields"] = [*item["fields"], {"name": "sku", "type": "string", "default": ""}]  # type: ignore[misc]
    fields = [{"name": "id", "type": "long"}, {"name": "status", "type": "string"}]
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [*fields, {"name": "items", "type": {"type": "array", "items": item}}],
    }
    registry = SchemaRegistryClientConfig(url=f"mock://{order.__name__}")
    world.cluster.create_topic("avro")
    world.cluster.create_topic("framed")
    packed = world.app.topic("in", value=order, value_deserializer="msgpack")
    plain = AvroSerializer(schema)
    framed = AvroSerializer(schema, schema_registry_client_config=registry)
    world.app.dataframe(packed).to_topic(world.app.topic("avro", value=order, value_serializer=plain))
    source = world.app.topic("avro", value=order, value_deserializer=AvroDeserializer(schema))
    world.app.dataframe(source).to_topic(world.app.topic("framed", value=order, value_serializer=framed))
    reader = AvroDeserializer(schema_registry_client_config=registry)
    last = world.app.topic("framed", value=order, value_deserializer=reader)
    world.app.dataframe(last).to_topic(world.app.topic("out", value=order, value_serializer="msgpack"))
    world.send(msgspec.msgpack.encode(GOOD), msgspec.msgpack.encode({"id": "x"}))
    world.run()
    assert [msgspec.msgpack.decode(raw or b"") for raw in world.raw()] == [GOOD]
    assert "`$.id`" in world.errors()[0]


def test_python_types_of_avro_stay_exact(world: World) -> None:
    class Bill(msgspec.Struct):
        at: datetime
        total: Decimal
        raw: bytes

    total = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total", "type": total},
        {"name": "raw", "type": "bytes"},
    ]
    schema = {"type": "record", "name": "Bill", "fields": fields}
    seen: list[Any] = []
    source = world.app.topic("in", value=Bill, value_deserializer=AvroDeserializer(schema))
    sink = world.app.topic("out", value=Bill, value_serializer=AvroSerializer(schema))
    world.app.dataframe(source).update(seen.append).to_topic(sink)
    bill = {"at": datetime(2026, 1, 2, tzinfo=UTC), "total": Decimal("1.25"), "raw": b"\x00\xff"}
    written = AvroSerializer(schema).bound("in", "value")(bill)
    world.send(written)
    world.run()
    assert world.errors() == []
    assert seen == [Bill(**bill)]
    assert world.raw() == [written]


def test_classes_of_protobuf_are_their_own_bytes(world: World) -> None:
    order = protobuf_messages.Order
    frame = world.app.dataframe(world.app.topic("in", value=order))
    frame.group_by("id", key_serializer=lambda key: str(key).encode()).aggregate(total=Sum("price")).to_topic(
        world.app.topic("out")
    )
    world.cluster.create_topic("copies")
    frame.to_topic(world.app.topic("copies", value=order))
    good = order(id=7, price=1.5, items=[protobuf_messages.Item(sku="a")]).SerializeToString()
    world.send(good, b"\xff\xff")
    world.run()
    assert world.out() == [{"total": 1.5}]
    assert world.raw("copies") == [good]
    assert world.raw("dead") == [b"\xff\xff"]


def test_protobuf_of_a_registry_gives_messages_to_a_typed_topic(world: World) -> None:
    registry = SchemaRegistryClientConfig(url="mock://typed-protobuf")
    order, seen = protobuf_messages.Order, list[Any]()
    world.cluster.create_topic("framed")
    writer = ProtobufSerializer(order, schema_registry_client_config=registry)
    reader = ProtobufDeserializer(order, schema_registry_client_config=registry)
    first = world.app.dataframe(world.app.topic("in", value=order))
    first.to_topic(world.app.topic("framed", value=order, value_serializer=writer))
    second = world.app.topic("framed", value=order, value_deserializer=reader)
    world.app.dataframe(second).update(seen.append)
    world.send(order(id=1 << 40).SerializeToString())
    world.run()
    assert world.errors() == []
    assert seen == [order(id=1 << 40)]


@pytest.mark.parametrize(
    "declare",
    [
        lambda app: app.topic("in", value=dict),
        lambda app: app.topic("in", value="Order"),
        lambda app: app.topic("in", value=StructOrder(1, "x")),
        lambda app: app.topic("in", value=StructOrder, value_deserializer="str"),
        lambda app: app.topic("in", value=StructOrder, value_serializer="double"),
        lambda app: app.topic("in", value=protobuf_messages.Order, value_deserializer="msgpack"),
        lambda app: app.topic("in", value_deserializer=JSONDeserializer()),
    ],
)
def test_what_can_be_no_typed_topic_is_refused_at_its_declaration(world: World, declare: Callable[[Any], Any]) -> None:
    with pytest.raises(FormatInvalid) as refused:
        declare(world.app)
    assert refused.value.action


def test_a_model_with_a_field_that_cannot_be_decoded_is_refused(world: World) -> None:
    class Odd(msgspec.Struct):
        either: int | list[int] | set[int]

    with pytest.raises(FormatInvalid, match="can't be a model"):
        world.app.topic("in", value=Odd)


def test_another_field_is_another_version() -> None:
    def version(order: Any) -> str:
        app = Application(consumer_group="typed", loglevel=None)
        app.dataframe(app.topic("in", value=order)).to_topic(app.topic("out"))
        return app.topology().code_version

    class Small(msgspec.Struct):
        id: int

    first = version(Small)

    class Small(msgspec.Struct):  # type: ignore[no-redef]
        id: str

    assert version(Small) != first
    assert version(StructOrder) == version(StructOrder)


def test_a_value_nested_a_thousand_deep_and_one_with_a_field_twice(world: World) -> None:
    world.app.dataframe(world.app.topic("in", value=StructOrder)).to_topic(world.app.topic("out", value=StructOrder))
    deep = b'{"id": 1, "status": "x", "items": ' + b"[" * 1_000 + b"]" * 1_000 + b"}"
    twice = b'{"id": 1, "status": "x", "id": 2}'
    world.send(deep, twice)
    world.run()
    assert world.raw("dead") == [deep]
    assert [each["id"] for each in world.out()] == [2]
