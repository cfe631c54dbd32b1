"""Turns results into rows: the fields of a value by column name, and the key of the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import msgspec

from holdfast.processors.engine.sinks.errors import SinkInvalid
from holdfast.processors.engine.sinks.sink import SinkBatch, SinkItem

#: The columns in which a row keeps topic, partition and offset of the message that it was written by.
TOPIC, PARTITION, OFFSET = "_topic", "_partition", "_offset"
PLACE = (TOPIC, PARTITION, OFFSET)

#: A function that makes a row from a result; None deletes the row.
RowOf = Callable[[SinkItem], Mapping[str, Any] | None]


class RowUnusable(ValueError):
    """A result can't become a row."""


@dataclass(slots=True)
class Row:
    """One row: its key columns, its other columns (None: the row is deleted), and the result that it was made from."""

    key: dict[str, Any]
    values: dict[str, Any] | None
    item: SinkItem

    def told(self, table: str, batch: SinkBatch) -> str:
        """Names the row in an error."""
        key = ", ".join(f"{name}={value!r}"[:80] for name, value in self.key.items())
        return f"Row {key} of table {table}, from {batch.topic}[{batch.partition}] offset {self.item.offset}"


def columns_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dict or an instance. Any other value becomes the field ``value``."""
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if hasattr(value, "model_dump"):  # a model of pydantic
        dumped: dict[str, Any] = value.model_dump()
        return dumped
    return {"value": value}


def check_key(key: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the key columns.

    Raises:
        SinkInvalid: There is no name, a name occurs twice, or a name belongs to the position columns.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    ok = bool(names) and len(set(names)) == len(names) and all(isinstance(each, str) and each for each in names)
    if not ok or set(names) & set(PLACE):
        raise SinkInvalid(
            f"`key` is {key!r}; expected the names of the key columns, without {', '.join(PLACE)}.",
            action="Write `key='id'`, or `key=('country', 'city')`.",
            seen=repr(key)[:80],
        )
    return names


def row_of(item: SinkItem, key: Sequence[str], made: RowOf | None) -> Row:
    """Returns the row of a result.

    A key column that the value lacks gets the message key. With several key columns, the message key must be a mapping.

    Raises:
        RowUnusable: The result has no value for a key column.
    """
    value = item.value if made is None else made(item)
    values = None if value is None else columns_of(value)
    keys, message_key = {}, _text(item.key)
    for name in key:
        if values is not None and name in values:
            keys[name] = values.pop(name)
        elif isinstance(message_key, Mapping):
            keys[name] = message_key.get(name)
        else:
            keys[name] = message_key if len(key) == 1 else None
        if keys[name] is None:
            raise RowUnusable(f"its key column {name!r} has no value: neither a field of the value nor the message key")
    return Row(keys, values, item)


def _text(key: Any) -> Any:
    if isinstance(key, bytes):
        try:
            return key.decode()
        except UnicodeDecodeError:
            return key
    return key


def record_of(item: SinkItem, batch: SinkBatch, made: RowOf | None, *, metadata: bool) -> dict[str, Any] | None:
    """Returns a result as the row of a file or a table that keeps each result; None leaves it out.

    With ``metadata``, the row also has the fields that ``ListSink`` adds.
    """
    value = item.value if made is None else made(item)
    if value is None and made is not None:
        return None
    row = columns_of(value)
    if metadata:
        row = {"_key": _text(item.key), "_timestamp": item.timestamp, **row}
        row |= {TOPIC: batch.topic, PARTITION: batch.partition, OFFSET: item.offset}
    return row
