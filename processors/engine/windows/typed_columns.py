"""The typed table columns of built-in aggregations and of windows.

The columns are derived from the declaration of the step, so no model is needed. A model can make the types of an
aggregation's columns more exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.processors.engine.aggregates.aggregation import FORMAT, FORMAT_VERSION, STATE_KEY, Aggregation
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import (
    FLOATING,
    INFER,
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
from holdfast.processors.engine.state.time.window_keys import COUNTED, COUNTED_OPEN, SESSION, WINDOWS
from holdfast.processors.engine.steps.step import Kept, RowColumns
from holdfast.processors.engine.windows.counts import COUNTED_VERSION, WINDOW, CountSpec
from holdfast.processors.engine.windows.spec import WindowSpec

#: The names of a window table's columns in addition to its aggregates.
BEGIN, END, MESSAGES = "window_start", "window_end", "messages"
#: Column types of aggregates without a model. Min, max and last may hold any value, so their columns are text.
_KINDS: dict[str, ColumnType] = {"count": WHOLE, "sum": FLOATING, "mean": Quotient(), "collect": Items(TEXT)}


#: Column types for aggregates of windows. A window stores these values inside a list, but a running aggregation does
#: not.
_KINDS_OF_WINDOWS: dict[str, ColumnType] = {
    "items": Items(TEXT),
    **dict.fromkeys(("first", "reduce"), Held(0, TEXT)),
    **dict.fromkeys(("earliest", "latest"), Held(1, TEXT)),
}

#: Column types of the rows of a grouped table. Such a row contains the results themselves, and not the stored values
#: from which results are computed.
_KINDS_OF_ROWS: dict[str, ColumnType] = {**_KINDS, "mean": FLOATING}


def window_schema(aggregation: Aggregation) -> StoreSchema:
    """Returns the typed columns of a window store: start and end of each window, and its aggregates.

    In rows of the store that are not windows, these columns are null.
    """
    times = (
        Column(BEGIN, Moment(), False, ((SESSION, "start"),), "where the window begins", key_part=2),
        Column(END, Moment(), False, ((SESSION, "end"),), "where the window ends", key_part=3),
    )
    return _windows(times, aggregation, WINDOWS)


def count_window_schema(spec: CountSpec) -> StoreSchema:
    """Returns the typed columns of a count window's store: times, message count and aggregates of the open window.

    Overlapping windows are not stored themselves. Their store's only column is the number of the key's messages.
    """
    if spec.step != spec.count:
        counted = Column(MESSAGES, WHOLE, False, ((MESSAGES,),), "messages of the key so far")
        return StoreSchema((ValueSchema(None, (counted,), version=("format", COUNTED_VERSION), prefixes=(COUNTED,)),))
    times = (
        Column(BEGIN, Moment(), False, ((WINDOW, "start"),), "the least event time of the window's messages"),
        Column(END, Moment(), False, ((WINDOW, "end"),), "the greatest event time of the window's messages"),
        Column(MESSAGES, WHOLE, False, ((WINDOW, MESSAGES),), "messages of the window so far"),
    )
    return _windows(times, spec.aggregation, (COUNTED_OPEN,))


def _windows(about: tuple[Column, ...], aggregation: Aggregation, prefixes: tuple[str, ...]) -> StoreSchema:
    """Returns the columns of a window and its aggregates. In rows of other state keys, these columns are null."""
    taken, columns = {each.name for each in about}, [*about]
    for name, made in aggregation.columns.items():
        kind = _KINDS_OF_WINDOWS.get(made.kind, _KINDS.get(made.kind, TEXT))
        named = column_name(name)
        legal = f"{named}_" if named.lower() in taken else named
        columns.append(Column(legal, kind, False, ((made.kind, name),), made.describe()))
    values = ValueSchema(None, tuple(columns), version=(FORMAT, FORMAT_VERSION), prefixes=prefixes)
    return checked(StoreSchema((values,)))


def aggregate_schema(aggregation: Aggregation, model: Any = None) -> StoreSchema:
    """Returns the typed columns of an aggregation. A model makes the types of some columns more exact.

    Raises SchemaInvalid if the model has a field that is not a column of the aggregation.
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
        # The column is optional, because a value that was stored before the column was declared does not have it.
        columns.append(Column(column_name(name), kind, False, ((made.kind, name),), made.describe()))
    return checked(StoreSchema((ValueSchema(STATE_KEY, tuple(columns), version=(FORMAT, FORMAT_VERSION)),)))


def row_schema(rows: RowColumns, model: Any) -> StoreSchema:
    """Returns the typed columns of the rows of a grouped table. In the group's other records, they are null.

    Args:
        rows: The state key of each row, and the aggregates that are its columns.
        model: The model of the rows; None takes the types from the aggregates. A mapping of state keys to models and
            ``"infer"`` have the same meaning as for other stores.

    Raises:
        SchemaInvalid: The model can't become columns.
    """
    if model == INFER or isinstance(model, Mapping):
        return schema_of(model)
    if model is not None:
        (values,) = schema_of(model).values
        return StoreSchema((replace(values, prefixes=(rows.state_key,)),))
    columns = tuple(
        Column(column_name(name), _KINDS_OF_ROWS.get(made.kind, TEXT), False, ((name,),), made.describe())
        for name, made in rows.aggregates.items()
    )
    return checked(StoreSchema((ValueSchema(None, columns, prefixes=(rows.state_key,)),)))


#: For each kind of store, the function that makes its typed columns from the step's declaration and the model.
_OF_KIND: Mapping[str, Callable[[Any, Any], StoreSchema]] = {
    Aggregation.store_kind: aggregate_schema,
    WindowSpec.store_kind: lambda windows, _: window_schema(windows.aggregation),
    CountSpec.store_kind: lambda windows, _: count_window_schema(windows),
}


def schema_of_store(kept: Kept | None, model: Any) -> StoreSchema:
    """Returns the typed columns of a store, from a built-in step's declaration or from the user's model.

    Raises SchemaInvalid if the model can't become columns.
    """
    return schema_of(model) if kept is None else _OF_KIND[kept.store_kind](kept, model)
