"""The running tasks of a worker, and those of them that keep a stream time."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.processors.engine.runtime.task import Task, TaskPhase


def running(tasks: Sequence[Task]) -> list[Task]:
    """The tasks that process."""
    return [task for task in tasks if task.phase is TaskPhase.RUNNING]


def timed(tasks: Sequence[Task]) -> list[Task]:
    """The running tasks that keep a stream time."""
    return [task for task in tasks if task.time is not None and task.phase is TaskPhase.RUNNING]


def more_is_due(tasks: Sequence[Task]) -> bool:
    """Whether windows or timers are due that the last commit did not take."""
    return any(task.time is not None and task.time.more for task in timed(tasks))
