"""The serializers and deserializers of keys and values, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.infra.errors import BadConfiguration, HoldfastError

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]

_encode_json = msgspec.json.Encoder().encode


class SerializerUnknown(BadConfiguration):
    """No (de)serializer has this name."""


class ValueUnreadable(HoldfastError):
    """The topic's deserializer refused the bytes of a message."""


class ValueUnwritable(HoldfastError):
    """The topic's serializer refused a key or a value."""


def as_is(raw: bytes) -> bytes:
    """The bytes themselves: the deserializer ``bytes``."""
    return raw


def _bytes_out(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise TypeError(f"expected bytes, got {type(value).__name__}")


def _text_out(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"expected str, got {type(value).__name__}")


_DESERIALIZERS: dict[str, Deserializer] = {
    "json": msgspec.json.Decoder().decode,
    "bytes": as_is,
    "str": bytes.decode,
    "string": bytes.decode,
}
_SERIALIZERS: dict[str, Serializer] = {
    "json": _encode_json,
    "bytes": _bytes_out,
    "str": _text_out,
    "string": _text_out,
}


def deserializer(given: str | Deserializer) -> Deserializer:
    """The deserializer with this name, or SerializerUnknown; a function is returned as it is."""
    return given if callable(given) else _named(_DESERIALIZERS, given)


def serializer(given: str | Serializer) -> Serializer:
    """The serializer with this name, or SerializerUnknown; a function is returned as it is."""
    return given if callable(given) else _named(_SERIALIZERS, given)


def _named(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise SerializerUnknown(
            f"There is no serializer named {name!r}; there are {', '.join(sorted(known))}.",
            action="Correct the name, or pass a function.",
            name=name,
        )
    return known[name]
