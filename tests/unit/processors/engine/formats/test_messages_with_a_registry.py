"""``topic.serialize`` and ``topic.deserialize`` of topics with a schema registry, outside of a worker."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from holdfast import (
    Application,
    AvroDeserializer,
    AvroSerializer,
    SchemaRegistryClientConfig,
    SchemaRegistrySerializationConfig,
)
from holdfast.infra.schemas.codecs import ID_HEADERS
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.formats.serialization import ValueUnreadable, ValueUnwritable

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "string"}, {"name": "price", "type": "double"}],
}
VALUE = {"id": "a", "price": 1.5}


def topic_of(where: Literal["prefix", "header"], registry: SchemaRegistryClientConfig) -> Any:
    writing = SchemaRegistrySerializationConfig(schema_id=where)
    return Application(consumer_group="shop").topic(
        "orders",
        value_serializer=AvroSerializer(
            ORDER, schema_registry_client_config=registry, schema_registry_serialization_config=writing
        ),
        value_deserializer=AvroDeserializer(schema_registry_client_config=registry),
    )


@pytest.mark.parametrize("where", ["prefix", "header"])
def test_a_message_is_written_and_read_with_the_id_of_its_schema(where: Literal["prefix", "header"]) -> None:
    topic = topic_of(where, SchemaRegistryClientConfig(url=f"mock://alone-{where}"))
    made = topic.serialize(b"k", VALUE, headers={"trace": "7"})
    names = [name for name, _ in made.headers]
    assert names == (["trace"] if where == "prefix" else ["trace", ID_HEADERS["value"]])
    assert topic.deserialize(made).value == VALUE
    assert topic.serialize(b"k").value is None


def test_what_does_not_fit_is_refused_and_a_registry_that_is_away_blames_no_message() -> None:
    topic = topic_of("prefix", SchemaRegistryClientConfig(url="mock://alone-unfit"))
    with pytest.raises(ValueUnwritable, match="orders"):
        topic.serialize(b"k", {"id": "a"})
    made = topic.serialize(b"k", VALUE)
    made = type(made)(made.key, b"{}", made.headers, made.timestamp)
    with pytest.raises(ValueUnreadable, match="orders"):
        topic.deserialize(made)
    away = topic_of("prefix", SchemaRegistryClientConfig(url="http://127.0.0.1:9"))
    with pytest.raises(SchemaRegistryFailed):
        away.deserialize(topic.serialize(b"k", VALUE))
