"""Encodes values with the codec of a store, and converts stored values of any codec to JSON text.

All code outside of a worker's functions that shows stored values calls ``json_text``. Examples are the Iceberg
tables, exports, audits and the answers of a worker's HTTP interface.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.processors.engine.changelog.codec_table import BY_NUMBER
from holdfast.processors.engine.changelog.codecs import BYTES, JSON, Codec, failing_part
from holdfast.processors.engine.changelog.format import (
    HEAD_SIZE,
    VALUE_VERSION,
    ValueNotStorable,
    check_head,
    damaged,
    encode_json,
    pack_head,
)

#: The exceptions that a codec raises for a value that it can't return unchanged.
UNFIT = (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError)


def encode_coded(codec: Codec, value: Any, timestamp_ms: int, *, where: str = "") -> bytes:
    """Encodes a value with a codec; ``where`` is a text for the error, for example the state key.

    Raises ValueNotStorable if the codec can't return the value unchanged. The error names the part that does not fit.
    """
    try:
        payload = codec.encode(value)
    except UNFIT as failure:
        raise not_storable(codec, value, failure, where) from failure
    return pack_head(VALUE_VERSION, codec.number, timestamp_ms) + payload


def not_storable(codec: Codec, value: Any, failure: Exception, where: str) -> ValueNotStorable:
    """Returns the error for a value that a codec can't return unchanged."""
    said = str(failure)
    if not said.startswith(("value", "the key")) and not isinstance(failure, RecursionError):
        said = f"{failing_part(codec.encode, value)}: {failure}"
    kept = f"keeps {codec.keeps}" if codec.keeps else "keeps values of JSON"
    return ValueNotStorable(
        f"A state value of type {type(value).__name__}{where} does not come back from the codec {codec.name!r}: "
        f"{said}.",
        action=f"Set another value, or give the store another codec: {codec.name!r} {kept}.",
        value_type=type(value).__name__,
    )


def json_text(stored: bytes) -> bytes | None:
    """Returns a stored value as JSON text, for Iceberg tables, exports and HTTP answers; None for raw bytes.

    Raises FormatUnknown if the value has an unknown format.
    """
    check_head(stored)
    number, payload = stored[1], stored[HEAD_SIZE:]
    if number == JSON.number:
        return payload
    if number == BYTES.number:
        return None
    codec = BY_NUMBER[number]
    try:
        return encode_json(codec.shown(payload))
    except (TypeError, ValueError, ArithmeticError) as failure:
        raise damaged(codec, failure) from failure
