"""``Window``, the result of ``tumbling_window`` and others: each of its methods declares the window's columns."""

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

#: A window with its columns.
Aggregated = TypeVar("Aggregated")


class Window(Unplaced, Generic[Aggregated]):
    """A window without columns.

    Each method adds one column with the name ``value``; ``agg`` adds several by name.

    ``of`` is a field's name, a function of the message's value, or None for the whole value.
    """

    _missing = "its columns, as `.count()`, and `.final()` or `.current()`"

    def __init__(self, made: Callable[[WindowAggregation], Aggregated]) -> None:
        self._with = made

    def count(self) -> Aggregated:
        """The number of messages."""
        return self._one(Count())

    def sum(self, of: Field = None) -> Aggregated:
        """The total of numbers."""
        return self._one(Sum(of))

    def mean(self, of: Field = None) -> Aggregated:
        """The mean of numbers."""
        return self._one(Mean(of))

    def min(self, of: Field = None) -> Aggregated:
        """The least number or text."""
        return self._one(Min(of))

    def max(self, of: Field = None) -> Aggregated:
        """The greatest number or text."""
        return self._one(Max(of))

    def first(self, of: Field = None) -> Aggregated:
        """The value that was processed first."""
        return self._one(First(of))

    def last(self, of: Field = None) -> Aggregated:
        """The value that was processed last."""
        return self._one(Last(of))

    def earliest(self, of: Field = None) -> Aggregated:
        """The value with the least event time."""
        return self._one(Earliest(of))

    def latest(self, of: Field = None) -> Aggregated:
        """The value with the greatest event time."""
        return self._one(Latest(of))

    def collect(self, of: Field = None) -> Aggregated:
        """All values, in a list."""
        return self._one(Collect(of))

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        initializer: Callable[[Any], Any],
        merger: Callable[[Any, Any], Any] | None = None,
    ) -> Aggregated:
        """A value that ``initializer`` makes from the first message; ``reducer`` adds each next message.

        ``merger`` merges the values of two sessions; only sessions need it.
        """
        return self._one(Reduce(reducer, initializer, merger))

    def agg(self, **columns: Aggregator | custom_columns.Aggregator | custom_columns.Collector) -> Aggregated:
        """Several columns by name, for example ``agg(orders=Count(), total=Sum("amount"))``.

        Raises:
            AggregationInvalid: There are no columns, one is no aggregator, or a name is used twice.
        """
        return self._with(WindowAggregation(columns))

    def _one(self, column: Aggregator) -> Aggregated:
        return self._with(WindowAggregation({"value": column}, alone=True))
