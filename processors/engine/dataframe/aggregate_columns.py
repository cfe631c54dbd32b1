"""The typed columns of built-in aggregations and of windows.

They are known without a model; a model makes those of an aggregation more exact.
"""

from __future__ import annotations

from typing import Any

from holdfast.processors.engine.dataframe.aggregation import FORMAT, FORMAT_VERSION, STATE_KEY, Aggregation
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import (
    FLOATING,
    TEXT,
    WHOLE,
    Column,
    ColumnType,
    Held,
    Items,
    Moment,
    Quotient,
    SchemaInvalid,
    StoreSchema,
    ValueSchema,
    checked,
    column_name,
)
from holdfast.processors.engine.state.window_keys import SESSION, WINDOWS

#: The column type of an aggregate without a model. Min, max and last may hold any value: their columns are text.
_KINDS: dict[str, ColumnType] = {"count": WHOLE, "sum": FLOATING, "mean": Quotient(), "collect": Items(TEXT)}


#: The column type of an aggregate of windows, where it differs: they store a list that holds the value.
_KINDS_OF_WINDOWS: dict[str, ColumnType] = {
    "items": Items(TEXT),
    **dict.fromkeys(("first", "reduce"), Held(0, TEXT)),
    **dict.fromkeys(("earliest", "latest"), Held(1, TEXT)),
}


def window_schema(aggregation: Aggregation) -> StoreSchema:
    """The typed columns of windows: where each begins and ends, and its aggregates.

    The rows of a window store that are no windows have none of them.
    """
    begin, end = "window_start", "window_end"
    columns = [
        Column(begin, Moment(), False, ((SESSION, "start"),), "where the window begins", key_part=2),
        Column(end, Moment(), False, ((SESSION, "end"),), "where the window ends", key_part=3),
    ]
    for name, made in aggregation.columns.items():
        kind = _KINDS_OF_WINDOWS.get(made.kind, _KINDS.get(made.kind, TEXT))
        named = column_name(name)
        legal = f"{named}_" if named.lower() in (begin, end) else named
        columns.append(Column(legal, kind, False, ((made.kind, name),), made.describe()))
    values = ValueSchema(None, tuple(columns), version=(FORMAT, FORMAT_VERSION), prefixes=WINDOWS)
    return checked(StoreSchema((values,)))


def aggregate_schema(aggregation: Aggregation, model: Any = None) -> StoreSchema:
    """The typed columns of an aggregation; a model makes the types of some columns more exact.

    Raises SchemaInvalid if the model has a field that is no column of the aggregation.
    """
    declared = {} if model is None else {column.name: column for column in schema_of(model).columns}
    unknown = sorted(set(declared) - {column_name(name) for name in aggregation.columns})
    if unknown:
        raise SchemaInvalid(
            f"The model of an aggregation has {', '.join(unknown)}; its columns are {', '.join(aggregation.columns)}.",
            action=f"Rename or remove {', '.join(unknown)} in the model.",
        )
    columns = []
    for name, made in aggregation.columns.items():
        kind = _KINDS.get(made.kind, TEXT)
        modelled = declared.get(column_name(name))
        if modelled is not None and not isinstance(kind, Quotient):
            kind = modelled.type
        # Not required: values stored before a column was added lack it, until the key's next message.
        columns.append(Column(column_name(name), kind, False, ((made.kind, name),), made.describe()))
    return checked(StoreSchema((ValueSchema(STATE_KEY, tuple(columns), version=(FORMAT, FORMAT_VERSION)),)))
