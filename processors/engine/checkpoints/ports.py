"""What checkpoints need of the outside: objects, the files of a database, work beside the worker's turns, and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable


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


class LocalFile(NamedTuple):
    """A file of a database: ``identity`` is another one whenever its content may be."""

    name: str
    size: int
    identity: str


@runtime_checkable
class DatabaseFiles(Protocol):
    """The files that databases consist of; a backend without it has no checkpoints in a store."""

    @property
    def kind(self) -> str:
        """What can open these files."""
        ...

    def files(self, path: Path) -> list[LocalFile]:
        """The files of a closed database or of a checkpoint, in the order of their names."""
        ...

    def read_file(self, path: Path, name: str) -> Iterator[bytes]:
        """One file in pieces."""
        ...

    def write_file(self, path: Path, name: str, chunks: Iterable[bytes]) -> None:
        """Make one file of a database that is not opened before all of them are there."""
        ...

    def clear(self, path: Path) -> None:
        """Delete a folder with all that lies below it, if it is there."""
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
