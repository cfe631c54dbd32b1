"""Message keys in queries: texts in URLs and answers, bytes in the store.

A store has the bytes of the keys as they are in Kafka. The key's serializer decides how a text becomes these bytes::

    bytes, str, string            UTF-8
    short, integer, long, …       a number, as Kafka's own serializers write it
    json                          JSON; a text that is no JSON becomes a JSON string
    msgpack                       JSON, packed
    others (Avro, functions)      unknown: the client sends the bytes as base64
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import msgspec

from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.formats.binary import NUMBERS, number_reader, number_writer, write_msgpack
from holdfast.processors.engine.formats.serialization import DeserializerChoice
from holdfast.processors.engine.queries.errors import QueryWrong

_UTF8 = ("bytes", "str", "string")
_WHOLE = ("short", "integer", "long")
#: Another name of a number format, which topics accept, too.
_OTHER_NAMES = {"int": "integer"}


def key_from_text(text: str, form: DeserializerChoice) -> bytes:
    """Converts the text of a key in a query to the bytes of the key.

    Args:
        form: The key's deserializer, as the store's input topic declares it.

    Raises:
        QueryWrong: The text is not a key of this form, or only the deserializer's author knows the form.
    """
    name = _name(form)
    if name in _UTF8:
        return text.encode()
    if name in NUMBERS:
        try:
            return number_writer(name)(msgspec.json.decode(text, type=int if name in _WHOLE else float))
        except JSON_FAILURES as failure:
            raise QueryWrong(
                f"The key {text[:80]!r} is no {name}; the keys of this store are numbers of this kind.",
                action="Send the key as a number, for example 42.",
                seen=text[:80],
                expected=name,
            ) from failure
    if name in ("json", "msgpack"):
        try:
            value = msgspec.json.decode(text)
        except JSON_FAILURES:
            value = text
        if name == "msgpack":
            return _packed(value, text)
        return text.encode() if value is not text else msgspec.json.encode(text)
    raise QueryWrong(
        f"The key {text[:80]!r} can't be written: the keys of this store have the deserializer {name}.",
        action="Send the key's bytes as base64, with `encoding=base64`.",
        seen=text[:80],
    )


def key_from_base64(text: str) -> bytes:
    """Decodes a key in base64, with the alphabet of files or that of URLs. Raises QueryWrong."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as failure:
        raise QueryWrong(
            f"The key {text[:80]!r} is no base64: {failure}.",
            action="Encode the key's bytes as base64, or leave out `encoding=base64`.",
            seen=text[:80],
        ) from failure


def shown_key(key: bytes, form: DeserializerChoice) -> dict[str, Any]:
    """Returns a key for an answer: ``key``, as the store's deserializer reads it, or ``key_base64``.

    ``key_base64`` is also there if the text does not lead back to the same bytes.
    """
    name, exact = _name(form), {"key_base64": base64.b64encode(key).decode()}
    try:
        if name in NUMBERS:
            number = number_reader(name)(key)
            return {"key": number} if math.isfinite(number) else exact
        text = _msgpack_text(key) if name == "msgpack" else key.decode()
        is_same = name in _UTF8 or (name in ("json", "msgpack") and key_from_text(text, form) == key)
    except (*JSON_FAILURES, QueryWrong):
        return exact
    return {"key": text} if is_same else {"key": text, **exact}


def _packed(value: Any, text: str) -> bytes:
    try:
        return write_msgpack(value)
    except OverflowError as failure:
        raise QueryWrong(
            f"The key {text[:80]!r} is no msgpack: {failure}.",
            action="Send a number of at most 64 bits, or the key's bytes as base64 with `encoding=base64`.",
            seen=text[:80],
        ) from failure


def _msgpack_text(key: bytes) -> str:
    value = msgspec.msgpack.decode(key)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _name(form: DeserializerChoice) -> str:
    return _OTHER_NAMES.get(form, form) if isinstance(form, str) else getattr(form, "__name__", type(form).__name__)
