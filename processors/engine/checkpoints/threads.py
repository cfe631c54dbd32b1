"""Runs uploads and downloads of checkpoints on threads of the worker's process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from holdfast.processors.engine.checkpoints.ports import Job, Steps, Work

#: Maximum number of uploads and downloads that run at the same time; further ones wait.
THREADS_MAX = 4


class ThreadedWork(Work):
    """Runs each job on a daemon thread, so that a running job does not delay the end of the process."""

    def __init__(self) -> None:
        self._room = threading.Semaphore(THREADS_MAX)
        self._changed = threading.Event()
        self._jobs: list[Job] = []

    def start(self, work: Callable[[Job], Steps]) -> Job:
        job = Job()
        self._jobs = [*(known for known in self._jobs if not known.done), job]
        threading.Thread(target=self._run, args=(work, job), name="checkpoint", daemon=True).start()
        return job

    def turn(self) -> None:
        """Does nothing, because threads run by themselves."""

    def wait(self, seconds: float) -> None:
        self._changed.wait(max(seconds, 0.0))
        self._changed.clear()

    def close(self) -> None:
        for job in self._jobs:
            job.cancel()

    def _run(self, work: Callable[[Job], Steps], job: Job) -> None:
        try:
            with self._room:
                run_steps(work(job), job)
        # A driver may raise a BaseException, such as asyncio's CancelledError. The job must end then, too, because
        # otherwise all threads that wait for the job would wait forever.
        except BaseException as failure:
            job.failure = failure
            job.done = True
        self._changed.set()


def run_steps(steps: Steps, job: Job) -> None:
    """Runs a job until it ends or is cancelled."""
    while not job.done:
        step(steps, job)


def step(steps: Steps, job: Job) -> None:
    """Runs one step of a job; if the job ends with this step, stores its result or failure in ``job``."""
    try:
        if job.cancelled:
            steps.close()
            job.done = True
        else:
            next(steps)
    except StopIteration as end:
        job.result = end.value
        job.done = True
    except Exception as failure:
        job.failure = failure
        job.done = True


def random_id() -> str:
    """A unique name: 64 random bits as 16 hex digits."""
    return uuid.uuid4().hex[:16]
