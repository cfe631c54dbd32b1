"""A simulated object store in memory, with the faults of a real one, and a runner of upload and download jobs.

Invariants:
    - An object is complete or absent, even if its writer dies.
    - A job advances by one step in each turn of the worker: the same seed gives the same steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from holdfast.infra.storage.errors import ObjectMissing, StorageFailed
from holdfast.processors.engine.checkpoints.ports import Job, Objects, Steps, Storage, Work
from holdfast.processors.engine.checkpoints.threads import step
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import Process


class SimulatedObjects:
    """The object store of a simulation.

    Attributes:
        refuses: The reason with which the store refuses all requests; None if it works.
        full: Whether the store refuses writes.
        step_s: Virtual seconds between the steps of an upload or download.
        lost_answers: The number of next changes that are made but not answered.
        damaged: The names of objects that a test damaged.
        on_written: Called with the name of each new object.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.objects: dict[str, bytes] = {}
        self.refuses: str | None = None
        self.full = False
        self.step_s = 0.0
        self.lost_answers = 0
        self.damaged: set[str] = set()
        self.on_written: Callable[[str], None] = lambda name: None
        self._clock = clock
        self._numbers = itertools.count(1)

    def attach(self, process: Process) -> Storage:
        """The store and a job runner for one process."""
        work = SteppedWork(process, self._clock, lambda: self.step_s)
        return Storage(ObjectsOfProcess(self, process), work, lambda: f"u{next(self._numbers):06d}")


class ObjectsOfProcess(Objects):
    """One process's view of the store, with the interface ``Objects``."""

    shown = "in-memory"

    def __init__(self, store: SimulatedObjects, process: Process) -> None:
        self._store = store
        self._process = process

    def sizes(self, prefix: str) -> dict[str, int]:
        self._ask("list")
        return {name: len(raw) for name, raw in sorted(self._store.objects.items()) if name.startswith(prefix)}

    def read(self, name: str) -> bytes:
        self._ask("read")
        if name not in self._store.objects:
            raise ObjectMissing(f"There is no {name}.", action="Nothing.")
        return self._store.objects[name]

    def chunks(self, name: str) -> Iterator[bytes]:
        yield self.read(name)

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        raw = b"".join(chunks)
        self._ask("write")
        if self._store.full:
            raise StorageFailed("The store is full.", action="Make room.")
        self._store.objects[name] = raw
        self._store.on_written(name)
        self._answer("write")

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._ask("delete")
            self._store.objects.pop(name, None)
            self._answer("delete")

    def _ask(self, what: str) -> None:
        self._process.point(f"store:{what}:before")
        if self._store.refuses is not None:
            raise StorageFailed(f"The store refused: {self._store.refuses}.", action="Wait.")

    def _answer(self, what: str) -> None:
        self._process.point(f"store:{what}:after")
        if self._store.lost_answers:
            self._store.lost_answers -= 1
            raise StorageFailed("The store's answer is lost.", action="Wait.")


class SteppedWork(Work):
    """Runs jobs in steps, with the interface ``Work``: one step of each due job in each turn.

    Args:
        process: The process; its death ends the jobs.
        clock: Virtual time.
        step_s: Returns the virtual seconds between the steps of a job.
    """

    def __init__(self, process: Process, clock: VirtualClock, step_s: Callable[[], float]) -> None:
        self._process = process
        self._clock = clock
        self._step_s = step_s
        self._jobs: list[tuple[Steps, Job]] = []
        self._due: dict[int, float] = {}

    def start(self, work: Callable[[Job], Steps]) -> Job:
        job = Job()
        self._jobs.append((work(job), job))
        self._due[id(job)] = self._clock.monotonic()
        return job

    def turn(self) -> None:
        for steps, job in self._jobs:
            if self._clock.monotonic() >= self._due[id(job)]:
                step(steps, job)
                self._due[id(job)] = self._clock.monotonic() + self._step_s()
        for _, job in self._jobs:
            if job.done:
                del self._due[id(job)]
        self._jobs = [(steps, job) for steps, job in self._jobs if not job.done]

    def wait(self, seconds: float) -> None:
        now = self._clock.monotonic()
        if all(due > now for due in self._due.values()):
            self._process.sleep(max(seconds, 0.001))

    def close(self) -> None:
        jobs, self._jobs = self._jobs, []
        for steps, _ in jobs:
            assert isinstance(steps, Generator)
            steps.close()
