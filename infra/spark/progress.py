"""Writes progress lines during long steps of Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

#: Seconds between two progress lines.
TOLD_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Totals over Spark's running stages: tasks, finished tasks, and records read so far."""

    tasks: int
    done: int
    records: int


class Narrator:
    """Writes progress lines: the present step, its duration, and (not over Spark Connect) Spark's progress."""

    def __init__(self, session: Any, tell: Callable[[str], None]) -> None:
        self._session, self._tell = session, tell
        self._what, self._since = "", time.monotonic()

    def doing(self, what: str) -> None:
        """Begin a step; ``what`` is the step's name in progress lines."""
        self._what, self._since = what, time.monotonic()

    def line(self) -> str:
        """Returns the progress line for the present state of Spark's stages."""
        seconds = f"{time.monotonic() - self._since:.0f} s"
        progress = progress_of(self._session)
        if progress is None:
            return f"{self._what}: {seconds}"
        done = f"{progress.records:,} records read so far, {progress.done} of {progress.tasks} tasks done"
        return f"{self._what}: {done}, {seconds}"

    @contextmanager
    def telling(self) -> Iterator[Narrator]:
        """Context manager that writes a progress line every ``TOLD_EVERY_S`` from a separate thread."""
        ended = threading.Event()

        def narrate() -> None:
            while not ended.wait(TOLD_EVERY_S):
                if self._what:
                    self._tell(self.line())

        thread = threading.Thread(target=narrate, name="spark-progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()


def is_remote(session: Any) -> bool:
    """Whether the session's queries run on a Spark Connect server."""
    return ".connect." in type(session).__module__


def progress_of(session: Any) -> Progress | None:
    """Progress of the running stages in this process's JVM; None if no stage runs, and over Spark Connect."""
    if is_remote(session):
        return None
    with suppress(Exception):  # If the JVM has ended, these calls fail, and the query itself raises the error.
        stages = session.sparkContext._jsc.sc().statusStore().activeStages()
        running = [stages.apply(number) for number in range(stages.size())]
        if running:
            return Progress(
                sum(stage.numTasks() for stage in running),
                sum(stage.numCompleteTasks() for stage in running),
                sum(stage.inputRecords() for stage in running),
            )
    return None
