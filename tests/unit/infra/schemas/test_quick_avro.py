"""The fast Avro reader for known schemas accepts and refuses the same values as confluent-kafka's deserializer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirReader
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirWriter
from confluent_kafka.serialization import SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from holdfast import AvroDeserializer, SchemaRegistryClientConfig
from holdfast.infra.schemas.registry import Registries
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes"},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
    ],
}
NEWER = {**FIRST, "fields": [*FIRST["fields"], {"name": "n", "type": "int", "default": 7}]}
CONTEXT = SerializationContext("orders", "value")
CONFIG = SchemaRegistryClientConfig(url="mock://quick")
ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "note": st.none() | st.text(max_size=5),
        "raw": st.binary(max_size=5),
        "prices": st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
        "n": st.integers(0, 9),
    }
)


@pytest.fixture(scope="module")
def client() -> SchemaRegistryClient:
    registries = Registries(SchemaRegistrySettings())
    return registries.client(CONFIG)._client  # type: ignore[no-any-return]  # the one in memory that all share


def ours(schema: Any = None) -> Any:
    made = AvroDeserializer(schema, schema_registry_client_config=CONFIG).bound("orders", "value")
    made.connect(Registries(SchemaRegistrySettings()))  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("reader", [None, FIRST, NEWER])
def test_known_schemas_are_read_as_by_confluents_deserializer(client: SchemaRegistryClient, reader: Any) -> None:
    read, theirs = ours(reader), TheirReader(client, None if reader is None else json.dumps(reader))
    writers = [TheirWriter(client, json.dumps(each)) for each in (FIRST, NEWER)]

    @given(ORDERS)
    def compare(order: Any) -> None:
        for write in writers:
            raw = write(order, CONTEXT)
            assert raw is not None
            assert read(raw) == theirs(raw, CONTEXT)

    compare()


def test_bytes_that_break_off_are_refused_by_both_ways(client: SchemaRegistryClient) -> None:
    read = ours()
    raw = TheirWriter(client, json.dumps(FIRST))({"id": 1, "note": "x", "raw": b"ab", "prices": {"a": 1.0}}, CONTEXT)
    assert raw is not None
    for _ in range(2):  # the first round fetches the schema, the second round uses the fast reader
        for length in range(len(raw)):
            with pytest.raises(ValueError) as refused:
                read(raw[:length])
            assert str(refused.value).strip()[-1] not in ":("  # the reason is not empty
        read(raw)


def test_a_schema_of_bytes_alone_is_read_as_they_are(client: SchemaRegistryClient) -> None:
    read, raw = ours(), TheirWriter(client, '"bytes"')(b"abc", CONTEXT)
    assert [read(raw), read(raw)] == [b"abc", b"abc"]


def test_an_array_that_breaks_off_says_so(client: SchemaRegistryClient) -> None:
    schema = {"type": "array", "items": "string"}
    raw = TheirWriter(client, json.dumps(schema))(["a", "b"], CONTEXT)
    assert raw is not None
    with_registry, without = ours(), AvroDeserializer(schema).bound("orders", "value")
    for read, whole in ((with_registry, raw), (with_registry, raw), (without, raw[5:])):
        with pytest.raises(ValueError, match="the bytes end too early"):
            read(whole[:-1])
        assert read(whole) == ["a", "b"]
