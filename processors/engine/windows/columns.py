"""The class ``Window``, which ``tumbling_window`` and similar methods return. Its methods add columns (aggregates)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from holdfast.processors.engine.aggregates import custom_columns
from holdfast.processors.engine.aggregates.aggregation import Aggregator, Count, Field, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.aggregates.window_aggregates import (
    Collect,
    Earliest,
    First,
    Latest,
    Reduce,
    WindowAggregation,
)
from holdfast.processors.engine.windows.spec import Unplaced

#: The type of a window that already has columns.
Aggregated = TypeVar("Aggregated")


class Window(Unplaced, Generic[Aggregated]):
    """A window that has no columns (aggregates) yet.

    Each method adds one column named ``value``; ``agg`` adds several named columns.

    ``of`` is the name of a field, a function of the message's value, or None for the whole value.
    """

    _missing = "its columns, as `.count()`, and `.final()` or `.current()`"

    def __init__(self, made: Callable[[WindowAggregation], Aggregated]) -> None:
        self._with = made

    def count(self) -> Aggregated:
        """Adds a column with the number of messages."""
        return self._one(Count())

    def sum(self, of: Field = None) -> Aggregated:
        """Adds a column with the sum of the numbers that ``of`` selects."""
        return self._one(Sum(of))

    def mean(self, of: Field = None) -> Aggregated:
        """Adds a column with the mean of the numbers that ``of`` selects."""
        return self._one(Mean(of))

    def min(self, of: Field = None) -> Aggregated:
        """Adds a column with the smallest number or text that ``of`` selects."""
        return self._one(Min(of))

    def max(self, of: Field = None) -> Aggregated:
        """Adds a column with the largest number or text that ``of`` selects."""
        return self._one(Max(of))

    def first(self, of: Field = None) -> Aggregated:
        """Adds a column with the value of the message that was processed first."""
        return self._one(First(of))

    def last(self, of: Field = None) -> Aggregated:
        """Adds a column with the value of the message that was processed last."""
        return self._one(Last(of))

    def earliest(self, of: Field = None) -> Aggregated:
        """Adds a column with the value of the message with the smallest event time."""
        return self._one(Earliest(of))

    def latest(self, of: Field = None) -> Aggregated:
        """Adds a column with the value of the message with the largest event time."""
        return self._one(Latest(of))

    def collect(self, of: Field = None) -> Aggregated:
        """Adds a column with the list of the values of all messages."""
        return self._one(Collect(of))

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        initializer: Callable[[Any], Any],
        merger: Callable[[Any, Any], Any] | None = None,
    ) -> Aggregated:
        """Adds a column whose value user functions compute.

        ``initializer`` makes the value from the first message, ``reducer`` updates it with each later message.
        ``merger`` merges the values of two sessions; only session windows need it.
        """
        return self._one(Reduce(reducer, initializer, merger))

    def agg(self, **columns: Aggregator | custom_columns.Aggregator | custom_columns.Collector) -> Aggregated:
        """Adds several named columns, for example ``agg(orders=Count(), total=Sum("amount"))``.

        Raises:
            AggregationInvalid: There is no column, a column is not an aggregator, or a name is used twice.
        """
        return self._with(WindowAggregation(columns))

    def _one(self, column: Aggregator) -> Aggregated:
        return self._with(WindowAggregation({"value": column}, alone=True))
