"""The typed columns of a built-in aggregation: they are known, a model can only make their types more exact."""

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
    Items,
    Quotient,
    SchemaInvalid,
    StoreSchema,
    ValueSchema,
    checked,
    column_name,
)

#: What a column holds where no model says more: a least, greatest or last value may be anything, so it is a text.
_KINDS: dict[str, ColumnType] = {"count": WHOLE, "sum": FLOATING, "mean": Quotient(), "collect": Items(TEXT)}


def aggregate_schema(aggregation: Aggregation, model: Any = None) -> StoreSchema:
    """The columns of an aggregation.

    Args:
        aggregation: Its columns.
        model: A model with a field for some of them; None leaves all as they are known.

    Raises:
        SchemaInvalid: The model has a field that is no column.
    """
    said = {} if model is None else {column.name: column for column in schema_of(model).columns}
    unknown = sorted(set(said) - {column_name(name) for name in aggregation.columns})
    if unknown:
        raise SchemaInvalid(
            f"The model of an aggregation has {', '.join(unknown)}; its columns are {', '.join(aggregation.columns)}.",
            action="Name the model's fields as the aggregation's columns are.",
        )
    columns = []
    for name, made in aggregation.columns.items():
        kind = _KINDS.get(made.kind, TEXT)
        told = said.get(column_name(name))
        if told is not None and not isinstance(kind, Quotient):
            kind = told.type
        # A column that is new to the aggregation is absent from what was stored before, until the key's next message.
        columns.append(Column(column_name(name), kind, False, ((made.kind, name),), made.describe()))
    return checked(StoreSchema((ValueSchema(STATE_KEY, tuple(columns), version=(FORMAT, FORMAT_VERSION)),)))
