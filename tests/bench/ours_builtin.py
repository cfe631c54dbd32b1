"""The engine with its built-in aggregation as a contender; outputs have the same fields as those of ``ours``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from holdfast import Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from tests.bench import joins, windows
from tests.bench.contenders import Work
from tests.bench.ours import main
from tests.bench.stream import FIRST_TIMESTAMP_MS


def add_up(frame: StreamingDataFrame) -> StreamingDataFrame:
    """Compute the totals of the bench's messages with built-in aggregators."""
    return frame.aggregate(
        {
            "user_id": Last("user_id"),
            "count": Count(),
            "total": Sum("amount"),
            "mean": Mean("amount"),
            "min": Min("amount"),
            "max": Max("amount"),
            "ts": Last("ts"),
        },
        store="default",
    )


def stored(user_id: str, times: int, total: float, least: float, most: float) -> Mapping[str, Any]:
    """The stored state of a key after this many messages."""
    return {
        "format": 1,
        "last": {"user_id": user_id, "ts": FIRST_TIMESTAMP_MS},
        "count": {"count": times},
        "sum": {"total": total},
        "mean": {"mean": {"sum": total, "count": times}},
        "min": {"min": least},
        "max": {"max": most},
    }


if __name__ == "__main__":
    main(Work.parse(sys.argv[1:]), add_up, windows.builtin, joins.by_column)
