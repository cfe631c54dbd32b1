"""Work beside the worker's turns, on threads of this process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

from holdfast.processors.engine.checkpoints.ports import Job

#: So many transfers at once.
THREADS_MAX = 4


class ThreadedWork:
    """See ``Work``: each job has a thread, and some of them run at a time. Threads end with the process."""

    def __init__(self) -> None:
        self._room = threading.Semaphore(THREADS_MAX)
        self._changed = threading.Event()
        self._jobs: list[Job] = []

    def start(self, work: Callable[[Job], Iterator[None]]) -> Job:
        """See ``Work.start``."""
        job = Job()
        self._jobs = [*(known for known in self._jobs if not known.done), job]
        threading.Thread(target=self._run, args=(work, job), name="checkpoint", daemon=True).start()
        return job

    def turn(self) -> None:
        """See ``Work.turn``: threads need none."""

    def wait(self, seconds: float) -> None:
        """See ``Work.wait``."""
        self._changed.wait(max(seconds, 0.0))
        self._changed.clear()

    def close(self) -> None:
        """See ``Work.close``: each ends after its current step, or with the process."""
        for job in self._jobs:
            job.cancel()

    def _run(self, work: Callable[[Job], Iterator[None]], job: Job) -> None:
        try:
            with self._room:
                run_steps(work(job), job)
        except (
            BaseException
        ) as failure:  # of a store's driver, such as a cancelled task: it ends the job, not its waiters
            job.failure = failure
            job.done = True
        self._changed.set()


def run_steps(steps: Iterator[None], job: Job) -> None:
    """Run a job to its end, or until it is cancelled."""
    while not job.done:
        step(steps, job)


def step(steps: Iterator[None], job: Job) -> None:
    """One step of a job; its end, result or failure is noted in it."""
    try:
        if job.cancelled:
            _close(steps)
            job.done = True
        else:
            next(steps)
    except StopIteration as end:
        job.result = end.value
        job.done = True
    except Exception as failure:
        job.failure = failure
        job.done = True


def _close(steps: Iterator[None]) -> None:
    if isinstance(steps, Generator):
        closing: Generator[Any, Any, Any] = steps
        closing.close()


def random_id() -> str:
    """A name that nobody had before."""
    return uuid.uuid4().hex[:16]
