"""Binary formats that a topic can name: the number formats of Kafka's own serializers, and ``msgpack``.

Numbers are big-endian and signed, as in ``org.apache.kafka.common.serialization``: ``short`` has 2 bytes, ``integer``
4, ``long`` 8, ``float`` 4 and ``double`` 8. The library msgspec reads and writes msgpack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from struct import Struct, error
from typing import Any

import msgspec

#: Maps the name of each number format to its format character in Python's ``struct``.
NUMBERS = {
    "short": Struct(">h"),
    "integer": Struct(">i"),
    "long": Struct(">q"),
    "float": Struct(">f"),
    "double": Struct(">d"),
}
_WHOLE = ("short", "integer", "long")
#: Types whose values are the same after msgpack encoding and decoding.
_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
_only_scalars = _SCALARS.issuperset
_pack = msgspec.msgpack.Encoder().encode


def number_reader(name: str) -> Callable[[bytes], int | float]:
    """Returns the deserializer of a number format.

    It raises ValueError for bytes that do not have the format's length.
    """
    form = NUMBERS[name]

    def read(raw: bytes) -> int | float:
        if len(raw) != form.size:
            raise ValueError(f"a {name} has {form.size} bytes, got {len(raw)}")
        number: int | float = form.unpack(raw)[0]
        return number

    return read


def number_writer(name: str) -> Callable[[Any], bytes]:
    """Returns the serializer of a number format. It raises TypeError for another type, ValueError if out of range."""
    form, types = NUMBERS[name], (int,) if name in _WHOLE else (int, float)

    def write(value: Any) -> bytes:
        if not isinstance(value, types) or isinstance(value, bool):
            raise TypeError(f"expected {' or '.join(each.__name__ for each in types)}, got {type(value).__name__}")
        try:
            return form.pack(value)
        except (error, OverflowError) as failure:
            raise ValueError(f"{value!r} does not fit into the {form.size} bytes of a {name}") from failure

    return write


def write_msgpack(value: Any) -> bytes:
    """Encodes a value as msgpack; raises TypeError for a value that would be decoded as another type."""
    kind = type(value)
    parts = value.values() if kind is dict else value if kind is list else (value,)
    if not _only_scalars(map(type, parts)):
        fault = next(_faults(value, "value"), None)
        if fault is not None:
            raise TypeError(f"{fault}. `value_serializer=msgspec.msgpack.encode` writes it so")
    return _pack(value)


def _faults(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _faults(part, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _faults(part, f"{path}[{index}]")
    elif type(value) not in _SCALARS and not _is_extension(value):
        yield f"{path} is of type {type(value).__name__}, which would come back as another type"


def _is_extension(value: Any) -> bool:
    """Whether msgpack has an extension type for the value: ``Ext``, or a ``datetime`` with a time zone."""
    return isinstance(value, msgspec.msgpack.Ext) or (type(value) is datetime and value.tzinfo is not None)
