"""The ports of checkpoints: an object store, jobs in parallel to the worker's turns, and unique names."""

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
        """Names and sizes (bytes) of all objects below a folder; its name ends with ``/``."""

    def read(self, name: str) -> bytes:
        """The content of a small object; raises ObjectMissing if it is absent, and ObjectTooLarge.

        It stops at the implementation's limit, 16 MiB in ``FsspecObjects``, before the whole object is in memory.
        """

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of an object in pieces; raises ObjectMissing if it is absent."""

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Creates or replaces an object atomically."""

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; absent names are ignored."""


@dataclass(slots=True)
class Job:
    """An upload or a download that runs in parallel to the worker's turns."""

    done: bool = False
    cancelled: bool = False
    result: Any = None
    failure: BaseException | None = None
    #: Numbers for the status.
    progress: dict[str, int] = field(default_factory=dict)

    def cancel(self) -> None:
        """Ends the job after its current step."""
        self.cancelled = True


#: A job: each step reads or writes one piece, the return value is the job's result.
Steps = Generator[None, None, Any]


class Work(Protocol):
    """Runs jobs in parallel to the worker's turns: on threads, or in simulated time one step in each turn."""

    def start(self, work: Callable[[Job], Steps]) -> Job:
        """Starts a job."""

    def turn(self) -> None:
        """Called in each turn of the worker."""

    def wait(self, seconds: float) -> None:
        """Waits up to ``seconds`` for the end of a job."""

    def close(self) -> None:
        """Cancels all jobs."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The outside world of checkpoints: the store, the runner of jobs, and a source of unique names."""

    objects: Objects
    work: Work
    new_id: Callable[[], str]
