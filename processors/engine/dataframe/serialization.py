"""What the bytes of keys and values mean, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]

_encode_json = msgspec.json.Encoder().encode


class SerializerUnknown(HoldfastError):
    """A (de)serializer's name is not one of ours."""

    exit_code = EXIT_BAD_CONFIGURATION


class ValueUnreadable(HoldfastError):
    """The bytes of a message are not what its topic says."""


class ValueUnwritable(HoldfastError):
    """An output can't be written as its topic says."""


def as_is(raw: bytes) -> bytes:
    """What ``bytes`` means."""
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
    """The function for a name; a function is taken as it is.

    Raises:
        SerializerUnknown: No such name.
    """
    return given if callable(given) else _named(_DESERIALIZERS, given)


def serializer(given: str | Serializer) -> Serializer:
    """The function for a name; a function is taken as it is.

    Raises:
        SerializerUnknown: No such name.
    """
    return given if callable(given) else _named(_SERIALIZERS, given)


def _named(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise SerializerUnknown(
            f"There is no serializer named {name!r}.",
            action=f"Use one of {', '.join(sorted(known))}, or pass a function.",
            name=name,
        )
    return known[name]
