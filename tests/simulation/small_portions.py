"""Sets small batch sizes and short timeouts in the engine, as a schedule says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.processors.engine.checkpoints import decision
from holdfast.processors.engine.runtime import commit, loop, purge
from holdfast.processors.engine.runtime.ownership import changelog_replay as restore
from holdfast.processors.engine.runtime.ownership import standby
from holdfast.processors.engine.runtime.task import columns, task_time, task_timers
from holdfast.processors.engine.state.databases import task_store
from holdfast.processors.engine.state.time import time_index
from holdfast.processors.engine.windows import fixed as window_store
from holdfast.processors.engine.windows import sessions as session_store
from holdfast.processors.testing import producer
from tests.simulation.schedule import Schedule


@contextmanager
def tuned(schedule: Schedule) -> Iterator[None]:
    """While the block runs, the engine has small batches and a client timeout.

    With small batches, a few hundred messages reach code paths that would otherwise need millions of messages.
    """
    values: list[tuple[Any, str, float]] = [
        (commit, "FLUSH_TIMEOUT_S", schedule.patience_s),
        (producer, "ANSWER_TIMEOUT_S", schedule.patience_s),
        (loop, "RECORDS_PER_POLL", schedule.poll_max),
        (loop, "RECORDS_PER_SLICE", max(1, schedule.poll_max // 2)),
        (columns, "RUN_MIN", 1 if schedule.timed else 2),
        (columns, "RUN_MAX", 5),
        (restore, "RECORDS_PER_STEP", schedule.restore_step),
        (standby, "RECORDS_PER_STEP", min(schedule.restore_step, standby.RECORDS_PER_STEP)),
        (decision, "SPARES_AT_LEAST", schedule.spares),
        (restore, "NOTE_EVERY_S", 0.0 if schedule.seed % 2 else 1.0),
        (restore, "BULK_RECORDS_MIN", 1 if schedule.seed % 4 < 2 else 50_000),
    ]
    if schedule.pieces:
        values.append((task_store, "BATCH_OPERATIONS_MAX", schedule.pieces))
    if schedule.grouped:
        values.append((purge, "PURGE_EVERY_S", 0.2))
    if schedule.timed or schedule.grouped or schedule.joins:
        values += portions_of_time(schedule.seed)
    former = [(module, name, getattr(module, name)) for module, name, _ in values]
    for module, name, value in values:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in former:
            setattr(module, name, value)


def portions_of_time(seed: int) -> list[tuple[Any, str, float]]:
    """Limits for windows and timers. They are so small that closing all due windows takes several commits."""
    return [
        (task_time, "CLOSED_AT_ONCE", (1, 3, 5_000)[seed % 3]),
        (task_time, "REMOVED_AT_ONCE", (2, 5_000)[seed % 2]),
        (task_timers, "FIRED_AT_ONCE", (1, 3, 5_000)[seed % 3]),
        (task_timers, "READ_AT_ONCE", (2, 500)[seed % 2]),
        (window_store, "OPEN_KEPT", (1, 2, 16)[seed // 2 % 3]),
        (session_store, "OPEN_KEPT", (1, 2, 16)[seed // 2 % 3]),
        (session_store, "READ_AT_ONCE", (1, 4)[seed // 3 % 2]),
        (time_index, "NEAR", (1, 4, 1_000)[seed // 6 % 3]),
    ]
