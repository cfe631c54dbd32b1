"""A record outside of a stream: the result of ``topic.serialize``, and the argument of ``topic.deserialize``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.infra.kafka.records import Headers
from holdfast.infra.schemas.errors import NestedTooDeeply, SchemaRegistryFailed
from holdfast.processors.engine.formats.serialization import (
    Deserializer,
    Serializer,
    ValueUnreadable,
    ValueUnwritable,
)

#: The exceptions with which a serializer refuses a value.
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
#: Headers in the forms that users may pass: names with bytes, texts or None, as a mapping or as pairs.
GivenHeaders = Mapping[str, Any] | Sequence[tuple[str, Any]] | None


@dataclass(frozen=True, slots=True)
class KafkaMessage:
    """A record: its key, value, headers and time. Key and value are either both serialized or both deserialized.

    Attributes:
        key: The key; None for a record without a key.
        value: The value; None deletes the key in a compacted topic.
        headers: Pairs of names and bytes; None means no headers.
        timestamp: Milliseconds since 1970; None means the time at which the record is sent.
    """

    key: Any
    value: Any
    headers: Headers = None
    timestamp: int | None = None


def serialized(part: str, value: Any, serialize: Serializer, topic: str) -> bytes | None:
    """Serializes a key or a value to bytes. None is returned unchanged.

    Raises:
        ValueUnwritable: The serializer refused the value.
    """
    if value is None:
        return None
    try:
        return serialize(value)
    except UNWRITABLE as failure:
        raise unwritable(part, value, topic, failure, f"`app.topic({topic!r})`") from failure


def unwritable(part: str, value: Any, topic: str, failure: Exception, where: str) -> ValueUnwritable:
    """The error for a key or a value that the serializer refused; ``where`` is the code that sets the serializer."""
    said = f"A {part} of type {type(value).__name__} can't be written to topic {topic}: {failure}."
    if isinstance(failure, (RecursionError, NestedTooDeeply)):
        return ValueUnwritable(said, action=f"Write a {part} that is nested less deeply.", topic=topic)
    return ValueUnwritable(said, action=f"Set a `{part}_serializer` in {where} that takes this type.", topic=topic)


def deserialized(part: str, raw: bytes | None, deserialize: Deserializer, topic: str) -> Any:
    """Deserializes the bytes of a key or of a value. None is returned unchanged.

    Raises:
        ValueUnreadable: The deserializer refused the bytes.
    """
    if raw is None:
        return None
    try:
        return deserialize(raw)
    except SchemaRegistryFailed:
        raise
    except Exception as failure:
        raise ValueUnreadable(
            f"The {part} of a message of topic {topic} can't be read: {failure} (it begins with {raw[:40]!r}).",
            action=f"Correct the producer or the topic's `{part}_deserializer`.",
            topic=topic,
        ) from failure


def part_of(message: Any, name: str) -> Any:
    """Returns a part of a message, for example ``key``.

    A message of the client library has a method for each part. A ``KafkaMessage`` has an attribute for each part.
    """
    found = getattr(message, name, None)
    return found() if callable(found) else found


def time_of(message: Any) -> int | None:
    """Returns the timestamp of a message in milliseconds since 1970; None if the message has no timestamp."""
    given = part_of(message, "timestamp")
    if given is None:
        given = part_of(message, "timestamp_ms")
    made = given[1] if isinstance(given, tuple) else given
    return None if made is None else int(made)
