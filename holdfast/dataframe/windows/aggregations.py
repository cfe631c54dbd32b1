"""Aggregations for windows and their base classes, under the import path that Quix Streams uses."""

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

#: Quix Streams has separate base classes with these names. Here, each name is only an alias of Holdfast's class.
BaseAggregator, BaseCollector = Aggregator, Collector

# fmt: off
__all__ = [
    "Aggregator", "BaseAggregator", "BaseCollector", "Collect", "Collector", "Count", "Earliest", "First", "Last",
    "Latest", "Max", "Mean", "Min", "Reduce", "Sum",
]
# fmt: on
