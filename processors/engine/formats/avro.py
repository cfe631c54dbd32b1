"""Serializer and deserializer for topics in Avro, with or without a schema registry."""

from __future__ import annotations

from typing import Any

from holdfast.infra.schemas import avro
from holdfast.infra.schemas.codecs import Part
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.processors.engine.formats.serialization import Deserializer, Serializer
from holdfast.processors.engine.formats.topic_format import FormatInvalid, TopicDeserializer, TopicSerializer


class AvroDeserializer(TopicDeserializer):
    """Deserializes Avro.

    Args:
        schema: With a schema registry: the schema to which each message is converted; None returns each message as it
            was written. Without a registry: the schema with which all messages were written.
        reader_schema: Without a registry: the schema to which each message is converted; None means ``schema``.
        return_record_name: Whether a record inside a union becomes a tuple (name of the record, record).
        schema_registry_client_config: The schema registry; None means that messages do not begin with a schema id.

    A schema is a dict, its JSON as text, or confluent-kafka's ``Schema``, which may have references.

    Raises:
        FormatInvalid: Neither a schema nor a registry is given.
        SchemaRegistryInvalid: The schema is not a valid Avro schema.
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
        """The format and its schemas in one line of text, which is a part of the processor's version."""
        schemas = " ".join(map(avro.version_text, (self._schema, self._reader_schema)))
        return f"avro deserializer {schemas} names={self._names} registry={self.config is not None}"

    def bound(self, topic: str, part: Part) -> Deserializer:
        """Returns the function that deserializes the keys or the values of one topic."""
        if self.config is not None:
            return self.of_registry(topic, part, avro.reader_of(self._schema, return_record_name=self._names))
        return avro.plain_reader(self._schema, self._reader_schema, {"return_record_name": self._names})


class AvroSerializer(TopicSerializer):
    """Serializes to Avro.

    Args:
        schema: The schema of the messages: a dict, its JSON as text, or confluent-kafka's ``Schema``.
        strict: Whether a value is refused if its fields differ from the schema's.
        strict_allow_default: Like ``strict``, but fields with a default value may be missing.
        schema_registry_client_config: The schema registry; None writes messages without a schema id.
        schema_registry_serialization_config: Options such as automatic registration and the position of the schema id.

    Raises:
        FormatInvalid: The arguments contradict each other.
        SchemaRegistryInvalid: The schema is not a valid Avro schema.
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
        """The format and its schema in one line of text, which is a part of the processor's version."""
        schema = avro.version_text(self._schema)
        options = f"strict={self._strict} defaults={self._defaults} registry={self.config is not None}"
        return f"avro serializer {schema} {options} {self.writing.text}"

    def bound(self, topic: str, part: Part) -> Serializer:
        """Returns the function that serializes the keys or the values of one topic."""
        if self.config is not None:
            further = {"validate.strict": self._strict, "validate.strict.allow.default": self._defaults}
            further = {name: value for name, value in further.items() if value}
            return self.of_registry(topic, part, avro.writer_of(self._schema, self.writing, further))
        options = {"strict": self._strict, "strict_allow_default": self._defaults}
        return avro.plain_writer(self._schema, options)
