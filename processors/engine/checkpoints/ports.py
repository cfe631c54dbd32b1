"""The interfaces that checkpoints use: an object store, background jobs, and a source of unique names."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Objects(Protocol):
    """An object store; ``FsspecObjects`` implements it. Every method may raise StorageFailed."""

    @property
    def shown(self) -> str:
        """The store's address without secrets."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Maps the name of each object below the folder ``prefix``, which ends with ``/``, to its size in bytes."""

    def read(self, name: str) -> bytes:
        """Returns the content of a small object; raises ObjectMissing, or ObjectTooLarge above a limit.

        ``FsspecObjects`` has a limit of 16 MiB. Reading stops at the limit, so that a large object does not fill the
        memory.
        """

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yields the content of an object piece by piece; raises ObjectMissing if the object does not exist."""

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Creates or replaces an object atomically."""

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; missing objects are ignored."""


@dataclass(slots=True)
class Job:
    """An upload or a download that runs in parallel to the worker's loop."""

    done: bool = False
    cancelled: bool = False
    result: Any = None
    failure: BaseException | None = None
    #: Numbers for the status page, for example ``bytes`` and ``bytes_total``.
    progress: dict[str, int] = field(default_factory=dict)

    def cancel(self) -> None:
        """Ends the job after its current step."""
        self.cancelled = True


#: A job as a generator: each step reads or writes a part of the data. The generator's return value is the job's result.
Steps = Generator[None, None, Any]


class Work(Protocol):
    """Runs jobs in parallel to the worker's loop: on threads, or (in tests) one step of each job in each turn."""

    def start(self, work: Callable[[Job], Steps]) -> Job:
        """Starts a job, and returns it."""

    def turn(self) -> None:
        """Does the next step of jobs that have no thread. The worker's loop must call it in each turn."""

    def wait(self, seconds: float) -> None:
        """Waits until any job ends, for at most ``seconds``."""

    def close(self) -> None:
        """Cancels all jobs."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The parts that checkpoints need: the object store, the runner of jobs, and a function that makes unique names."""

    objects: Objects
    work: Work
    new_id: Callable[[], str]
