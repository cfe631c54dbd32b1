"""Readers and writers of Protobuf: confluent-kafka's if a schema registry is used, otherwise Google's library."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.infra.schemas.codecs import KeepId, Maker, OfOneFormat
from holdfast.infra.schemas.config import SchemaRegistrySerializationConfig
from holdfast.infra.schemas.errors import SchemaUnknown
from holdfast.infra.schemas.subjects import properties_of, reading_properties

TYPE = "PROTOBUF"


def is_message_class(given: object) -> bool:
    """Whether an object is a message class that protoc generated."""
    return isinstance(given, type) and hasattr(given, "DESCRIPTOR") and hasattr(given, "SerializeToString")


def schema_hash(msg_type: Any) -> str:
    """A hash of the ``.proto`` file that defines a message, and of all files that it imports."""
    seen: dict[str, bytes] = {}

    def visit(file: Any) -> None:
        if file.name not in seen:
            seen[file.name] = file.serialized_pb
            for each in file.dependencies:
                visit(each)

    visit(msg_type.DESCRIPTOR.file)
    return hashlib.sha256(b"".join(seen[name] for name in sorted(seen))).hexdigest()[:16]


def version_text(msg_type: Any) -> str:
    """The message's name and the hash of its definition, as a text that is the same in each process."""
    return f"{msg_type.DESCRIPTOR.full_name} {schema_hash(msg_type)}"


def reader_of(msg_type: Any, made_of: Callable[[Any], Any]) -> Maker:
    """Returns a function that creates a deserializer; ``made_of`` converts a message to the value for the processor.

    Messages of another type are refused. Otherwise their bytes could be read as the expected type, with wrong fields.
    """

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry import prefix_schema_id_deserializer
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        types = _Types(registry, _path_of(msg_type.DESCRIPTOR))

        def read_id(payload: bytes, context: Any, schema_id: Any) -> Any:
            rest = prefix_schema_id_deserializer(payload, context, schema_id)
            types.check(schema_id)
            return rest

        read = ProtobufDeserializer(
            msg_type,
            {
                **reading_properties(),
                "use.deprecated.format": False,
                "schema.id.deserializer": read_id,
            },
            # No client of the schema registry is passed, because the class ``msg_type`` is enough to read the bytes.
            # With a client, the library would request the schema from the registry in another format.
            None,
        )
        return lambda raw, context: made_of(read(raw, context))

    return make


class _Types:
    """Checks that messages have the expected type.

    The schema registry gives the message type that belongs to a schema id and message indexes.
    """

    def __init__(self, registry: OfOneFormat, wanted: str) -> None:
        self._registry, self._wanted = registry, wanted
        self._known: dict[tuple[Any, tuple[int, ...]], str] = {}

    def check(self, schema_id: Any) -> None:
        place = schema_id.id or str(schema_id.guid), tuple(schema_id.message_indexes or ())
        if place not in self._known:
            self._known[place] = self._read(schema_id, place[1])
        if self._known[place] != self._wanted:
            raise SchemaUnknown(f"it is a message of type {self._known[place]}, expected {self._wanted}")

    def _read(self, schema_id: Any, indexes: Sequence[int]) -> str:
        if schema_id.id is not None:
            schema = self._registry.get_schema(schema_id.id, None, "serialized")
        else:
            schema = self._registry.get_schema_by_guid(str(schema_id.guid), "serialized")
        names = []
        messages = _messages_of(schema.schema_str)
        for index in indexes:
            if not 0 <= index < len(messages):
                raise SchemaUnknown(f"its schema has no message with the index {list(indexes)}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        return ".".join(names)


def _messages_of(text: str) -> Any:
    """The message definitions in a schema; ``text`` is a Base64 file descriptor, as the schema registry returns it."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True)).message_type
    except (binascii.Error, ValueError, DecodeError) as failure:
        raise SchemaUnknown(f"its schema is no descriptor: {failure}") from failure


def _path_of(descriptor: Any) -> str:
    """The name of a message type without its package: ``Order``, or ``Order.Item`` for a nested type."""
    package = descriptor.file.package
    return str(descriptor.full_name.removeprefix(f"{package}.") if package else descriptor.full_name)


def writer_of(msg_type: Any, config: SchemaRegistrySerializationConfig, message_of: Callable[[Any], Any]) -> Maker:
    """Returns a function that creates a serializer; ``message_of`` converts a value to a message."""

    def make(registry: OfOneFormat, keep_id: KeepId | None) -> Callable[[Any, Any], Any]:
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        further: dict[str, Any] = {"use.deprecated.format": False, "skip.known.types": config.skip_known_types}
        if config.reference_subject_name_strategy is not None:
            further["reference.subject.name.strategy"] = config.reference_subject_name_strategy
        write = ProtobufSerializer(msg_type, registry, {**properties_of(config, keep_id), **further})
        return lambda value, context: write(message_of(value), context)

    return make


def plain_reader(msg_type: Any, made_of: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    """Returns a reader of Protobuf without a schema registry: the bytes contain only the message, and no schema id."""

    def read(raw: bytes) -> Any:
        try:
            message = msg_type.FromString(raw)
        except Exception as failure:
            raise ValueError(f"it is no Protobuf message of type {_path_of(msg_type.DESCRIPTOR)}") from failure
        return made_of(message)

    return read


def plain_writer(message_of: Callable[[Any], Any], *, deterministic: bool) -> Callable[[Any], bytes]:
    """Returns a writer of Protobuf without a schema registry: the bytes get no schema id.

    ``message_of`` converts a value to a message.
    """

    def write(value: Any) -> bytes:
        message = message_of(value)
        try:
            made: bytes = message.SerializeToString(deterministic=deterministic)
        except Exception as failure:  # The message is invalid, for example because a required field is missing.
            raise ValueError(str(failure)) from failure
        return made

    return write


def message_of(msg_type: Any, *, ignore_unknown_fields: bool) -> Callable[[Any], Any]:
    """Returns a function that converts a value to a message.

    A message is returned unchanged. A dict is read as Protobuf's JSON form; anything else raises TypeError.
    """
    from google.protobuf.json_format import ParseDict

    def made(value: Any) -> Any:
        if isinstance(value, msg_type):
            return value
        if not isinstance(value, dict):
            raise TypeError(f"expected {msg_type.__name__} or a dict, got {type(value).__name__}")
        try:
            return ParseDict(value, msg_type(), ignore_unknown_fields=ignore_unknown_fields)
        except RecursionError:
            raise
        except Exception as failure:
            raise ValueError(str(failure)) from failure

    return made


def dict_of(*, integers_for_enums: bool, proto_names: bool) -> Callable[[Any], Any]:
    """Returns a function that converts a message to a dict in Protobuf's JSON form.

    Fields without presence (for example numbers in proto3) are always in the dict, even with their default value.
    """
    from google.protobuf.json_format import MessageToDict

    def made(message: Any) -> Any:
        return MessageToDict(
            message,
            always_print_fields_with_no_presence=True,
            use_integers_for_enums=integers_for_enums,
            preserving_proto_field_name=proto_names,
        )

    return made
