"""Avro: confluent-kafka's (de)serializers with a schema registry, and fastavro's without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from holdfast.infra.schemas.codecs import KeepId, Maker, OfOneFormat
from holdfast.infra.schemas.config import SchemaRegistryInvalid, SchemaRegistrySerializationConfig
from holdfast.infra.schemas.subjects import properties_of

TYPE = "AVRO"


def schema_text(schema: Any) -> str:
    """A schema as JSON with sorted keys: the same text in each process.

    Args:
        schema: JSON as text or as Python objects, or confluent-kafka's ``Schema``, which may have references.

    Raises:
        SchemaRegistryInvalid: It is no JSON.
    """
    text = getattr(schema, "schema_str", schema)
    try:
        plain = json.loads(text) if isinstance(text, str) else text
        return json.dumps(plain, sort_keys=True)
    except (ValueError, TypeError) as failure:
        raise SchemaRegistryInvalid(
            f"A schema is no JSON: {failure}.",
            action='Pass a dict, or its JSON as text, as {"type": "record", "name": "Order", "fields": [...]}.',
        ) from failure


def references_text(schema: Any) -> str:
    """The references of confluent-kafka's ``Schema`` as text; empty without any."""
    references = getattr(schema, "references", None) or ()
    return "".join(f" {each.name}={each.subject}@{each.version}" for each in references)


def registered_form(schema: Any, schema_type: str) -> Any:
    """confluent-kafka's ``Schema`` of a schema, with its references."""
    from confluent_kafka.schema_registry import Schema

    if hasattr(schema, "schema_str"):
        return schema
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Schema(text, schema_type)


def reader_of(schema: Any, *, return_record_name: bool) -> Maker:
    """Makes a deserializer; ``schema`` is the reader's, or None for that of each writer."""

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry import prefix_schema_id_deserializer, topic_subject_name_strategy
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        made: Callable[[Any, Any], Any] = AvroDeserializer(
            registry,
            None if schema is None else registered_form(schema, TYPE),
            return_record_name=return_record_name,
            conf={
                "schema.id.deserializer": prefix_schema_id_deserializer,
                "subject.name.strategy": topic_subject_name_strategy,
            },
        )
        return made

    return make


def writer_of(schema: Any, config: SchemaRegistrySerializationConfig, further: Mapping[str, Any]) -> Maker:
    """Makes a serializer; ``further`` has properties of confluent-kafka's."""

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry.avro import AvroSerializer

        made: Callable[[Any, Any], Any] = AvroSerializer(
            registry, registered_form(schema, TYPE), conf={**properties_of(config, keep_id), **further}
        )
        return made

    return make


def plain_reader(schema: Any, reader_schema: Any, options: Mapping[str, Any]) -> Callable[[bytes], Any]:
    """Reads Avro without a registry: the bytes are the payload alone, written with ``schema``."""
    from fastavro import schemaless_reader

    written, wanted = _parsed(schema), None if reader_schema is None else _parsed(reader_schema)

    def read(raw: bytes) -> Any:
        source = BytesIO(raw)
        try:
            made = schemaless_reader(source, written, wanted, **options)
        except Exception as failure:
            raise ValueError(f"it is no Avro of this schema: {failure or type(failure).__name__}") from failure
        if source.tell() != len(raw):
            raise ValueError(f"{len(raw) - source.tell()} bytes are left behind the Avro value")
        return made

    return read


def plain_writer(schema: Any, options: Mapping[str, Any]) -> Callable[[Any], bytes]:
    """Writes Avro without a registry."""
    from fastavro import schemaless_writer

    parsed = _parsed(schema)

    def write(value: Any) -> bytes:
        made = BytesIO()
        try:
            schemaless_writer(made, parsed, value, **options)
        except Exception as failure:
            raise ValueError(str(failure) or type(failure).__name__) from failure
        return made.getvalue()

    return write


def _parsed(schema: Any) -> Any:
    from fastavro import parse_schema

    try:
        return parse_schema(json.loads(schema_text(schema)))
    except Exception as failure:
        raise SchemaRegistryInvalid(
            f"fastavro can't read an Avro schema: {failure}.", action="Correct the schema."
        ) from failure


def check_schema(schema: Any) -> None:
    """Raise SchemaRegistryInvalid for what is no Avro; a schema with references is checked at the worker's start."""
    if not references_text(schema):
        _parsed(schema)
