"""Compares typed columns of a sample of rows in a written table with values that Python reads from the stored bytes.

A small table is compared completely. For a larger table, the sample has the rows of one store partition whose key hash
has a certain remainder. Only that partition is scanned. The audit of the next Holdfast snapshot can sample another
partition.

Invariants:
    - The sample is deterministic: it depends only on the version (Iceberg snapshot) of the table.
    - The expected values are read from the row's bytes (``processors.snapshots.column_reader``), not with the SQL that
      wrote the columns.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from json import loads
from typing import Any

from pyspark.sql import DataFrame

from holdfast.assets.spark.typed import type_rows
from holdfast.processors.engine.changelog.format import FormatUnknown, split_key
from holdfast.processors.engine.changelog.stored_values import json_text
from holdfast.processors.engine.schema.types import StoreSchema, tick
from holdfast.processors.snapshots.column_reader import ColumnReader, is_same

#: Approximate number of rows to compare, and maximum bytes of a value; rows with longer values are not compared.
ROWS, VALUE_BYTES = 500, 1 << 16
_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TIMES = f"""map('timestampFormat', "{_TIME}xxx", 'timestampNTZFormat', "{_TIME}")"""


@dataclass(frozen=True, slots=True)
class Misread:
    """One difference in the sample: a typed column whose content differs from the row's stored value."""

    message_key: bytes
    state_key: str
    column: str
    seen: Any
    expected: Any

    def __str__(self) -> str:
        key = f"key {self.message_key.decode(errors='replace')}, state key {self.state_key}"
        return f"{key}: column {self.column} is {repr(self.seen)[:80]}, expected {repr(self.expected)[:80]}"


def misread_columns(written: DataFrame, schema: StoreSchema, rows: Mapping[int, int], version: str) -> list[Misread]:
    """The typed columns in the sample that differ from the stored values.

    ``rows`` is the number of rows in each store partition. ``version`` is a text that identifies the table version and
    determines the sample.
    """
    reader, sample = ColumnReader(schema), written.where(_chosen(rows, version))
    columns = ", ".join(tick(each.name) for each in schema.columns)
    found: list[Misread] = []
    without: dict[tuple[int, bytes], list[Misread]] = {}
    for row in sample.selectExpr(
        "store_partition", "key", "value", f"to_json(struct({columns}), {_TIMES}) seen"
    ).collect():
        key, seen = bytes(row["key"]), loads(row["seen"])
        misread = _misread(key, bytes(row["value"]), seen, reader)
        if seen:
            found += misread
        elif misread:
            without[row["store_partition"], key] = misread
    # Rows that are also in the quarantine table are left out. Their values do not fit the schema, so their typed
    # columns are null.
    if without:
        plain = sample.select("store_partition", "key", "value", "state_key", "json")
        for row in type_rows(plain, schema).where("why IS NULL").select("store_partition", "key").collect():
            found += without.get((row["store_partition"], bytes(row["key"])), [])
    return found


def _misread(key: bytes, value: bytes, seen: dict[str, Any], reader: ColumnReader) -> list[Misread]:
    try:
        message_key, state_key = split_key(key)
        payload = json_text(value)
    except FormatUnknown:
        return []
    expected = None if payload is None else reader.content(state_key, payload)
    if expected is None:
        return []
    names = [name for name in {**expected, **seen} if not is_same(seen.get(name), expected.get(name))]
    return [Misread(message_key, state_key, name, seen.get(name), expected.get(name)) for name in names]


def _chosen(rows: Mapping[int, int], version: str) -> str:
    """SQL condition that is true for the rows of the sample."""
    held = sorted(number for number, count in rows.items() if count)
    short = f"length(value) <= {VALUE_BYTES}"
    if sum(rows.values()) <= ROWS:
        return short
    drawn = zlib.crc32(version.encode())
    number = held[drawn % len(held)]
    every = math.ceil(rows[number] / ROWS)
    return f"store_partition = {number} AND pmod(xxhash64(key), {every}) = {drawn % every} AND {short}"
