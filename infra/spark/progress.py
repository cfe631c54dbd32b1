"""How far Spark is with what it does now, told again and again while it takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

#: A step that takes longer is told so often, in seconds.
TOLD_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Of the stages that run: their tasks, how many of these are done, and the records that they have read by now."""

    tasks: int
    done: int
    records: int


class Narrator:
    """Tells which step is under way, how far Spark is with it, and for how long.

    Args:
        session: The session; of one over Connect only the step and the seconds are known.
        tell: Takes each line.
    """

    def __init__(self, session: Any, tell: Callable[[str], None]) -> None:
        self._session, self._tell = session, tell
        self._what, self._since = "", time.monotonic()

    def doing(self, what: str) -> None:
        """What is done from now on."""
        self._what, self._since = what, time.monotonic()

    def line(self) -> str:
        """The line of this moment."""
        seconds = f"{time.monotonic() - self._since:.0f} s"
        progress = progress_of(self._session)
        if progress is None:
            return f"{self._what}: {seconds}"
        done = f"{progress.records:,} records read so far, {progress.done} of {progress.tasks} tasks done"
        return f"{self._what}: {done}, {seconds}"

    @contextmanager
    def telling(self) -> Iterator[Narrator]:
        """Tell a line every ``TOLD_EVERY_S`` seconds, from a thread of its own; what is quick stays quiet."""
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


def progress_of(session: Any) -> Progress | None:
    """What runs now in a session's own JVM; None when nothing does, or it is somewhere else."""
    if ".connect." in type(session).__module__:
        return None
    with suppress(Exception):  # a JVM that ends just now has no progress; whoever asked it for rows is told why
        stages = session.sparkContext._jsc.sc().statusStore().activeStages()
        running = [stages.apply(number) for number in range(stages.size())]
        if running:
            return Progress(
                sum(stage.numTasks() for stage in running),
                sum(stage.numCompleteTasks() for stage in running),
                sum(stage.inputRecords() for stage in running),
            )
    return None
