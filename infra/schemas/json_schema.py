"""JSON with a schema: confluent-kafka's (de)serializers with a schema registry, and jsonschema's check without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.infra.schemas.avro import registered_form, schema_text
from holdfast.infra.schemas.codecs import KeepId, Maker, OfOneFormat
from holdfast.infra.schemas.config import SchemaRegistryInvalid, SchemaRegistrySerializationConfig
from holdfast.infra.schemas.subjects import properties_of, reading_properties

TYPE = "JSON"
_write = partial(json.dumps, allow_nan=False, separators=(",", ":"))


def reader_of(schema: Any) -> Maker:
    """Makes a deserializer; ``schema`` checks all messages, None checks each with the schema that it names."""

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        made: Callable[[Any, Any], Any] = JSONDeserializer(
            None if schema is None else registered_form(schema, TYPE),
            schema_registry_client=registry,
            json_decode=msgspec.json.decode,
            conf=reading_properties(),
        )
        return made

    return make


def writer_of(schema: Any, config: SchemaRegistrySerializationConfig) -> Maker:
    """Makes a serializer; the schema needs a ``title``, which is the record's name."""

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        made: Callable[[Any, Any], Any] = JSONSerializer(
            registered_form(schema, TYPE), registry, json_encode=_write, conf=properties_of(config, keep_id)
        )
        return made

    return make


def plain_reader(schema: Any) -> Callable[[bytes], Any]:
    """Reads JSON without a registry, and checks it by a schema."""
    check = checker(schema)

    def read(raw: bytes) -> Any:
        value = msgspec.json.decode(raw)
        check(value)
        return value

    return read


def plain_writer(schema: Any) -> Callable[[Any], bytes]:
    """Writes JSON without a registry, after a check by a schema."""
    check = checker(schema)

    def write(value: Any) -> bytes:
        check(value)
        return bytes(_write(value).encode())

    return write


def checker(schema: Any) -> Callable[[Any], None]:
    """Raises ValueError, with the path, for a value that does not fit a schema.

    Raises:
        SchemaRegistryInvalid: It is no JSON Schema.
    """
    from jsonschema import exceptions, validators

    plain = json.loads(schema_text(schema))
    kind = validators.validator_for(plain, default=validators.Draft7Validator)
    try:
        kind.check_schema(plain)
    except exceptions.SchemaError as failure:
        raise SchemaRegistryInvalid(
            f"A JSON Schema is not valid at `{failure.json_path}`: {failure.message}.", action="Correct the schema."
        ) from failure
    validator = kind(plain)

    def check(value: Any) -> None:
        for failure in validator.iter_errors(value):
            raise ValueError(f"{failure.message} - at `{failure.json_path}`")

    return check
