"""Values of cursor columns as JSON, so that a position in the state is exact."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

#: Type of a cursor value -> its name in the state, and how it is written as JSON and read back.
_KINDS: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: ("int", int, int),
    str: ("str", str, str),
    float: ("float", float.hex, float.fromhex),
    Decimal: ("decimal", str, Decimal),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    UUID: ("uuid", str, UUID),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
}
_READERS = {name: read for name, _, read in _KINDS.values()}


def is_cursor_value(value: Any) -> bool:
    """Whether a value can be a part of a position. NaN can't, because it has no order."""
    return type(value) in _KINDS and value == value


def written(values: Sequence[Any]) -> list[list[Any]]:
    """Returns the JSON form of the values of a position."""
    return [[_KINDS[type(value)][0], _KINDS[type(value)][1](value)] for value in values]


def read(held: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Returns the values of a position from their JSON form."""
    return tuple(_READERS[name](text) for name, text in held)


def plain(value: Any) -> Any:
    """Returns a value of a row as the topic's serializer takes it: bytes instead of a view of memory."""
    return bytes(value) if isinstance(value, (memoryview, bytearray)) else value
