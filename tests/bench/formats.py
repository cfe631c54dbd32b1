"""Measures how long a worker takes to decode one message of each format: ``python -m tests.bench.formats``.

Each row decodes the same order of three items with the deserializer of a topic's values, with cached schemas, in a
single process. ``ratio`` is the time relative to ``json``. Before the measurement, each format must give the same
order.

Quix Streams decodes the same bytes with its own deserializers, in turns, in an environment of its own. Its order must
have the same hash. ``quix_ratio`` is its time relative to ours.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel

from holdfast import (
    AvroDeserializer,
    AvroSerializer,
    JSONDeserializer,
    JSONSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistryClientConfig,
)
from holdfast.infra.schemas.registry import Registries
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings
from holdfast.processors.engine.formats.topic_format import connect_all
from holdfast.processors.engine.steps.topic import Topic
from tests.bench.asked import Asked, ask, quix_if_here
from tests.parts.protobuf_messages import Order as Message

ITEMS = [{"sku": "A-1", "n": 2}, {"sku": "B-2", "n": 1}, {"sku": "C-3", "n": 9}]
ORDER = {"id": 1_234_567, "price": 99.5, "items": ITEMS}
ITEM_FIELDS = [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]
ITEM = {"type": "record", "name": "Item", "fields": ITEM_FIELDS}
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "price", "type": "double"},
    {"name": "items", "type": {"type": "array", "items": ITEM}},
]
AVRO = {"type": "record", "name": "Order", "fields": FIELDS}
JSON_ITEM = {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}}
JSON_FIELDS = {"id": {"type": "integer"}, "price": {"type": "number"}, "items": {"type": "array", "items": JSON_ITEM}}
JSON_SCHEMA = {"title": "Order", "type": "object", "properties": JSON_FIELDS, "required": ["id", "price"]}
REGISTRY = SchemaRegistryClientConfig(url="mock://bench")
ROUNDS = 7
#: What the decoder of each format is in Quix Streams, or why it has none.
QUIX: Mapping[str, Mapping[str, Any] | str] = {
    "json": {"kind": "json"},
    "msgpack": "Quix Streams has no msgpack",
    **{
        f"typed json ({name})": "Quix Streams has no typed topics"
        for name in ("msgspec.Struct", "dataclass", "pydantic")
    },
    "avro without a registry": {"kind": "avro", "schema": AVRO},
    "avro": {"kind": "avro", "registered": {"schema": json.dumps(AVRO)}},
    "json schema": {
        "kind": "json",
        "schema": JSON_SCHEMA,
        "registered": {"schema": json.dumps(JSON_SCHEMA), "schemaType": "JSON"},
    },
    "protobuf messages": {"kind": "protobuf", "registered": {}, "to_dict": False},
    "protobuf dicts": {"kind": "protobuf", "registered": {}},
}


class Item(msgspec.Struct):
    sku: str
    n: int


class Order(msgspec.Struct):
    id: int
    price: float
    items: list[Item]


@dataclass
class PlainItem:
    sku: str
    n: int


@dataclass
class PlainOrder:
    id: int
    price: float
    items: list[PlainItem]


class CheckedItem(BaseModel):
    sku: str
    n: int


class CheckedOrder(BaseModel):
    id: int
    price: float
    items: list[CheckedItem]


def cases() -> dict[str, tuple[Callable[[bytes], Any], bytes, Callable[[Any], Any]]]:
    """For each format: its decoding function, the encoded bytes, and a function that gets the order from the result."""
    raw = json.dumps(ORDER).encode()
    schema, registry = {"schema_registry_client_config": REGISTRY}, Registries(SchemaRegistrySettings())
    of_avro, of_json = AvroSerializer(AVRO, **schema), JSONSerializer(JSON_SCHEMA, **schema)
    of_protobuf = ProtobufSerializer(Message, **schema)
    writers = {"avro": of_avro, "json": of_json, "protobuf": of_protobuf}
    bound = {name: writer.bound(name, "value") for name, writer in writers.items()}
    connect_all(bound.values(), registry)
    topics = {
        "json": (Topic("j"), raw),
        "msgpack": (Topic("m", value_deserializer="msgpack"), msgspec.msgpack.encode(ORDER)),
        "typed json (msgspec.Struct)": (Topic("t", value=Order), raw),
        "typed json (dataclass)": (Topic("d", value=PlainOrder), raw),
        "typed json (pydantic)": (Topic("c", value=CheckedOrder), raw),
        "avro without a registry": (
            Topic("p", value_deserializer=AvroDeserializer(AVRO)),
            AvroSerializer(AVRO).bound("p", "value")(ORDER),
        ),
        "avro": (Topic("avro", value_deserializer=AvroDeserializer(**schema)), bound["avro"](ORDER)),
        "json schema": (Topic("json", value_deserializer=JSONDeserializer(**schema)), bound["json"](ORDER)),
        "protobuf messages": (
            Topic("protobuf", value_deserializer=ProtobufDeserializer(Message, to_dict=False, **schema)),
            bound["protobuf"](ORDER),
        ),
        "protobuf dicts": (
            Topic("protobuf", value_deserializer=ProtobufDeserializer(Message, **schema)),
            bound["protobuf"](ORDER),
        ),
    }
    for topic, _ in topics.values():
        connect_all(topic.functions, registry)
    return {name: (topic.deserialize_value, made, _order_of) for name, (topic, made) in topics.items()}


def _order_of(value: Any) -> Any:
    if isinstance(value, Message):
        value = MessageToDict(value)
    if isinstance(value, BaseModel):
        value = value.model_dump()
    made = msgspec.to_builtins(value)
    return {**made, "id": int(made["id"])}


def hash_of(order: Any) -> str:
    """The hash of an order, in which ``quix_local.py`` must agree."""
    return hashlib.sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()[:16]


def measured(seconds: float, quix: Asked | None = None) -> list[dict[str, Any]]:
    """One row per format: CPU microseconds per message (the best of several rounds), and the ratio to ``json``.

    The formats take turns, so that other work on the machine disturbs all of them alike. So does Quix Streams.

    Raises:
        AssertionError: A format gives another order, or Quix Streams another hash.
    """
    formats, took, theirs = cases(), dict[str, float](), dict[str, float]()
    for name, (decode, raw, order_of) in formats.items():
        assert order_of(decode(raw)) == ORDER, name
        if quix is not None and not isinstance(decoder := QUIX[name], str):
            made = ask(quix, do="prepare", name=name, raw=base64.b64encode(raw).decode(), **decoder)["hash"]
            assert made == hash_of(ORDER), f"{name}: another order of Quix Streams"
            theirs[name] = float("inf")
    for _ in range(ROUNDS):
        for name, (decode, raw, _) in formats.items():
            spent = _round(decode, raw, seconds / ROUNDS)
            took[name] = min(spent, took.get(name, spent))
            if quix is not None and name in theirs:
                theirs[name] = min(theirs[name], ask(quix, do="decoded", name=name, seconds=seconds / ROUNDS)["us"])
    return [_row(name, len(raw), took, theirs) for name, (_, raw, _) in formats.items()]


def _row(name: str, size: int, took: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, Any]:
    us, reason = took[name], QUIX[name]
    row = {
        "format": name,
        "bytes": size,
        "us": round(us, 2),
        "ratio": round(us / took["json"], 1),
        "hash": hash_of(ORDER),
    }
    if name in theirs:
        return {**row, "quix_us": round(theirs[name], 2), "quix_ratio": round(theirs[name] / us, 2)}
    return {**row, "quix": reason} if isinstance(reason, str) else row


def _round(decode: Callable[[bytes], Any], raw: bytes, seconds: float) -> float:
    count, began = 0, time.thread_time()
    while (spent := time.thread_time() - began) < seconds:
        for _ in range(100):
            decode(raw)
        count += 100
    return spent / count * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=3.0, help="of each format and side")
    parser.add_argument("--alone", action="store_true", help="without Quix Streams")
    given = parser.parse_args()
    with quix_if_here(not given.alone) as process:
        for row in measured(given.seconds, process):
            print(json.dumps(row))
