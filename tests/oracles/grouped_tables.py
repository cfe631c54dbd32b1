"""Aggregates of a table's groups in plain Python. All aggregates are computed again from all rows after each change.

Sums use fractions, so they are exact in every order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any


def grouped(rows: Mapping[bytes, Any], key: Callable[[Any], bytes | None]) -> dict[bytes, list[Any]]:
    """The rows of each group, in the order of the row keys.

    A value of None is a deleted row. A row without a key is in no group.
    """
    found: dict[bytes, list[Any]] = {}
    for row_key in sorted(rows):
        row = rows[row_key]
        group = None if row is None else key(row)
        if group is not None:
            found.setdefault(group, []).append(row)
    return found


def total(numbers: list[int | float]) -> int | float:
    """The exact sum. It is an int if all numbers are ints, otherwise the nearest float."""
    exact = sum(map(Fraction, numbers), Fraction())
    return float(exact) if any(isinstance(each, float) for each in numbers) else int(exact)


def mean(numbers: list[int | float]) -> float:
    """The float that is nearest to the exact mean."""
    return float(sum(map(Fraction, numbers), Fraction()) / len(numbers))


def aggregated(rows: list[Any], field: str, limit: int) -> dict[str, Any]:
    """Count, sum and mean of a field over the rows, and its first ``limit`` values."""
    numbers = [row[field] for row in rows]
    return {"n": len(rows), "total": total(numbers), "average": mean(numbers), "all": numbers[:limit]}
