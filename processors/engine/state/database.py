"""The port of a state backend: key-value databases, and their files for checkpoints. RocksDB is the default backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

#: A full key and its new value; None deletes.
Change = tuple[bytes, bytes | None]


class DatabaseCorrupt(Exception):
    """The data on disk is damaged. Any method of a database may raise it."""


class Database(Protocol):
    """One open database. Every method may raise DatabaseCorrupt, or any error of the disk."""

    def get(self, key: bytes) -> bytes | None:
        """The value of one key; None if absent."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of many keys, in the order of the keys; None for an absent key."""

    def write(self, changes: Sequence[Change]) -> None:
        """Writes all changes atomically, in order.

        They survive the death of the process, but not of the machine.
        """

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """``write`` with parallel lists of keys and values."""

    def begin_bulk(self, records: int) -> None:
        """Prepares for about ``records`` writes; reads may be slow until ``end_bulk``.

        A process that dies before the end loses the newest writes since the last flush, and never an older write alone.
        """

    def end_bulk(self) -> None:
        """Flushes, and ends the bulk mode."""

    @property
    def flushing(self) -> bool:
        """Whether a flush without ``wait`` is still running."""

    def flush(self, *, wait: bool = True) -> None:
        """Flushes all writes, so that they survive a crash of the machine; without ``wait`` in the background."""

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in key order, from the key ``first``."""

    def items_back(self, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in reverse key order, from the last key before ``end``."""

    def checkpoint(self, path: Path) -> None:
        """Makes a consistent copy at ``path``."""

    def compact(self) -> None:
        """Rewrites the database without deleted and overwritten values."""

    def estimates(self) -> tuple[int, int]:
        """Estimates of the number of keys and of the live bytes on disk."""

    def size_bytes(self) -> int:
        """Bytes on disk, without the write-ahead log."""

    def close(self) -> None:
        """Closes the database.

        Writes are kept; in bulk mode, only flushed writes are kept.
        """


class Databases(Protocol):
    """A disk with databases by path."""

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        """Opens a database, and creates it if absent; with ``bulk_records`` in bulk mode."""

    def exists(self, path: Path) -> bool:
        """Whether a database is at this path."""

    def move(self, path: Path, to: Path) -> None:
        """Moves a closed database."""

    def delete(self, path: Path) -> None:
        """Deletes a closed database."""


class LocalFile(NamedTuple):
    """A file of a database; ``identity`` changes whenever the content may have changed."""

    name: str
    size: int
    identity: str


@runtime_checkable
class DatabaseFiles(Protocol):
    """The files of databases. A backend without this protocol has no checkpoints in an object store."""

    @property
    def kind(self) -> str:
        """The name of the file format; a checkpoint is restored only by a backend with the same kind."""

    def files(self, path: Path) -> list[LocalFile]:
        """The files of a closed database or of a checkpoint, sorted by name."""

    def read_file(self, path: Path, name: str) -> Iterator[bytes]:
        """The content of one file, in pieces."""

    def write_file(self, path: Path, name: str, chunks: Iterable[bytes]) -> None:
        """Writes one file of a database, which is opened after all its files are written."""

    def clear(self, path: Path) -> None:
        """Deletes a folder and everything below it; does nothing if the folder is absent."""
