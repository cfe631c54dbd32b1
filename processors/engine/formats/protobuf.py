"""Protobuf as a topic's (de)serializer, with a schema registry or without one."""

from __future__ import annotations

from typing import Any

from holdfast.infra.schemas import protobuf
from holdfast.infra.schemas.codecs import Part
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.processors.engine.formats.serialization import Deserializer, Serializer
from holdfast.processors.engine.formats.topic_format import FormatInvalid, TopicDeserializer, TopicSerializer


class ProtobufDeserializer(TopicDeserializer):
    """Reads Protobuf.

    Args:
        msg_type: The class that protoc generated.
        use_integers_for_enums: In a dict, enums are numbers instead of names.
        preserving_proto_field_name: In a dict, fields have the names of the ``.proto`` file instead of ``lowerCamel``.
        to_dict: Functions get a dict in the form of Protobuf's JSON; False gives them the message itself.
        schema_registry_client_config: The registry; None reads bytes without an id of a schema.

    Raises:
        FormatInvalid: ``msg_type`` is no such class.
        ExtraMissing: The libraries of the extra ``protobuf`` are not installed.
    """

    extra, schema_type = "protobuf", protobuf.TYPE

    def __init__(
        self,
        msg_type: Any,
        *,
        use_integers_for_enums: bool = False,
        preserving_proto_field_name: bool = False,
        to_dict: bool = True,
        schema_registry_client_config: SchemaRegistryClientConfig | None = None,
    ) -> None:
        super().__init__(schema_registry_client_config)
        _check(msg_type)
        self.msg_type, self.to_dict = msg_type, to_dict
        self._enums, self._names = use_integers_for_enums, preserving_proto_field_name

    def of_messages(self) -> ProtobufDeserializer:
        """The same with messages as values."""
        return ProtobufDeserializer(self.msg_type, to_dict=False, schema_registry_client_config=self.config)

    @property
    def text(self) -> str:
        """The format in a line."""
        options = f"dict={self.to_dict} enums={self._enums} names={self._names} registry={self.config is not None}"
        return f"protobuf deserializer {protobuf.version_text(self.msg_type)} {options}"

    def bound(self, topic: str, part: Part) -> Deserializer:
        """The function for one topic's keys or values."""
        made = protobuf.dict_of(integers_for_enums=self._enums, proto_names=self._names) if self.to_dict else _itself
        if self.config is not None:
            return self.of_registry(topic, part, protobuf.reader_of(self.msg_type, made))
        return protobuf.plain_reader(self.msg_type, made)


class ProtobufSerializer(TopicSerializer):
    """Writes Protobuf, from messages or from dicts in the form of Protobuf's JSON.

    Args:
        msg_type: The class that protoc generated.
        deterministic: Without a registry: write the entries of maps in the order of their keys.
        ignore_unknown_fields: Leave out fields of a dict that the message does not have, instead of refusing it.
        schema_registry_client_config: The registry; None writes bytes without an id of the schema.
        schema_registry_serialization_config: How the registry is used.

    Raises:
        FormatInvalid: The arguments contradict each other.
        ExtraMissing: The libraries of the extra ``protobuf`` are not installed.
    """

    extra, schema_type = "protobuf", protobuf.TYPE

    def __init__(
        self,
        msg_type: Any,
        *,
        deterministic: bool = False,
        ignore_unknown_fields: bool = False,
        schema_registry_client_config: SchemaRegistryClientConfig | None = None,
        schema_registry_serialization_config: SchemaRegistrySerializationConfig | None = None,
    ) -> None:
        super().__init__(schema_registry_client_config, schema_registry_serialization_config)
        _check(msg_type)
        self.msg_type = msg_type
        self._deterministic, self._ignores = deterministic, ignore_unknown_fields

    @property
    def text(self) -> str:
        """The format in a line."""
        options = f"deterministic={self._deterministic} ignores={self._ignores} registry={self.config is not None}"
        return f"protobuf serializer {protobuf.version_text(self.msg_type)} {options} {self.writing.text}"

    def bound(self, topic: str, part: Part) -> Serializer:
        """The function for one topic's keys or values."""
        message_of = protobuf.message_of(self.msg_type, ignore_unknown_fields=self._ignores)
        if self.config is not None:
            return self.of_registry(topic, part, protobuf.writer_of(self.msg_type, self.writing, message_of))
        return protobuf.plain_writer(message_of, deterministic=self._deterministic)


def _check(msg_type: Any) -> None:
    if not protobuf.is_message_class(msg_type):
        raise FormatInvalid(
            f"`msg_type` is {msg_type!r}, expected a class that protoc generated.",
            action="Pass the class itself, as `orders_pb2.Order`.",
        )


def _itself(message: Any) -> Any:
    return message
