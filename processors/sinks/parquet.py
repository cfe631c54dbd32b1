"""Rows as tables of pyarrow and as Parquet files. Only programs with a sink of such rows import the module."""

# tidy: allow-crumb because it is an adapter of pyarrow
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Returns rows as a table. Without a schema, the columns are those of all rows, in the order of their appearance.

    Raises:
        TypeError: A value has another type than its column.
        ValueError: A value has another type than its column, or a column is not in the schema.
    """
    if schema is None:
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    if unknown := sorted({name for row in rows for name in row} - set(schema.names)):
        raise ValueError(f"the schema has no column {', '.join(unknown)}")
    return pa.Table.from_pylist(list(rows), schema=schema)


def unfit(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> dict[int, str]:
    """Returns the rows that don't fit the schema, or the types of the first row that has the column, by their index."""
    types: dict[str, pa.DataType] = {} if schema is None else {each.name: each.type for each in schema}
    found = {}
    for at, row in enumerate(rows):
        try:
            made = table_of([row], schema)
            for name in made.column_names:
                kind = made.column(name).type
                known = kind if kind == types.get(name, kind) or pa.types.is_null(kind) else types[name]
                pa.array([row.get(name)], type=known)
                if not pa.types.is_null(kind):
                    types.setdefault(name, kind)
        except (TypeError, ValueError) as failure:
            found[at] = " ".join(str(failure).split())[:300]
    return found


def encode(table: pa.Table, compression: str) -> bytes:
    """Returns a Parquet file."""
    made = pa.BufferOutputStream()
    pq.write_table(table, made, compression=compression)
    content: bytes = made.getvalue().to_pybytes()
    return content
