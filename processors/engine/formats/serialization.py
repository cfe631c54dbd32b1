"""The serializers and deserializers that a topic can name, for example ``json`` or ``bytes``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.infra.schemas.codecs import Part
from holdfast.processors.engine.changelog.json_values import is_plain, output_fault
from holdfast.processors.engine.formats.binary import NUMBERS, number_reader, number_writer, write_msgpack
from holdfast.processors.engine.formats.topic_format import TopicDeserializer, TopicFormat, TopicSerializer
from holdfast.processors.engine.formats.typed import parts_of

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]
#: The types of the arguments ``key_deserializer`` and ``value_deserializer``: a name, a function, or an object such as
#: ``AvroDeserializer(...)``.
DeserializerChoice = str | Deserializer | TopicDeserializer
SerializerChoice = str | Serializer | TopicSerializer

_encode_json = msgspec.json.Encoder(enc_hook=parts_of).encode


class SerializerUnknown(BadConfiguration):
    """There is no serializer or deserializer with this name."""


class ValueUnreadable(HoldfastError):
    """The topic's deserializer refused the bytes of a message."""


class ValueUnwritable(HoldfastError):
    """The topic's serializer refused a key or a value."""


def _json_out(value: Any) -> bytes:
    raw = _encode_json(value)
    if not is_plain(value, raw):
        fault = output_fault(value, raw)
        if fault is not None:
            raise TypeError(f"{fault}. `value_serializer=msgspec.json.encode` writes it so")
    return raw


def as_is(raw: bytes) -> bytes:
    """Returns the bytes unchanged: the deserializer named ``bytes``."""
    return raw


def _bytes_out(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):  # as the Kafka client does, and so Quix Streams
        return value.encode()
    raise TypeError(f"expected bytes or a text, got {type(value).__name__}")


def _text_out(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"expected str, got {type(value).__name__}")


_DESERIALIZERS: dict[str, Deserializer] = {
    "json": msgspec.json.Decoder().decode,
    "bytes": as_is,
    "str": bytes.decode,
    "string": bytes.decode,
    "msgpack": msgspec.msgpack.Decoder().decode,
    **{name: number_reader(name) for name in NUMBERS},
    "int": number_reader("integer"),
}
_SERIALIZERS: dict[str, Serializer] = {
    "json": _json_out,
    "bytes": _bytes_out,
    "str": _text_out,
    "string": _text_out,
    "msgpack": write_msgpack,
    **{name: number_writer(name) for name in NUMBERS},
    "int": number_writer("integer"),
}


def name_of_deserializer(given: Deserializer) -> str | None:
    """Returns the name of a built-in deserializer; None for a user's function."""
    return next((name for name, known in _DESERIALIZERS.items() if known is given), None)


def deserializer(given: DeserializerChoice, topic: str = "", part: Part = "value") -> Deserializer:
    """Returns the deserializing function for a name, or for an object such as ``AvroDeserializer(...)``.

    A function is returned unchanged.

    Raises:
        SerializerUnknown: No deserializer has this name, or the object is a serializer.
    """
    if isinstance(given, TopicDeserializer):
        return given.bound(topic, part)
    _check_role(given, "deserializer", topic)
    return given if callable(given) else _named(_DESERIALIZERS, given)


def serializer(given: SerializerChoice, topic: str = "", part: Part = "value") -> Serializer:
    """Returns the serializing function for a name, or for an object such as ``AvroSerializer(...)``.

    A user's function is wrapped, so that its result is checked before it is sent. If Kafka can't accept the result,
    only this message fails, and not the whole commit.

    Raises:
        SerializerUnknown: No serializer has this name, or the object is a deserializer.
    """
    if isinstance(given, TopicSerializer):
        return given.bound(topic, part)
    _check_role(given, "serializer", topic)
    if not callable(given):
        return cast(Serializer, _named(_SERIALIZERS, given))
    return given if given in _SERIALIZERS.values() else _only_bytes(given)


def _check_role(given: object, role: str, topic: str) -> None:
    if isinstance(given, TopicFormat):
        name = type(given).__name__
        raise SerializerUnknown(
            f"Topic {topic} has {name} as a {role}.",
            action=f"Pass a {role}, as {name.removesuffix('Deserializer').removesuffix('Serializer')}{role.title()}.",
            name=name,
        )


def _only_bytes(serialize: Callable[[Any], Any]) -> Serializer:
    """Wraps a serializer so that it returns bytes: texts become UTF-8, bytes-like results become bytes.

    Any other result raises TypeError. Without this check, the Kafka client would refuse the result when it is sent,
    which is too late to fail only this message.
    """

    def serialized(value: Any) -> bytes:
        made = serialize(value)
        if isinstance(made, bytes):
            return made
        if isinstance(made, str):
            return made.encode()
        if isinstance(made, (bytearray, memoryview)):
            return bytes(made)
        raise TypeError(f"its serializer returned {type(made).__name__}, expected bytes")

    return serialized


def written_headers(made: Any, topic: str) -> Headers:
    """Converts the headers that a user's function made to the form of the Kafka client.

    Raises:
        ValueUnwritable: A name is not a text, or a value is not bytes, text or None.
    """
    if made is None:
        return None
    pairs = list(made.items()) if isinstance(made, Mapping) else made
    try:
        return [(_header_name(name), _header_value(value)) for name, value in pairs]
    except (TypeError, ValueError) as failure:
        raise ValueUnwritable(
            f"The headers {made!r} can't be written to topic {topic}: {failure}.",
            action="Let `headers=` return names with bytes, texts or None: a mapping, or a list of pairs.",
            topic=topic,
        ) from failure


def _header_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name is {name!r}, expected a text")
    name.encode()  # Raises an error for a lone surrogate, because the client library would crash.
    return name


def _header_value(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    raise TypeError(f"a header's value is {value!r}, expected bytes, a text or None")


def headers_size(headers: Headers) -> int:
    """Returns the total length of the names and the values of headers, in bytes."""
    return sum(len(name.encode()) + len(value or b"") for name, value in headers or ())


def _named(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise SerializerUnknown(
            f"There is no serializer named {name!r}; there are {', '.join(sorted(known))}.",
            action="Correct the name, or pass a function.",
            name=name,
        )
    return known[name]
