"""The columns of windows and their base classes, where Quix Streams has them as well."""

from __future__ import annotations

from holdfast.dataframe.windows import (
    Aggregator,
    Collect,
    Collector,
    Count,
    Earliest,
    First,
    Last,
    Latest,
    Max,
    Mean,
    Min,
    Reduce,
    Sum,
)

#: Quix Streams has base classes without names for their state. Here one class serves both.
BaseAggregator, BaseCollector = Aggregator, Collector

# fmt: off
__all__ = [
    "Aggregator", "BaseAggregator", "BaseCollector", "Collect", "Collector", "Count", "Earliest", "First", "Last",
    "Latest", "Max", "Mean", "Min", "Reduce", "Sum",
]
# fmt: on
