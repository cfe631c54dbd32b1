"""Aggregations that compute the columns of windows: ``from holdfast.dataframe.windows import Count, Sum``."""

from __future__ import annotations

from holdfast.processors.engine.aggregates.aggregation import Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.aggregates.custom_columns import Aggregator, Collector
from holdfast.processors.engine.aggregates.window_aggregates import Collect, Earliest, First, Latest, Reduce

# fmt: off
__all__ = [
    "Aggregator", "Collect", "Collector", "Count", "Earliest", "First", "Last", "Latest", "Max", "Mean", "Min",
    "Reduce", "Sum",
]
# fmt: on
