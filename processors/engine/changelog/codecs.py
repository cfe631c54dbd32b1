"""The codecs of stored values. A codec converts the value of a store to bytes, and back.

    json      JSON text; the default
    bytes     raw bytes, as ``state.set_bytes`` stores them
    msgpack   msgpack; also bytes, NaN, and whole numbers as keys
    typed     msgpack with extensions; also sets, tuples, dates, ``Decimal``, ``UUID`` and any key

The first bytes of each stored value contain the number of its codec, so one store can have values of several codecs.
Every reader that shows a value uses ``Codec.shown``, which returns the value in types of JSON.

Invariants:
    - ``decode(encode(value))`` equals the value, and has the same types. ``encode`` raises TypeError for other values.
    - Equal values have equal bytes, also in another process.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

#: Maximum nesting of a value; deeper values could exceed Python's recursion limit when they are read.
DEPTH_MAX = 100
#: Maximum characters of a path that an error shows.
_PATH_SHOWN = 200
#: Types whose values msgpack returns unchanged. Values of their subclasses are not included.
SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
#: The whole numbers that msgpack can hold.
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1

pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_is_scalar, _is_text = SCALARS.issuperset, frozenset((str,)).issuperset
_encode_json = msgspec.json.Encoder().encode


class Codec(NamedTuple):
    """A codec of stored values.

    Attributes:
        name: The name in ``app.store(codec=...)``.
        version: The version of the payload's format, from 1.
        number: The byte that stands for the codec in a stored value.
        encode: Returns the payload of a value; raises TypeError, ValueError or OverflowError for a value that it can't
            encode.
        decode: Returns the value of a payload; raises ValueError or TypeError for a damaged one.
        shown: Returns the value of a payload in types of JSON, for Iceberg tables, exports and HTTP answers.
        keeps: The types that the codec returns unchanged, as text for errors.
    """

    name: str
    version: int
    number: int
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    shown: Callable[[bytes], Any]
    keeps: str = ""

    @property
    def label(self) -> str:
        """The codec's name and version as text, for the changelog's meta records."""
        return f"{self.name} {self.version}"


def is_plain(value: Any) -> bool:
    """Whether a value certainly has only scalars of msgpack, lists, and dicts with text keys, and is not too deep.

    False means that the value must be checked part by part. Most values are plain. This check is faster than the check
    by parts, because it does not record the path of each part.
    """
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for outer in level:
            kind = type(outer)
            if kind is dict:
                if not _is_text(map(type, outer)):
                    return False
                parts = outer.values()
            elif kind is list:
                parts = outer
            elif kind in SCALARS:
                continue
            else:
                return False
            if not _is_scalar(map(type, parts)):
                below.extend(parts)
        if not below:
            return True
        level = below
    return False


def shown_path(path: str) -> str:
    """Returns the path of a part of a value, as text for an error. A long path is cut."""
    return path if len(path) <= _PATH_SHOWN else f"{path[:_PATH_SHOWN]}…"


def too_deep(path: str) -> TypeError:
    """Returns the error for a value that is nested too deeply."""
    return TypeError(f"{shown_path(path)} is nested more than {DEPTH_MAX} levels deep")


def another_type(path: str, value: Any) -> TypeError:
    """Returns the error for a value whose type would be different after encoding and decoding."""
    name = type(value).__name__
    return TypeError(f"{shown_path(path)} is {_article(name)} {name}, which would come back as another type")


def check_keys(path: str, value: Mapping[Any, Any]) -> None:
    """Raises TypeError if two keys of a dict have the same text, because tables and exports have keys as texts."""
    if _is_text(map(type, value)):
        return
    texts: dict[str, Any] = {}
    for key in value:
        text = key_text(shown(key))
        if text in texts:
            raise TypeError(
                f"{shown_path(path)} has the keys {texts[text]!r} and {key!r}, which are both {text!r} in a table"
            )
        texts[text] = key


def key_text(key: Any) -> str:
    """Returns a dict's key as text for tables and exports. A text stays unchanged; another key becomes JSON text."""
    return key if isinstance(key, str) else _encode_json(key).decode()


def shown(value: Any) -> Any:
    """Converts a decoded value to types of JSON. Bytes become base64 text; NaN and infinity become text.

    Sets become sorted lists. Other types, for example dates, are converted by pydantic.
    """
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is bytes:
        return b64encode(value).decode()
    if kind is list or kind is tuple:
        return [shown(each) for each in value]
    if kind is set or kind is frozenset:
        return sorted((shown(each) for each in value), key=_encode_json)
    if kind is dict:
        return {key_text(shown(key)): shown(each) for key, each in value.items()}
    # pydantic_core is imported here, because most stores do not need it.
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def failing_part(encode: Callable[[Any], bytes], value: Any, path: str = "value") -> str:
    """Returns the path of the innermost part of a value that can't be encoded.

    An example of such a part is a text with an unpaired surrogate. If there are several such parts, the result is the
    path of the first part.
    """
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        keys = ((f"the key {key!a} of {path}", key) for key in value)
        parts = (*keys, *((f"{path}[{key!a}]", each) for key, each in value.items()))
    elif isinstance(value, (list, tuple)):
        parts = ((f"{path}[{at}]", each) for at, each in enumerate(value))
    for where, part in parts:
        try:
            encode(part)
        except (TypeError, ValueError, OverflowError):
            return failing_part(encode, part, where)
    return shown_path(path)


def _encode_msgpack(value: Any) -> bytes:
    if not is_plain(value):
        _check(value, "value", 0)
    return pack(value)


def _check(value: Any, path: str, depth: int) -> None:
    """Raises TypeError for the first part of a value that would be different after encoding and decoding by msgpack."""
    kind = type(value)
    if kind in SCALARS:
        return
    if kind is not dict and kind is not list:
        if kind is datetime and value.tzinfo is UTC:
            return
        raise another_type(path, value)
    if depth == DEPTH_MAX:
        raise too_deep(path)
    if kind is list:
        for at, each in enumerate(value):
            _check(each, f"{path}[{at}]", depth + 1)
        return
    for key, each in value.items():
        if type(key) is not str and type(key) is not int:
            raise TypeError(f"{shown_path(path)} has the key {key!r}, expected a text or a whole number")
        _check(each, f"{path}[{key!r}]", depth + 1)
    check_keys(path, value)


def _encode_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise another_type("value", value)
    return value


def _article(name: str) -> str:
    return "an" if name[:1].lower() in "aeiou" else "a"


_KEPT = "dict with keys of text or whole numbers, list, str, int of 64 bits, float, bool, None, bytes and times in UTC"

#: Stores without the argument ``codec`` also have JSON values, but they do not call this object. Instead,
#: ``changelog.format`` calls msgspec itself, for each message.
JSON = Codec("json", 1, 1, _encode_json, msgspec.json.Decoder().decode, msgspec.json.Decoder().decode)
BYTES = Codec("bytes", 1, 2, _encode_bytes, bytes, shown, "bytes")
MSGPACK = Codec("msgpack", 1, 3, _encode_msgpack, _unpack, lambda payload: shown(_unpack(payload)), _KEPT)
