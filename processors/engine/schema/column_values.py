"""Reads the values of a store's typed columns from a stored value and its state key."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.processors.engine.schema.types import Column, Held, Quotient


def column_value(column: Column, state_key: str, value: object) -> object:
    """Returns a column's value as JSON data; None if the stored value does not have it. A moment is in milliseconds.

    Args:
        state_key: The state key of the stored value. Columns such as the start of a window are parts of it.
        value: The decoded stored value.
    """
    found: object = None
    for path in column.paths:
        found = value
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is not None:
            break
    if found is None and column.key_part is not None:
        found = int(state_key.split("/")[column.key_part - 1])
    match column.type:
        case _ if found is None:
            return None
        case Quotient() if isinstance(found, Mapping):
            return found["sum"] / found["count"]
        case Held(at=index) if isinstance(found, list):
            return found[index]
        case _:
            return found
