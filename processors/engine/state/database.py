"""What a task's store needs of a key-value database on a disk; ``processors.engine.state.rocksdb`` is the real one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

#: A full key and its new value; None deletes.
Change = tuple[bytes, bytes | None]


class DatabaseCorrupt(Exception):
    """The data on disk is damaged; raised by any method of a database."""


class Database(Protocol):
    """One open database. Every method may raise DatabaseCorrupt, or whatever the disk refuses with."""

    def get(self, key: bytes) -> bytes | None:
        """The value of one key; None when absent."""
        ...

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        ...

    def write(self, changes: Sequence[Change]) -> None:
        """Apply all changes, in order, or none; survives the death of the process, not of the machine."""
        ...

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Like ``write``, with all keys and all values."""
        ...

    def begin_bulk(self, records: int) -> None:
        """Expect nothing but writes, of about so many records: reads may be slow until ``end_bulk``.

        A process that dies meanwhile loses a suffix of its writes since the last flush, never one from between others.
        """
        ...

    def end_bulk(self) -> None:
        """Flush, and be as after opening."""
        ...

    @property
    def flushing(self) -> bool:
        """Whether a flush that was not waited for is under way."""
        ...

    def flush(self, *, wait: bool = True) -> None:
        """Make what is written survive the process and the machine; without ``wait``, soon."""
        ...

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in key order, from ``first`` on."""
        ...

    def checkpoint(self, path: Path) -> None:
        """A consistent copy at ``path``."""
        ...

    def compact(self) -> None:
        """Rewrite the whole database without what was deleted or overwritten."""
        ...

    def estimates(self) -> tuple[int, int]:
        """About how many keys there are, and how many of the bytes on disk are neither overwritten nor deleted."""
        ...

    def size_bytes(self) -> int:
        """Bytes on disk, without the log of recent writes."""
        ...

    def close(self) -> None:
        """Close; what was written stays, and of what was written in bulk, what was flushed."""
        ...


class Databases(Protocol):
    """A disk that holds databases by path."""

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        """Open a database; made when absent. With ``bulk_records`` it is as after ``begin_bulk``."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether there is one."""
        ...

    def move(self, path: Path, to: Path) -> None:
        """Put a closed database aside."""
        ...

    def delete(self, path: Path) -> None:
        """Delete a closed database."""
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
