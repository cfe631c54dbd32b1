"""Types of SQL columns: those of new columns, and those that are large enough for a value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
)
from sqlalchemy.types import TypeEngine

from holdfast.processors.sinks.rows import Row

#: Largest values of whole numbers, by the type of their column.
_WHOLE = ((SmallInteger, 2**15 - 1, "INTEGER"), (BigInteger, 2**63 - 1, "NUMERIC"), (Integer, 2**31 - 1, "BIGINT"))


def kinds_of(rows: Sequence[Row], *, keys: bool) -> dict[str, TypeEngine[Any]]:
    """The types of new columns, from the first value of each column that is not None."""
    found: dict[str, TypeEngine[Any]] = {}
    for row in rows:
        for name, value in (row.key if keys else row.values or {}).items():
            if value is not None and name not in found:
                found[name] = _kind_of(value)
    return found


def _kind_of(value: Any) -> TypeEngine[Any]:
    kinds: tuple[tuple[type | tuple[type, ...], TypeEngine[Any]], ...] = (
        (bool, Boolean()),
        (int, BigInteger()),
        (float, Float(53)),
        (Decimal, Numeric()),
        (bytes, LargeBinary()),
        (datetime, DateTime(timezone=True)),
        (date, Date()),
        ((dict, list, tuple), JSON()),
    )
    return next((made for kind, made in kinds if isinstance(value, kind)), Text())


def wider_type(kind: TypeEngine[Any], value: Any) -> str | None:
    """A type that is large enough for a value; None if the value fits."""
    if isinstance(kind, String) and kind.length is not None and isinstance(value, str) and len(value) > kind.length:
        return "TEXT"
    if isinstance(value, int):
        for whole, largest, larger in _WHOLE:
            if isinstance(kind, whole):
                return larger if not -largest - 1 <= value <= largest else None
    numeric = isinstance(kind, Numeric) and not isinstance(kind, Float) and kind.precision is not None
    if numeric and isinstance(value, (int, float, Decimal)):
        return "NUMERIC" if abs(value) >= 10 ** (kind.precision - (kind.scale or 0)) else None  # type: ignore[attr-defined]
    return None
