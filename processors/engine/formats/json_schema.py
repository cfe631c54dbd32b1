"""Serializer and deserializer for topics in JSON with a JSON Schema, with or without a schema registry."""

from __future__ import annotations

from typing import Any

from holdfast.infra.schemas import avro, json_schema
from holdfast.infra.schemas.codecs import Part
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.processors.engine.formats.serialization import Deserializer, Serializer
from holdfast.processors.engine.formats.topic_format import FormatInvalid, TopicDeserializer, TopicSerializer


class JSONDeserializer(TopicDeserializer):
    """Deserializes JSON and validates it against a JSON Schema.

    Args:
        schema: The schema for all messages, as a dict, as text, or as confluent-kafka's ``Schema``. None validates each
            message against the schema whose id it contains.
        schema_registry_client_config: The schema registry; None means that messages do not begin with a schema id.

    Raises:
        FormatInvalid: Neither a schema nor a registry is given.
        SchemaRegistryInvalid: The schema is not valid.
        ExtraMissing: The libraries of the extra ``json-schema`` are not installed.
    """

    extra, schema_type = "json-schema", json_schema.TYPE

    def __init__(
        self, schema: Any = None, *, schema_registry_client_config: SchemaRegistryClientConfig | None = None
    ) -> None:
        super().__init__(schema_registry_client_config)
        if schema is None and self.config is None:
            raise FormatInvalid(
                "JSONDeserializer has neither a schema nor a schema registry.",
                action="Pass a schema; or write `value_deserializer='json'` for JSON without one.",
            )
        if schema is not None:
            json_schema.checker(schema)
        self._schema = schema

    @property
    def text(self) -> str:
        """The format and its schema in one line of text, which is a part of the processor's version."""
        return f"json schema deserializer {avro.version_text(self._schema)} registry={self.config is not None}"

    def bound(self, topic: str, part: Part) -> Deserializer:
        """Returns the function that deserializes the keys or the values of one topic."""
        if self.config is not None:
            return self.of_registry(topic, part, json_schema.reader_of(self._schema))
        return json_schema.plain_reader(self._schema)


class JSONSerializer(TopicSerializer):
    """Validates a value against a JSON Schema and serializes it to JSON.

    Args:
        schema: The schema, as for ``JSONDeserializer``; with a registry it needs a ``title``.
        schema_registry_client_config: The schema registry; None writes messages without a schema id.
        schema_registry_serialization_config: Options such as automatic registration and the position of the schema id.

    Raises:
        FormatInvalid: The arguments contradict each other.
        SchemaRegistryInvalid: The schema is not valid.
        ExtraMissing: The libraries of the extra ``json-schema`` are not installed.
    """

    extra, schema_type = "json-schema", json_schema.TYPE

    def __init__(
        self,
        schema: Any,
        *,
        schema_registry_client_config: SchemaRegistryClientConfig | None = None,
        schema_registry_serialization_config: SchemaRegistrySerializationConfig | None = None,
    ) -> None:
        super().__init__(schema_registry_client_config, schema_registry_serialization_config)
        json_schema.checker(schema)
        self._schema = schema

    @property
    def text(self) -> str:
        """The format and its schema in one line of text, which is a part of the processor's version."""
        schema = avro.version_text(self._schema)
        return f"json schema serializer {schema} registry={self.config is not None} {self.writing.text}"

    def bound(self, topic: str, part: Part) -> Serializer:
        """Returns the function that serializes the keys or the values of one topic."""
        if self.config is not None:
            return self.of_registry(topic, part, json_schema.writer_of(self._schema, self.writing))
        return json_schema.plain_writer(self._schema)
