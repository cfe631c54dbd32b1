"""A record outside of a stream: what ``topic.serialize`` makes, and what ``topic.deserialize`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.infra.kafka.records import Headers
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.formats.serialization import (
    Deserializer,
    Serializer,
    ValueUnreadable,
    ValueUnwritable,
)

#: Headers as users write them: names with bytes, texts or None.
GivenHeaders = Mapping[str, Any] | Sequence[tuple[str, Any]] | None


@dataclass(frozen=True, slots=True)
class KafkaMessage:
    """Key and value of a record, serialized or deserialized.

    Attributes:
        key: The key; None for a record without a key.
        value: The value; None deletes the key in a compacted topic.
        headers: Pairs of names and bytes; None for none.
        timestamp: Milliseconds since 1970; None for the time of sending.
    """

    key: Any
    value: Any
    headers: Headers = None
    timestamp: int | None = None


def serialized(part: str, value: Any, serialize: Serializer, topic: str) -> bytes | None:
    """The bytes of a key or a value; None stays None.

    Raises:
        ValueUnwritable: The serializer refused it.
    """
    if value is None:
        return None
    try:
        return serialize(value)
    except (TypeError, ValueError, OverflowError) as failure:
        raise ValueUnwritable(
            f"A {part} of type {type(value).__name__} can't be written to topic {topic}: {failure}.",
            action=f"Set a `{part}_serializer` in `app.topic({topic!r})` that takes this type.",
            topic=topic,
        ) from failure


def deserialized(part: str, raw: bytes | None, deserialize: Deserializer, topic: str) -> Any:
    """The key or the value of bytes; None stays None.

    Raises:
        ValueUnreadable: The deserializer refused them.
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
    """A part of a message of the client library, where it is a method, or of a record, where it is an attribute."""
    found = getattr(message, name, None)
    return found() if callable(found) else found


def time_of(message: Any) -> int | None:
    """The timestamp of such a message."""
    given = part_of(message, "timestamp")
    if given is None:
        given = part_of(message, "timestamp_ms")
    made = given[1] if isinstance(given, tuple) else given
    return None if made is None else int(made)
