"""The interface of a state backend: opens key-value databases, and reads and writes their files for checkpoints.

The default backend is RocksDB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

#: A change of a database: a key (with the prefix of its store) and its new value. None deletes the key.
Change = tuple[bytes, bytes | None]


class DatabaseCorrupt(Exception):
    """The data on disk is damaged. Any method of a database may raise it."""


class Snapshot(Protocol):
    """The content of a database at one moment. Later writes do not change it. Any thread may read it.

    A snapshot must be closed before its database is closed.
    """

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of one key; None if the key is absent."""

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values in key order, from the key ``first``."""

    def close(self) -> None:
        """Releases the snapshot."""


class Database(Protocol):
    """One open key-value database. Every method may raise DatabaseCorrupt, or any error that the disk causes."""

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of one key; None if the key is absent."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the values of many keys, in the order of ``keys``; None for an absent key."""

    def write(self, changes: Sequence[Change]) -> None:
        """Writes all changes atomically and in order.

        The writes survive a crash of the process, but not a crash of the machine.
        """

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Does the same as ``write``. The changes are given as parallel lists of keys and values."""

    def reopen(self, bulk_records: int | None) -> None:
        """Flushes all writes, and begins or ends bulk mode.

        Args:
            bulk_records: About how many writes will follow in bulk mode, in which reads may be slow. If the process
                dies in bulk mode, only the writes since the last flush are lost. None ends bulk mode.
        """

    @property
    def flushing(self) -> bool:
        """Whether a background flush is still running."""

    def flush(self, *, wait: bool = True) -> None:
        """Flushes all writes, so that they survive a crash of the machine.

        If ``wait`` is False, returns at once, and the flush runs in the background.
        """

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values in key order, from the key ``first``."""

    def items_back(self, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values in reverse key order, from the last key before ``end``."""

    def snapshot(self) -> Snapshot:
        """Returns a snapshot of the content. No write may run at the same time."""

    def checkpoint(self, path: Path) -> None:
        """Writes a consistent copy of the database at ``path``."""

    def compact(self) -> None:
        """Rewrites the database's files without deleted and overwritten values."""

    def estimates(self) -> tuple[int, int]:
        """Returns estimates of the number of keys, and of the bytes of live data on disk."""

    def size_bytes(self) -> int:
        """Returns the bytes of the database's files on disk. The write-ahead log is not included."""

    def close(self) -> None:
        """Closes the database.

        Flushed writes are kept. Writes that are not flushed yet are kept, too, except in bulk mode.
        """


class Databases(Protocol):
    """A backend that opens, moves and deletes databases by their path."""

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        """Opens a database, and creates it if absent.

        With ``bulk_records``, opens it in bulk mode for this many writes.
        """

    def exists(self, path: Path) -> bool:
        """Whether a database exists at this path."""

    def move(self, path: Path, to: Path) -> None:
        """Moves a closed database."""

    def delete(self, path: Path) -> None:
        """Deletes a closed database."""


class LocalFile(NamedTuple):
    """A file of a database.

    Two files with the same ``identity`` have the same content, so one copy of both is enough.
    """

    name: str
    size: int
    identity: str


@runtime_checkable
class DatabaseFiles(Protocol):
    """Access to the files of databases, for the copies of checkpoints in an object store.

    A backend without this protocol has no checkpoints in an object store.
    """

    @property
    def kind(self) -> str:
        """The name of the file format. Only a backend of the same kind can restore a checkpoint."""

    def files(self, path: Path) -> list[LocalFile]:
        """Lists the files of a closed database or of a checkpoint, sorted by name."""

    def read_file(self, path: Path, name: str) -> Iterator[bytes]:
        """Yields the content of one file as a sequence of byte strings."""

    def write_file(self, path: Path, name: str, chunks: Iterable[bytes]) -> None:
        """Writes one file of a database. The database is opened after all of its files are written."""

    def clear(self, path: Path) -> None:
        """Deletes a folder and its content; does nothing if the folder is absent."""
