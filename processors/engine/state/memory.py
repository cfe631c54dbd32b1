"""Databases in the memory of the process: restored whole from their changelogs at each start, nothing on a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.processors.engine.state.database import Change, Database

#: Writes keys and values, in order, as a database of its own to a path on disk.
Export = Callable[[Path, Iterable[tuple[bytes, bytes]]], None]


class MemoryDatabase:
    """One database in memory; see ``Database``.

    Args:
        export: Makes checkpoints: memory itself can't outlive the process.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self._content: dict[bytes, bytes] = {}
        self._bytes = 0
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        """See ``Database.get``."""
        return self._open().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See ``Database.get_many``."""
        return list(map(self._open().get, keys))

    def write(self, changes: Sequence[Change]) -> None:
        """See ``Database.write``."""
        content = self._open()
        for key, value in changes:
            former = content.pop(key, None) if value is None else content.get(key)
            if former is not None:
                self._bytes -= len(key) + len(former)
            if value is not None:
                content[key] = value
                self._bytes += len(key) + len(value)

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See ``Database.load``."""
        self.write(list(zip(keys, values, strict=True)))

    def begin_bulk(self, records: int) -> None:
        """Nothing is slow here."""

    def end_bulk(self) -> None:
        """Nothing was changed."""

    @property
    def flushing(self) -> bool:
        """Nothing is flushed."""
        return False

    def flush(self, *, wait: bool = True) -> None:
        """Memory does not outlive the process: the changelog does."""

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See ``Database.items``; of what there is now, whatever is written meanwhile."""
        content = self._open()
        for key in sorted(key for key in content if key >= first):
            value = content.get(key)
            if value is not None:
                yield key, value

    def checkpoint(self, path: Path) -> None:
        """See ``Database.checkpoint``: a RocksDB, which every reader of checkpoints takes."""
        self._export(path, self.items(b""))

    def compact(self) -> None:
        """Nothing deleted is kept here."""
        self._open()

    def estimates(self) -> tuple[int, int]:
        """See ``Database.estimates``; exact here."""
        return len(self._content), self._bytes

    def size_bytes(self) -> int:
        """Bytes of keys and values."""
        return self._bytes

    def close(self) -> None:
        """Let go of everything."""
        self._content = {}
        self._bytes = 0
        self._closed = True

    def _open(self) -> dict[bytes, bytes]:
        if self._closed:
            raise ValueError("the database is closed")
        return self._content


class MemoryDatabases:
    """Databases in memory; see ``Databases``. A closed one is gone: it is restored whole when it is opened again.

    Args:
        export: See ``MemoryDatabase``.
    """

    def __init__(self, export: Export) -> None:
        self._export = export

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        """An empty database."""
        return MemoryDatabase(self._export)

    def exists(self, path: Path) -> bool:
        """Never: a closed database is gone."""
        return False

    def move(self, path: Path, to: Path) -> None:
        """Nothing is there."""

    def delete(self, path: Path) -> None:
        """Nothing is there."""
