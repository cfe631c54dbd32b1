"""Readers and writers of JSON with a schema: confluent-kafka's if a schema registry is used, otherwise jsonschema's."""

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
    """Returns a function that creates a deserializer.

    All messages are checked against ``schema``. If it is None, each message is checked against the schema that it
    names.
    """

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
    """Returns a function that creates a serializer; the schema needs a ``title``, which is the record's name."""

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        made: Callable[[Any, Any], Any] = JSONSerializer(
            registered_form(schema, TYPE), registry, json_encode=_write, conf=properties_of(config, keep_id)
        )
        return made

    return make


def plain_reader(schema: Any) -> Callable[[bytes], Any]:
    """Returns a reader of JSON without a schema registry, which checks each value against ``schema``."""
    check = checker(schema)

    def read(raw: bytes) -> Any:
        value = msgspec.json.decode(raw)
        check(value)
        return value

    return read


def plain_writer(schema: Any) -> Callable[[Any], bytes]:
    """Returns a writer of JSON without a schema registry, which checks each value against ``schema``."""
    check = checker(schema)

    def write(value: Any) -> bytes:
        check(value)
        return bytes(_write(value).encode())

    return write


def checker(schema: Any) -> Callable[[Any], None]:
    """Returns a function that raises ValueError, with the path of the fault, for a value that does not fit ``schema``.

    Raises:
        SchemaRegistryInvalid: ``schema`` is not a JSON Schema.
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
