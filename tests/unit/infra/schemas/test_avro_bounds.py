"""Payloads of Avro are checked where their schema lets a message of a few bytes do harm, and nowhere else."""

from __future__ import annotations

import json
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import SerializationContext
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import AvroDeserializer, AvroSerializer, SchemaRegistryClientConfig
from holdfast.infra.schemas import avro_bounds
from holdfast.infra.schemas.avro import _Guard
from holdfast.infra.schemas.avro_bounds import check_depth, is_recursive, payload_check
from holdfast.infra.schemas.errors import NestedTooDeeply
from holdfast.infra.schemas.registry import Registries
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings
from tests.mechanics.tiers import examples

ORDERS = SerializationContext("orders", "value")
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"], "default": None}]}
#: A schema with each type, whose payloads are all checked, as it has an array of items without bytes.
EVERY_TYPE = {
    "type": "record",
    "name": "Tree",
    "namespace": "shop",
    "fields": [
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "int", "type": "int"},
        {"name": "long", "type": "long"},
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "flag", "type": "boolean"},
        {"name": "text", "type": "string"},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["red", "blue"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
        {"name": "codes", "type": {"type": "map", "values": "Code"}},
        {"name": "colors", "type": {"type": "array", "items": "Color"}},
        {"name": "branches", "type": {"type": "array", "items": ["null", "Tree"]}},
    ],
}
LEAVES = {
    "nothing": st.lists(st.none(), max_size=3),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "flag": st.booleans(),
    "text": st.text(max_size=5),
    "raw": st.binary(max_size=200),
    "price": st.decimals(-99, 99, places=2),
    "color": st.sampled_from(["red", "blue"]),
    "code": st.binary(min_size=3, max_size=3),
    "codes": st.dictionaries(st.text(max_size=3), st.binary(min_size=3, max_size=3), max_size=2),
    "colors": st.lists(st.sampled_from(["red", "blue"]), max_size=3),
}
TREES = st.recursive(
    st.fixed_dictionaries({**LEAVES, "branches": st.just([])}),
    lambda trees: st.fixed_dictionaries({**LEAVES, "branches": st.lists(st.none() | trees, max_size=2)}),
    max_leaves=4,
)


def written(schema: Any, value: Any) -> bytes:
    made = BytesIO()
    schemaless_writer(made, parse_schema(schema), value)
    return made.getvalue()


def check(schema: Any, raw: bytes) -> None:
    made = payload_check(parse_schema(schema))
    assert made is not None
    made(raw, 0)


def number(value: int) -> bytes:
    return written("long", value)


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        {"type": "array", "items": "int"},
        {"type": "map", "values": "null"},
        [
            "null",
            {"type": "record", "name": "A", "fields": [{"name": "a", "type": {"type": "array", "items": "long"}}]},
        ],
        {
            "type": "record",
            "name": "Pair",
            "fields": [
                {"name": "left", "type": {"type": "record", "name": "Side", "fields": [{"name": "n", "type": "int"}]}},
                {"name": "right", "type": "Side"},
            ],
        },
    ],
)
def test_ordinary_schemas_need_no_check(schema: Any) -> None:
    assert payload_check(parse_schema(schema)) is None
    assert not is_recursive(parse_schema(schema))


@settings(max_examples=examples(200, tested=30), deadline=None)
@given(TREES)
def test_what_fastavro_writes_is_accepted_and_what_breaks_off_is_not(tree: Any) -> None:
    raw = written(EVERY_TYPE, tree)
    check(EVERY_TYPE, raw)
    for length in {0, len(raw) // 3, len(raw) // 2, len(raw) - 1}:
        with pytest.raises(ValueError, match="end too early"):
            check(EVERY_TYPE, raw[:length])


@pytest.mark.parametrize(
    ("schema", "level"),
    [
        (NODE, b"\x02"),
        ({"type": "record", "name": "N", "fields": [{"name": "n", "type": {"type": "array", "items": "N"}}]}, b"\x02"),
        (
            {"type": "record", "name": "N", "fields": [{"name": "n", "type": {"type": "map", "values": "N"}}]},
            b"\x02\x00",
        ),
    ],
)
def test_a_recursive_schema_has_a_thousand_levels(schema: Any, level: bytes) -> None:
    per_level = 1 if schema is NODE else 2
    most = 1_000 // per_level - 1
    assert is_recursive(parse_schema(schema))
    end = b"\x00" * 2_000
    check(schema, level * most + end)
    schemaless_reader(BytesIO(level * most + end), parse_schema(schema), None)
    for more in (most + 1, 100_000):
        with pytest.raises(ValueError, match="nested more than 1,000 deep"):
            check(schema, level * more + end)


def test_a_record_that_contains_itself_without_an_end_is_refused_whatever_its_bytes() -> None:
    endless = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}
    for raw in (b"", b"\x00"):
        with pytest.raises(ValueError, match="nested more than 1,000 deep"):
            check(endless, raw)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": "null"}]},
    ],
)
def test_items_without_bytes_are_counted_over_all_blocks(items: Any) -> None:
    schema = {"type": "array", "items": items}
    check(schema, number(1_000_000) + b"\x00")
    half = number(600_000)
    negative = number(-(2**32)) + number(0)
    for raw in (number(2**32) + b"\x00", half + half + b"\x00", negative + b"\x00", number(-(2**63)) + number(0)):
        with pytest.raises(ValueError, match="more than 1,000,000 items without bytes"):
            check(schema, raw)


def test_a_decimal_has_a_greatest_length() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    check(schema, number(10_000) + b"\x7f" * 10_000)
    with pytest.raises(ValueError, match=r"a decimal has 10,001 bytes, expected at most 10,000"):
        check(schema, number(10_001) + b"\x7f" * 10_001)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (number(-1) + number(3) + b"\x02a" + b"\x00", "another length than it says"),
        (b"\x80" * 10 + b"\x00", "a number has more than 10 bytes"),
        (number(1) + number(-1), "a text has the length -1"),
    ],
)
def test_bytes_that_fastavro_reads_in_two_ways_are_refused(raw: bytes, reason: str) -> None:
    schema = {
        "type": "record",
        "name": "T",
        "fields": [
            {"name": "texts", "type": {"type": "array", "items": "string"}},
            {"name": "nothing", "type": {"type": "array", "items": "null"}},
        ],
    }
    check(schema, number(-1) + number(2) + b"\x02a" + b"\x00" + b"\x00")
    with pytest.raises(ValueError, match=reason):
        check(schema, raw + b"\x00")


def test_values_are_written_up_to_a_thousand_levels() -> None:
    value: Any = {}
    for _ in range(999):
        value = {"next": value}
    check_depth(value)
    with pytest.raises(NestedTooDeeply, match="nested more than 1,000 deep"):
        check_depth([value])
    circle: dict[str, Any] = {"a": (1, "x")}
    circle["b"], circle["c"] = [circle], circle
    with pytest.raises(NestedTooDeeply, match="nested more than 1,000 deep"):
        check_depth(circle)


def test_small_payloads_of_recursive_schemas_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[bytes] = []
    monkeypatch.setattr(avro_bounds._Scan, "__call__", lambda scan, raw, at: walked.append(raw))
    check(NODE, b"\x02" * 998 + b"\x00")
    check(NODE, b"\x02" * 999 + b"\x00")
    assert [len(each) for each in walked] == [1_000]


def test_schemas_that_are_named_by_a_guid_or_referred_to_are_checked_as_well() -> None:
    config = SchemaRegistryClientConfig(url="mock://bounds")
    registries = Registries(SchemaRegistrySettings())
    client = registries.client(config)
    nothing = {"type": "record", "name": "shop.Nothing", "fields": []}
    holder = {"type": "record", "name": "H", "fields": [{"name": "all", "type": {"type": "array", "items": "Nothing"}}]}
    client.register_schema("nothing", Schema(json.dumps(nothing), "AVRO"))
    reference = SchemaReference("shop.Nothing", "nothing", 1)
    form = Schema(json.dumps({**holder, "namespace": "shop"}), "AVRO", [reference])
    known = client.register_schema_full_response("orders-value", form)
    heads = [b"\0" + known.schema_id.to_bytes(4, "big")]
    if known.guid is not None:
        heads.append(b"\1" + UUID(known.guid).bytes)
    read: Any = AvroDeserializer(schema_registry_client_config=config).bound("orders", "value")
    read.connect(registries)
    for head in heads * 2:
        assert read(head + number(2) + b"\x00") == {"all": [{}, {}]}
        with pytest.raises(ValueError, match="more than 1,000,000 items without bytes"):
            read(head + number(1_000_001) + b"\x00")


def test_rules_that_encrypt_payloads_and_schemas_of_bytes_alone_leave_nothing_to_check() -> None:
    """Such a payload is not Avro of its schema when the check would see it."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    nulls = {"type": "array", "items": "null"}
    for schema, rules in ((price, None), (nulls, SimpleNamespace(encoding_rules=["encrypt"]))):
        form = SimpleNamespace(schema_str=json.dumps(schema), references=None, rule_set=rules)
        registry: Any = SimpleNamespace(get_schema=lambda *given, form=form: form)
        where = SerializationContext("orders", "value")
        payload = _Guard(registry).read_id(b"\0\0\0\0\1" + b"\xff" * 20_000, where, SchemaId("AVRO"))
        assert payload.read(1) == b"\xff"


@pytest.mark.parametrize(
    ("items", "size"),
    [
        ("double", 8),
        ("boolean", 1),
        ({"type": "record", "name": "P", "fields": [{"name": "x", "type": "float"}, {"name": "n", "type": "null"}]}, 4),
    ],
    ids=["double", "boolean", "record"],
)
def test_items_that_a_reader_drops_must_be_in_the_message(items: Any, size: int) -> None:
    """fastavro would skip 2**62 items behind the end of the message, which takes years."""
    fields = [{"name": "key", "type": "int"}, {"name": "items", "type": {"type": "array", "items": items}}]
    writer = {"type": "record", "name": "T", "fields": fields}
    reader = {"type": "record", "name": "T", "fields": fields[:1]}
    config = SchemaRegistryClientConfig(url=f"mock://dropped-{size}")
    head = AvroSerializer(writer, schema_registry_client_config=config)({"key": 1, "items": []}, ORDERS)[:5]
    plain = AvroDeserializer(writer, reader_schema=reader)
    framed = AvroDeserializer(reader, schema_registry_client_config=config)
    for read, start in ((plain, b""), (framed, head)):
        for _ in range(2):
            with pytest.raises(ValueError, match="end too early"):
                read(start + number(1) + number(2**62), ORDERS)
            assert read(start + number(1) + number(2) + b"\x01" * 2 * size + b"\x00", ORDERS) == {"key": 1}
    assert payload_check(parse_schema(writer)) is None
    assert payload_check(parse_schema(writer), kept=avro_bounds.field_names(writer)) is None
