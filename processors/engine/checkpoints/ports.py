"""What checkpoints need of the outside: objects, the files of a database, work beside the worker's turns, and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Objects(Protocol):
    """An object store; ``infra.storage.objects.FsspecObjects`` is the real one. Everything raises StorageFailed."""

    @property
    def shown(self) -> str:
        """Its address for people, without secrets."""
        ...

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names and sizes (bytes) of the objects below a folder, whose name ends with ``/``."""
        ...

    def read(self, name: str) -> bytes:
        """A small object; ObjectMissing when it is not there."""
        ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """An object in pieces; ObjectMissing when it is not there."""
        ...

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Make or replace an object: whole or not at all."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, those that are there."""
        ...


@dataclass(slots=True)
class Job:
    """Work under way beside the worker's turns."""

    done: bool = False
    cancelled: bool = False
    result: Any = None
    failure: BaseException | None = None
    #: What a reader may be told about it.
    progress: dict[str, int] = field(default_factory=dict)

    def cancel(self) -> None:
        """Nobody waits for it any more; it ends after its current step."""
        self.cancelled = True


class Work(Protocol):
    """Runs work beside the worker's turns: threads, or, where time is simulated, a step in each turn."""

    def start(self, work: Callable[[Job], Iterator[None]]) -> Job:
        """Begin; each step is one piece of reading or writing, and what is returned at the end is the job's result."""
        ...

    def turn(self) -> None:
        """Called in each of the worker's turns."""
        ...

    def wait(self, seconds: float) -> None:
        """Let work go on for so long, or until a job is done."""
        ...

    def close(self) -> None:
        """Give up all jobs."""
        ...


@dataclass(frozen=True, slots=True)
class Storage:
    """The world of checkpoints: where they go, who carries them there, and names that nobody had before."""

    objects: Objects
    work: Work
    new_id: Callable[[], str]
