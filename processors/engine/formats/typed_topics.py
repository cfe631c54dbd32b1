"""Makes the value (de)serializers of topics whose values are instances of a class, for each format."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.infra.schemas import protobuf
from holdfast.infra.schemas.codecs import RegistryReader, RegistryWriter
from holdfast.processors.engine.formats.avro import AvroSerializer
from holdfast.processors.engine.formats.protobuf import ProtobufDeserializer, ProtobufSerializer
from holdfast.processors.engine.formats.serialization import (
    Deserializer,
    DeserializerChoice,
    Serializer,
    SerializerChoice,
    deserializer,
    serializer,
)
from holdfast.processors.engine.formats.topic_format import FormatInvalid, TopicFormat
from holdfast.processors.engine.formats.typed import Model

#: Names of formats whose values have named fields, from which instances can be made.
_WITH_FIELDS = ("json", "msgpack")


def typed_deserializer(given: DeserializerChoice, topic: str, model: Model | None) -> Deserializer:
    """Returns the value deserializer of a topic. With a ``model``, it returns instances of the model's class.

    Raises:
        FormatInvalid: The values of the format have no named fields, so they can't become instances.
    """
    if model is None:
        return deserializer(given, topic, "value")
    if given == "json":
        return model.decode
    if isinstance(given, ProtobufDeserializer) and given.msg_type is model.kind:
        return given.of_messages().bound(topic, "value")
    _check_fields(given, topic, model)
    made = deserializer(given, topic, "value")
    if isinstance(made, RegistryReader):
        made.then = model.convert
        return made
    return model.read_by(made)


def typed_serializer(given: SerializerChoice, topic: str, model: Model | None) -> Serializer:
    """Returns the value serializer of a topic. With a ``model``, it takes instances of the model's class.

    Raises:
        FormatInvalid: The values of the format have no named fields, so instances can't be written in it.
    """
    if model is None:
        return serializer(given, topic, "value")
    if given == "json":
        return model.write
    if isinstance(given, ProtobufSerializer) and given.msg_type is model.kind:
        return serializer(given, topic, "value")
    _check_fields(given, topic, model)
    made = serializer(given, topic, "value")
    if callable(given) and not isinstance(given, TopicFormat):
        return made
    parts = model.parts(json=not isinstance(given, (str, AvroSerializer)))
    if isinstance(made, RegistryWriter):
        made.before = parts
        return made
    write = msgspec.msgpack.encode if given == "msgpack" else made
    return lambda value: write(parts(value))


def _check_fields(given: Any, topic: str, model: Model) -> None:
    if protobuf.is_message_class(model.kind):
        raise FormatInvalid(
            f"Topic {topic} has `value={model.kind.__name__}`, a class of Protobuf, and another format.",
            action="Leave the (de)serializers out, or pass `ProtobufDeserializer` and `ProtobufSerializer` of the "
            "same class.",
            topic=topic,
        )
    if isinstance(given, str) and given not in _WITH_FIELDS:
        raise FormatInvalid(
            f"Topic {topic} has `value={model.kind.__name__}` and the format {given!r}, which has no fields.",
            action="Leave the (de)serializer out, or write 'json', 'msgpack', or an object such as "
            "`AvroDeserializer(...)`.",
            topic=topic,
        )
