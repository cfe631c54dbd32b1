"""The columns of windows: ``from holdfast.dataframe.windows import Count, Sum``."""

from __future__ import annotations

from holdfast.processors.engine.dataframe.aggregation import Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.dataframe.window_aggregates import Collect, Earliest, First, Latest, Reduce

__all__ = ["Collect", "Count", "Earliest", "First", "Last", "Latest", "Max", "Mean", "Min", "Reduce", "Sum"]
