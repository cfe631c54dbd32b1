"""Tells the user what to write if ``Sum``, ``Mean``, ``Min`` or ``Max`` reads a ``Decimal``.

JSON has no ``Decimal``. Aggregates and rows of tables are stored as JSON, so a field of a typed topic that is a
``Decimal`` is read as a text. ``Sum`` can't add texts, and ``Min`` and ``Max`` would compare them as texts.
"""

# tidy: allow-crumb because the module is one pure decision, separate from the declarations of the columns

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any


def instead_of_decimal(of: str | Callable[[Any], Any] | None, written: str, value: Any, item: Any) -> str | None:
    """Returns the advice for the error if a column read a ``Decimal``; None if it read another type.

    The advice is a text with code that the user can write instead, for example ``Sum(lambda value: float(...))``.

    Args:
        of: The column's field, its function of the value, or None for the whole value.
        written: The name of the column's aggregator, for example ``Sum``.
        value: The message's value.
        item: The item that the column has read. A field of an instance is already converted to the types of JSON.
    """
    read, found = "value", item
    if isinstance(of, str):
        is_dict = isinstance(value, Mapping)
        read, found = (f"value[{of!r}]", item) if is_dict else (f"value.{of}", getattr(value, of))
    if not isinstance(found, Decimal):
        return None
    if callable(of):
        write = f"let function {getattr(of, '__qualname__', type(of).__qualname__)} return"
        exact, rounded = "int(amount * 100)", "float(amount)"
    else:
        write = "write"
        exact, rounded = (f"{written}(lambda value: {made})" for made in (f"int({read} * 100)", f"float({read})"))
    return (
        f"For an exact result in whole units, for example cents, {write} `{exact}`. For a rounded one, {write} "
        f"`{rounded}`."
    )
