"""Deserializes values, keys and headers of consecutive messages in one call, up to the first unreadable message."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import Batch, Headers
from holdfast.infra.schemas.codecs import RegistryReader, without_value_id
from holdfast.processors.engine.formats.serialization import Deserializer, ValueUnreadable, as_is

#: Exceptions that do not inherit from Exception. If a user function raises one of them, the message fails, as with any
#: other exception.
ENDING = (SystemExit, GeneratorExit)

#: Maximum records that are deserialized in one call. The data of more records would not fit into the CPU caches until
#: the steps process it. With much fewer records, the calls themselves would take noticeable time.
RECORDS_AT_ONCE = 100


@dataclass(slots=True)
class Readable:
    """The deserialized values and keys of consecutive messages.

    ``failure`` is the error of the next message, if that message could not be deserialized; otherwise None.
    """

    values: list[Any]
    keys: list[Any]
    #: The headers of each message; empty if no step reads headers.
    headers: Sequence[Headers] = ()
    failure: BaseException | None = None


def read(
    batch: Batch,
    first: int,
    last: int,
    deserialize_value: Deserializer,
    deserialize_key: Deserializer,
    wants_headers: bool,
) -> Readable:
    """Deserialize records ``first`` to ``last`` - 1 of a batch, up to the first unreadable record.

    ``headers`` of the result is filled only if ``wants_headers`` is True, because reading headers is slow.
    """
    headers: Sequence[Headers] = ()
    unread: HeadersUnreadable | None = None
    # A reader that uses a schema registry needs the headers, because they may contain the schema id.
    ids = isinstance(deserialize_value, RegistryReader)
    if wants_headers or ids:
        try:
            headers = batch.headers[first:last]
        except HeadersUnreadable as failure:
            unread, last = failure, batch.offsets.index(failure.fields["offset"], first)
            headers = batch.headers[first:last]
    raw_keys, raw_values = batch.keys[first:last], batch.values[first:last]
    if isinstance(deserialize_value, RegistryReader):
        raw_values = [
            None if raw is None else deserialize_value.framed(raw, each)
            for raw, each in zip(raw_values, headers, strict=True)
        ]
        headers = [without_value_id(each) for each in headers] if wants_headers else ()
    with suppress(Exception, *ENDING):
        return Readable(
            _all_of(raw_values, deserialize_value), _all_of(raw_keys, deserialize_key), headers, failure=unread
        )
    # One of the records can't be deserialized. To find this record, each record is deserialized separately.
    readable = Readable([], [], headers, unread)
    for raw_key, raw in zip(raw_keys, raw_values, strict=True):
        part, shown = "value", raw
        try:
            value = None if raw is None else deserialize_value(raw)
            part, shown = "key", raw_key
            key = None if raw_key is None else deserialize_key(raw_key)
        except (HoldfastError, *ENDING) as failure:
            readable.failure = failure
        except Exception as failure:
            readable.failure = _unreadable(batch, first + len(readable.values), part, shown, failure)
            readable.failure.__cause__ = failure
        else:
            readable.values.append(value)
            readable.keys.append(key)
            continue
        readable.headers = headers[: len(readable.values)]
        break
    return readable


def _all_of(raws: list[bytes | None], deserialize: Deserializer) -> list[Any]:
    if deserialize is as_is:
        return raws
    if all(raws):
        return list(map(deserialize, raws))  # type: ignore[arg-type]
    return [None if raw is None else deserialize(raw) for raw in raws]


def _unreadable(batch: Batch, index: int, part: str, raw: bytes | None, failure: Exception) -> ValueUnreadable:
    """Returns the error for a record whose key or value (``part``) can't be deserialized from ``raw``."""
    partition, offset = batch.partition, batch.offsets[index]
    said = "The message" if part == "value" else "The key of the message"
    return ValueUnreadable(
        f"{said} at {partition.topic}[{partition.number}] offset {offset} can't be read: {failure} "
        f"(the {part} begins with {(raw or b'')[:40]!r}).",
        action=f"Correct the producer or the topic's `{part}_deserializer`, or set `dead_letter_topic`.",
        topic=partition.topic,
        partition=partition.number,
        offset=offset,
    )
