"""An object store in memory for simulated processes, with everything that such a store can do wrong; and work in steps.

Invariants:
    - An object is there whole or not at all, also when its writer dies.
    - Work beside the worker's turns advances by one step in each turn: the same seed gives the same steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from holdfast.infra.storage.errors import ObjectMissing, StorageFailed
from holdfast.processors.engine.checkpoints.ports import Job, Storage
from holdfast.processors.engine.checkpoints.threads import step
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import Process


class SimulatedObjects:
    """The object store of a simulated world; ``attach`` gives one process its view of it.

    Attributes:
        refuses: Why it refuses everything; None while it does not.
        full: Whether it refuses writes.
        step_s: Virtual seconds from one step of an upload or download to the next.
        lost_answers: So many of the next changes are done, and their answers are lost.
        damaged: The names of objects that were damaged from outside.
        on_written: Told the name of each object once it is there.
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
        """The store and the work of one life of one process."""
        work = SteppedWork(process, self._clock, lambda: self.step_s)
        return Storage(ObjectsOfProcess(self, process), work, lambda: f"u{next(self._numbers):06d}")


class ObjectsOfProcess:
    """The store as one process sees it; see ``processors.engine.checkpoints.ports.Objects``."""

    shown = "in-memory"

    def __init__(self, store: SimulatedObjects, process: Process) -> None:
        self._store = store
        self._process = process

    def sizes(self, prefix: str) -> dict[str, int]:
        """See ``Objects.sizes``."""
        self._ask("list")
        return {name: len(raw) for name, raw in sorted(self._store.objects.items()) if name.startswith(prefix)}

    def read(self, name: str) -> bytes:
        """See ``Objects.read``."""
        self._ask("read")
        if name not in self._store.objects:
            raise ObjectMissing(f"There is no {name}.", action="Nothing.")
        return self._store.objects[name]

    def chunks(self, name: str) -> Iterator[bytes]:
        """See ``Objects.chunks``."""
        yield self.read(name)

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """See ``Objects.write``."""
        raw = b"".join(chunks)
        self._ask("write")
        if self._store.full:
            raise StorageFailed("The store is full.", action="Make room.")
        self._store.objects[name] = raw
        self._store.on_written(name)
        self._answer("write")

    def delete(self, names: Sequence[str]) -> None:
        """See ``Objects.delete``."""
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


class SteppedWork:
    """See ``Work``: one step of each job in each turn, and none before its time.

    Args:
        process: Whose work it is; it dies with it.
        clock: Virtual time.
        step_s: Virtual seconds from one step of a job to the next.
    """

    def __init__(self, process: Process, clock: VirtualClock, step_s: Callable[[], float]) -> None:
        self._process = process
        self._clock = clock
        self._step_s = step_s
        self._jobs: list[tuple[Iterator[None], Job]] = []
        self._due: dict[int, float] = {}

    def start(self, work: Callable[[Job], Iterator[None]]) -> Job:
        """See ``Work.start``."""
        job = Job()
        self._jobs.append((work(job), job))
        self._due[id(job)] = self._clock.monotonic()
        return job

    def turn(self) -> None:
        """See ``Work.turn``."""
        for steps, job in self._jobs:
            if self._clock.monotonic() >= self._due[id(job)]:
                step(steps, job)
                self._due[id(job)] = self._clock.monotonic() + self._step_s()
        for _, job in self._jobs:
            if job.done:
                del self._due[id(job)]
        self._jobs = [(steps, job) for steps, job in self._jobs if not job.done]

    def wait(self, seconds: float) -> None:
        """See ``Work.wait``."""
        now = self._clock.monotonic()
        if all(due > now for due in self._due.values()):
            self._process.sleep(max(seconds, 0.001))

    def close(self) -> None:
        """See ``Work.close``."""
        jobs, self._jobs = self._jobs, []
        for steps, _ in jobs:
            assert isinstance(steps, Generator)
            steps.close()
