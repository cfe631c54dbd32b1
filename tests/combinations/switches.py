"""Sets in the engine what a schedule says: which loop processes messages, batch sizes, and client timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.processors.engine.checkpoints import decision
from holdfast.processors.engine.dataframe import plain_loop as compilation
from holdfast.processors.engine.runtime import commit, loop, purge
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.runtime.task import columns, task
from holdfast.processors.testing import producer
from tests.combinations.schedules import Schedule
from tests.simulation.small_portions import portions_of_time


def _none(*_: Any, **__: Any) -> None:
    """Replaces a function that makes a faster loop of the engine. It returns None, so the engine uses a slower loop."""


@contextmanager
def switched(schedule: Schedule) -> Iterator[None]:
    """While the block runs, the engine has the schedule's settings."""
    values: list[tuple[Any, str, Any]] = [
        (commit, "FLUSH_TIMEOUT_S", schedule.patience_s),
        (producer, "ANSWER_TIMEOUT_S", schedule.patience_s),
        (loop, "RECORDS_PER_POLL", schedule.poll_max),
        (loop, "RECORDS_PER_SLICE", schedule.slice_max),
        (columns, "RUN_MIN", 2),
        (columns, "RUN_MAX", 5),
        (reading_order, "BUFFERED_MAX", schedule.buffered_max),
        (reading_order, "WOVEN_MIN", 2),
        (reading_order, "WOVEN_MAX", 8),
        (decision, "SPARES_AT_LEAST", 1),
        (purge, "PURGE_EVERY_S", 0.5),
    ]
    if not schedule.columns:
        values.append((task, "columnar_stream", _none))
    if not schedule.generated:
        values.append((task, "compile_run", compilation.loop_over))
    if not (schedule.woven and schedule.generated):
        values.append((task, "interleaved_streams", _none))
    if schedule.small:
        values += portions_of_time(schedule.seed)
    former = [(module, name, getattr(module, name)) for module, name, _ in values]
    for module, name, value in values:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in former:
            setattr(module, name, value)
