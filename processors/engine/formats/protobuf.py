"""Serializer and deserializer for topics in Protobuf, with or without a schema registry."""

from __future__ import annotations

from typing import Any

from holdfast.infra.schemas import protobuf
from holdfast.infra.schemas.codecs import Part
from holdfast.infra.schemas.config import SchemaRegistryClientConfig, SchemaRegistrySerializationConfig
from holdfast.processors.engine.formats.serialization import Deserializer, Serializer
from holdfast.processors.engine.formats.topic_format import FormatInvalid, TopicDeserializer, TopicSerializer


class ProtobufDeserializer(TopicDeserializer):
    """Deserializes Protobuf.

    Args:
        msg_type: The class that protoc generated.
        use_integers_for_enums: Whether dicts contain enum values as numbers instead of names.
        preserving_proto_field_name: Whether fields in dicts have the names of the ``.proto`` file instead of
            ``lowerCamel`` names.
        to_dict: Whether functions get a dict in the form of Protobuf's JSON. False gives them the Protobuf message.
        schema_registry_client_config: The schema registry; None means that messages do not begin with a schema id.

    Raises:
        FormatInvalid: ``msg_type`` is not a class that protoc generated.
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
        """Returns a deserializer of the same class with ``to_dict=False``, so that functions get Protobuf messages."""
        return ProtobufDeserializer(self.msg_type, to_dict=False, schema_registry_client_config=self.config)

    @property
    def text(self) -> str:
        """The format and its schema in one line of text, which is a part of the processor's version."""
        options = f"dict={self.to_dict} enums={self._enums} names={self._names} registry={self.config is not None}"
        return f"protobuf deserializer {protobuf.version_text(self.msg_type)} {options}"

    def bound(self, topic: str, part: Part) -> Deserializer:
        """Returns the function that deserializes the keys or the values of one topic."""
        made = protobuf.dict_of(integers_for_enums=self._enums, proto_names=self._names) if self.to_dict else _itself
        if self.config is not None:
            return self.of_registry(topic, part, protobuf.reader_of(self.msg_type, made))
        return protobuf.plain_reader(self.msg_type, made)


class ProtobufSerializer(TopicSerializer):
    """Serializes Protobuf messages, or dicts in the form of Protobuf's JSON.

    Args:
        msg_type: The class that protoc generated.
        deterministic: Without a registry: whether entries of maps are sorted by key.
        ignore_unknown_fields: Whether fields of a dict that the message type lacks are left out. Otherwise such a dict
            is refused.
        schema_registry_client_config: The schema registry; None writes messages without a schema id.
        schema_registry_serialization_config: Options such as automatic registration and the position of the schema id.

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
        """The format and its schema in one line of text, which is a part of the processor's version."""
        options = f"deterministic={self._deterministic} ignores={self._ignores} registry={self.config is not None}"
        return f"protobuf serializer {protobuf.version_text(self.msg_type)} {options} {self.writing.text}"

    def bound(self, topic: str, part: Part) -> Serializer:
        """Returns the function that serializes the keys or the values of one topic."""
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
