"""The engine as a contender, with an ordinary Python function as its users write it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import structlog

from holdfast import Application, State
from holdfast.infra.settings import MEMORY_BYTES_MIN
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.memory_plan import plan_memory
from tests.bench import joins, windows
from tests.bench.contenders import Work, tell

STATE_KEY = "totals"
GIB = 1 << 30
#: Seconds without a message after which a run counts as failed.
SILENCE_S = 120.0
#: Seconds without a message after which a run with `group_by` ends. Other runs end at a message count. That count does
#: not work here, because it does not include the messages behind the repartition topic.
GROUPED_S = 10.0

Fold = Callable[[StreamingDataFrame], StreamingDataFrame]
Windowed = Callable[[StreamingDataFrame, str], StreamingDataFrame]
Counted = Callable[[StreamingDataFrame], StreamingDataFrame]


def totals(value: dict[str, Any], state: State) -> dict[str, Any]:
    amount = value["amount"]
    seen = state.get(STATE_KEY)
    if seen is None:
        seen = {"count": 1, "total": amount, "min": amount, "max": amount}
    else:
        seen["count"] += 1
        seen["total"] += amount
        if amount < seen["min"]:
            seen["min"] = amount
        if amount > seen["max"]:
            seen["max"] = amount
    state.set(STATE_KEY, seen)
    return {
        "user_id": value["user_id"],
        "count": seen["count"],
        "total": seen["total"],
        "mean": seen["total"] / seen["count"],
        "min": seen["min"],
        "max": seen["max"],
        "ts": value["ts"],
    }


def add_up(frame: StreamingDataFrame) -> StreamingDataFrame:
    """Compute the totals of the bench's messages with a Python function."""
    return frame.apply(totals, stateful=True, store="default")


def bound_for(block_cache_mb: int) -> int:
    """Return the memory limit, in bytes, that results in a block cache of this size.

    The engine has only one limit for all its memory, and no separate limit for the block cache.
    """
    shared = plan_memory(MEMORY_BYTES_MIN + GIB).block_cache - plan_memory(MEMORY_BYTES_MIN).block_cache
    above = (block_cache_mb << 20) - plan_memory(MEMORY_BYTES_MIN).block_cache
    return max(MEMORY_BYTES_MIN, MEMORY_BYTES_MIN + above * GIB // shared)


def application_of(
    work: Work, fold: Fold = add_up, windowed: Windowed = windows.builtin, counted: Counted = joins.by_function
) -> Application:
    """Declare the application. Nothing is read or written yet."""
    application = Application(
        work.bootstrap,
        consumer_group=work.group,
        auto_offset_reset="earliest",
        commit_interval=work.commit_s,
        processing_guarantee=work.guarantee,
        state_dir=work.state_dir,
        loglevel=None,
        memory_max_bytes=bound_for(work.block_cache_mb) if work.block_cache_mb else None,
    )
    frame = application.dataframe(application.topic(work.source))
    if work.joins:
        right = None if joins.is_grouped(work.joins) else application.topic(work.source + joins.RIGHT)
        made = joins.joined(frame, right and application.dataframe(right), work.joins, counted)
    else:
        made = windowed(frame, work.windows) if work.windows else fold(frame)
    made.to_topic(application.topic(work.output))
    return application


class Watch:
    """A log processor that notes when partitions were assigned, and when the last of their tasks started to run.

    The state is restored between these two moments.
    """

    def __init__(self) -> None:
        self.assigned_at = self.runs_at = 0.0
        self.records = 0

    def __call__(self, logger: Any, method: str, event: dict[str, Any]) -> Any:
        if event["event"] == "partitions assigned":
            self.assigned_at = self.assigned_at or time.monotonic()
        elif event["event"] == "task runs":
            self.runs_at = time.monotonic()
            self.records += event["records"]
        elif method in ("warning", "error"):
            print(event, file=sys.stderr)
        raise structlog.DropEvent


def main(
    work: Work, fold: Fold = add_up, windowed: Windowed = windows.function, counted: Counted = joins.by_function
) -> None:
    watch = Watch()
    structlog.configure(processors=[watch])
    application = application_of(work, fold, windowed, counted)
    if joins.is_grouped(work.joins):
        application.run(timeout=GROUPED_S)
    else:
        application.run(count=work.count, timeout=SILENCE_S)
    tell(restore_s=watch.runs_at - watch.assigned_at, restored=watch.records)


if __name__ == "__main__":
    main(Work.parse(sys.argv[1:]))
