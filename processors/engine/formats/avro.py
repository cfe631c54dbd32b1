"""Avro as a topic's (de)serializer, with a schema registry or without one."""

from __future__ import annotations

from typing import Any

from holdfast.infra.schemas import avro
from holdfast.infra.schemas.codecs import Part
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.processors.engine.formats.serialization import Deserializer, Serializer
from holdfast.processors.engine.formats.topic_format import FormatInvalid, TopicDeserializer, TopicSerializer


class AvroDeserializer(TopicDeserializer):
    """Reads Avro.

    Args:
        schema: With a schema registry: the schema of the result, whatever schema a message was written with; None
            takes that of each message. Without a registry: the schema that all messages were written with.
        reader_schema: Without a registry: the schema of the result; None takes ``schema``.
        return_record_name: Return a record in a union as a tuple of its name and itself.
        schema_registry_client_config: The registry; None reads bytes without an id of a schema.

    A schema is a dict, its JSON as text, or confluent-kafka's ``Schema``, which may have references.

    Raises:
        FormatInvalid: Neither a schema nor a registry is given.
        SchemaRegistryInvalid: The schema is no Avro.
        ExtraMissing: The libraries of the extra ``avro`` are not installed.
    """

    extra, schema_type = "avro", avro.TYPE

    def __init__(
        self,
        schema: Any = None,
        *,
        reader_schema: Any = None,
        return_record_name: bool = False,
        schema_registry_client_config: SchemaRegistryClientConfig | None = None,
    ) -> None:
        super().__init__(schema_registry_client_config)
        if schema is None and self.config is None:
            raise FormatInvalid(
                "AvroDeserializer has neither a schema nor a schema registry.",
                action="Pass `schema_registry_client_config=SchemaRegistryClientConfig()`, or the schema of all "
                "messages.",
            )
        if reader_schema is not None and self.config is not None:
            raise FormatInvalid(
                "AvroDeserializer has `reader_schema` and a schema registry, which has the writers' schemas.",
                action="Pass the schema of the result as `schema`.",
            )
        for each in (schema, reader_schema):
            if each is not None:
                avro.check_schema(each)
        self._schema, self._reader_schema, self._names = schema, reader_schema, return_record_name

    @property
    def text(self) -> str:
        """The format in a line."""
        schemas = " ".join(map(avro.version_text, (self._schema, self._reader_schema)))
        return f"avro deserializer {schemas} names={self._names} registry={self.config is not None}"

    def bound(self, topic: str, part: Part) -> Deserializer:
        """The function for one topic's keys or values."""
        if self.config is not None:
            return self.of_registry(topic, part, avro.reader_of(self._schema, return_record_name=self._names))
        return avro.plain_reader(self._schema, self._reader_schema, {"return_record_name": self._names})


class AvroSerializer(TopicSerializer):
    """Writes Avro.

    Args:
        schema: The schema, as for ``AvroDeserializer``.
        strict: Refuse a value with other fields than the schema has.
        strict_allow_default: Refuse a value with other fields, but allow that fields with a default are left out.
        schema_registry_client_config: The registry; None writes bytes without an id of the schema.
        schema_registry_serialization_config: How the registry is used.

    Raises:
        FormatInvalid: The arguments contradict each other.
        SchemaRegistryInvalid: The schema is no Avro.
        ExtraMissing: The libraries of the extra ``avro`` are not installed.
    """

    extra, schema_type = "avro", avro.TYPE

    def __init__(
        self,
        schema: Any,
        *,
        strict: bool = False,
        strict_allow_default: bool = False,
        schema_registry_client_config: SchemaRegistryClientConfig | None = None,
        schema_registry_serialization_config: SchemaRegistrySerializationConfig | None = None,
    ) -> None:
        super().__init__(schema_registry_client_config, schema_registry_serialization_config)
        avro.check_schema(schema)
        self._schema, self._strict, self._defaults = schema, strict, strict_allow_default

    @property
    def text(self) -> str:
        """The format in a line."""
        schema = avro.version_text(self._schema)
        options = f"strict={self._strict} defaults={self._defaults} registry={self.config is not None}"
        return f"avro serializer {schema} {options} {self.writing.text}"

    def bound(self, topic: str, part: Part) -> Serializer:
        """The function for one topic's keys or values."""
        if self.config is not None:
            further = {"validate.strict": self._strict, "validate.strict.allow.default": self._defaults}
            further = {name: value for name, value in further.items() if value}
            return self.of_registry(topic, part, avro.writer_of(self._schema, self.writing, further))
        options = {"strict": self._strict, "strict_allow_default": self._defaults}
        return avro.plain_writer(self._schema, options)
