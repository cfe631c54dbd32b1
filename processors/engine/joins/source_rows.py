"""Turns records of a table's topic into rows, as a restore writes them into the store of ``changelog="source"``.

Invariants:
    - The rows are those that ``TablePut`` keeps of the same records, byte for byte. A record that fails there as a
      message, because its key or its value can't be read, is no row here.
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
    """The changelog keys and the stored values of records, in their order; a value of None deletes the row."""
    read_value, read_key = deserializer(log.values), deserializer(log.keys)
    made_keys: list[bytes] = []
    made_values: list[bytes | None] = []
    for key, raw, time_ms in zip(keys, values, times, strict=True):
        if key is None:
            continue  # processing sets such a message aside, because state belongs to a key
        try:
            if read_key is not as_is:
                read_key(key)
            value = None if raw is None else read_value(raw)
            made = None if value is None else encode_value(value, time_ms)
        except (ValueError, RecursionError, ValueNotStorable):
            continue  # processing also sets such a message aside
        made_keys.append(key_prefix(key) + _ROW)
        made_values.append(made)
    return made_keys, made_values
