"""The codec "typed": msgpack with extensions for Python's types. Decoding returns the same types and values.

The numbers of the extensions are part of the format. A number is never used again for another type.

    1 tuple   2 set   3 frozenset   4 Decimal   5 UUID   6 datetime   7 date   8 time   9 timedelta
    10 a whole number of more than 64 bits     11 a dict with keys that are neither texts nor whole numbers

Items of sets are sorted by their bytes, so that equal sets have equal bytes. Of a time zone, only the UTC offset is
stored, not the name.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext

from holdfast.processors.engine.changelog.codecs import (
    DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    SCALARS,
    Codec,
    another_type,
    check_keys,
    is_plain,
    pack,
    shown,
    too_deep,
)

_TUPLE, _SET, _FROZENSET, _DECIMAL, _UUID, _DATETIME, _DATE, _TIME, _TIMEDELTA, _INT, _DICT = range(1, 12)
_COLLECTIONS: dict[type, int] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}
#: The types that are stored as text. Each type has its extension number and the function that converts a value to text.
_TEXTS: dict[type, tuple[int, Callable[[Any], str]]] = {
    Decimal: (_DECIMAL, str),
    datetime: (_DATETIME, datetime.isoformat),
    date: (_DATE, date.isoformat),
    time: (_TIME, time.isoformat),
}
_FROM_TEXT: dict[int, Callable[[str], Any]] = {
    _DECIMAL: Decimal,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _TIME: time.fromisoformat,
    _INT: lambda text: int(text, 16),
}
_FROM_PARTS: dict[int, Callable[[list[Any]], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _TIMEDELTA: lambda parts: timedelta(*parts),
    _DICT: lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
}

#: A function that replaces a value of an unsupported type by a value of a supported type. It gets the value and its
#: path. It raises TypeError if the value can't be replaced.
Other = Callable[[Any, str], Any]


def encode(value: Any) -> bytes:
    """Returns the payload of a value.

    Raises TypeError with the path of the first part that can't be read back unchanged.
    """
    return _encoded(value, another)


def encode_dumped(value: Any) -> bytes:
    """Returns the payload of an instance of a model, which pydantic has dumped with ``mode="python"``.

    Enums, subclasses and pydantic types are replaced by values of simpler types, from which the model can build the
    instance again. The caller must check that this instance is equal to the original.
    """
    return _encoded(value, _as_read)


def another(value: Any, path: str) -> Any:
    """Raises TypeError, because a value of an unsupported type has no replacement here."""
    if isinstance(value, Enum):
        raise TypeError(f"{path} is {value!r}; an enum comes back only through a model: `app.store(..., model=...)`")
    raise another_type(path, value)


def decode(payload: bytes) -> Any:
    """Returns the value of a payload; raises ValueError, TypeError or msgspec.DecodeError if the payload is damaged."""
    return _decode(payload)


def _encoded(value: Any, other: Other) -> bytes:
    if is_plain(value):
        try:
            return pack(value)
        except OverflowError:
            pass  # A whole number of more than 64 bits does not fit into msgpack: it becomes an extension below.
    return pack(_packable(value, "value", 0, other))


def _packable(value: Any, path: str, depth: int, other: Other) -> Any:
    """Returns a copy of the value in which types that msgpack does not have are replaced by extensions."""
    kind = type(value)
    if kind is int and not INT_MIN <= value <= INT_MAX:
        return Ext(_INT, f"{value:x}".encode())
    if kind in SCALARS:
        return value
    if kind is time and value.tzinfo is not None and value.utcoffset() is None:
        raise TypeError(f"{path} is a time of day in {value.tzinfo}, whose offset depends on the day")
    if kind in _TEXTS:
        code, text = _TEXTS[kind]
        return Ext(code, text(value).encode())
    if kind is UUID:
        return Ext(_UUID, value.bytes)
    if kind is timedelta:
        return Ext(_TIMEDELTA, pack([value.days, value.seconds, value.microseconds]))
    if kind is not dict and kind is not list and kind not in _COLLECTIONS:
        return _packable(other(value, path), path, depth, other)
    if depth == DEPTH_MAX:
        raise too_deep(path)
    if kind is list or kind is tuple:
        made = [_packable(each, f"{path}[{at}]", depth + 1, other) for at, each in enumerate(value)]
        return made if kind is list else Ext(_TUPLE, pack(made))
    if kind is dict:
        return _packable_dict(value, path, depth, other)
    items = sorted(pack(_packable(each, f"{path}{{{each!r:.40}}}", depth + 1, other)) for each in value)
    return Ext(_COLLECTIONS[kind], pack([msgspec.Raw(each) for each in items]))


def _packable_dict(value: dict[Any, Any], path: str, depth: int, other: Other) -> Any:
    plain = all(type(key) is str or (type(key) is int and INT_MIN <= key <= INT_MAX) for key in value)
    parts = {key: _packable(each, f"{path}[{key!r}]", depth + 1, other) for key, each in value.items()}
    if all(type(key) is str for key in value):
        return parts
    keys = [_packable(key, f"the key {key!r} of {path}", depth + 1, other) for key in value]
    check_keys(path, value)
    if plain:
        return parts
    return Ext(_DICT, pack([each for pair in zip(keys, parts.values(), strict=True) for each in pair]))


def _as_read(value: Any, path: str) -> Any:
    """Replaces a value of an unsupported type by a simpler value, from which a pydantic model can build it again."""
    if isinstance(value, Enum):
        return value.value
    kinds: tuple[type[Any], ...] = (str, int, float, bytes, dict, list, tuple, set, frozenset)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    # pydantic_core is imported here, because only stores with models need it.
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        raise another_type(path, value) from None


def _extension(code: int, data: memoryview) -> Any:
    """Decodes the bytes of a msgpack extension to the Python value that they stand for."""
    body = bytes(data)
    if code in _FROM_TEXT:
        return _FROM_TEXT[code](body.decode())
    if code in _FROM_PARTS:
        return _FROM_PARTS[code](_decode(body))
    if code == _UUID:
        return UUID(bytes=body)
    raise ValueError(f"a value of the codec typed has the extension {code}, which is unknown")


def _extension_in_order(code: int, data: memoryview) -> Any:
    """Decodes a msgpack extension to a value that is shown to users.

    A set becomes a list in the stored order, which is the same in every process.
    """
    if code in (_TUPLE, _SET, _FROZENSET):
        return _decode_in_order(bytes(data))
    return _extension(code, data)


_decode = msgspec.msgpack.Decoder(ext_hook=_extension).decode
_decode_in_order = msgspec.msgpack.Decoder(ext_hook=_extension_in_order).decode

_KEPT = (
    "dict, list, tuple, set, frozenset, str, int, float, bool, None, bytes, Decimal, UUID, datetime, date, time and "
    "timedelta; with a model also its instances and enums"
)
TYPED = Codec("typed", 1, 4, encode, decode, lambda payload: shown(_decode_in_order(payload)), _KEPT)
