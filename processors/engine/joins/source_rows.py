"""Converts records of a table's topic to rows, for the restore of a table with ``changelog="source"``.

Invariants:
    - The rows are equal, byte for byte, to the rows that ``TablePut`` stores for the same records. A record whose key
      or value can't be deserialized gives no row, because its message fails, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.processors.engine.changelog.format import ValueNotStorable, encode_value, key_prefix
from holdfast.processors.engine.formats.serialization import as_is, deserializer
from holdfast.processors.engine.joins.table_rows import ROW
from holdfast.processors.engine.topology import SourceLog

_ROW = ROW.encode()


def rows_of(
    log: SourceLog, keys: Sequence[bytes | None], values: Sequence[bytes | None], times: Sequence[int]
) -> tuple[list[bytes], list[bytes | None]]:
    """Returns the changelog keys and stored values of records, in the same order.

    The value None deletes the key's row.
    """
    read_value, read_key = deserializer(log.values), deserializer(log.keys)
    made_keys: list[bytes] = []
    made_values: list[bytes | None] = []
    for key, raw, time_ms in zip(keys, values, times, strict=True):
        if key is None:
            continue  # The record gives no row, because processing also refuses a message without a key.
        try:
            if read_key is not as_is:
                read_key(key)
            value = None if raw is None else read_value(raw)
            made = None if value is None else encode_value(value, time_ms)
        except (ValueError, RecursionError, ValueNotStorable):
            continue  # The record gives no row, because processing also refuses a message that can't be decoded.
        made_keys.append(key_prefix(key) + _ROW)
        made_values.append(made)
    return made_keys, made_values
