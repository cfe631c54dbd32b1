"""The memory backend: databases in the process, restored from their changelogs at each start."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.processors.engine.state.database import Change, Database, Databases

#: Writes keys and values, in key order, as a new RocksDB at a path.
Export = Callable[[Path, Iterable[tuple[bytes, bytes]]], None]


class MemoryDatabase(Database):
    """One database in memory; ``export`` writes a checkpoint to the disk."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._content: dict[bytes, bytes] = {}
        self._bytes = 0
        self._closed = False
        #: All keys in order at the last range read, with some deleted ones; and the keys that are new since then.
        self._ordered: list[bytes] = []
        self._unordered: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self._open().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return list(map(self._open().get, keys))

    def write(self, changes: Sequence[Change]) -> None:
        content = self._open()
        for key, value in changes:
            former = content.pop(key, None) if value is None else content.get(key)
            if former is not None:
                self._bytes -= len(key) + len(former)
            if value is not None:
                if former is None:
                    self._unordered.append(key)
                content[key] = value
                self._bytes += len(key) + len(value)

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.write(list(zip(keys, values, strict=True)))

    def begin_bulk(self, records: int) -> None:
        """Does nothing, because writes to memory need no bulk mode."""

    def end_bulk(self) -> None:
        """Does nothing."""

    @property
    def flushing(self) -> bool:
        """False: memory has no flush."""
        return False

    def flush(self, *, wait: bool = True) -> None:
        """Does nothing, because after a restart the changelog restores the state."""

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in key order, from ``first``; of keys that exist at the call."""
        content, keys = self._open(), self._in_order()
        for at in range(bisect_left(keys, first), len(keys)):
            value = content.get(keys[at])
            if value is not None:
                yield keys[at], value

    def items_back(self, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in reverse key order, from the last key before ``end``; of keys that exist at the call."""
        content, keys = self._open(), self._in_order()
        for at in range(bisect_left(keys, end) - 1, -1, -1):
            value = content.get(keys[at])
            if value is not None:
                yield keys[at], value

    def _in_order(self) -> list[bytes]:
        """The keys in order.

        The list is rebuilt only after writes, so that a range needs no sort of all keys.
        """
        if self._unordered or len(self._ordered) > 2 * len(self._content) + 100:
            self._ordered = sorted({*self._unordered, *self._content})
            self._unordered = []
        return self._ordered

    def checkpoint(self, path: Path) -> None:
        """Writes a RocksDB, so that all readers of checkpoints can read it."""
        self._export(path, self.items(b""))

    def compact(self) -> None:
        """Does nothing, because memory keeps no deleted values."""
        self._open()

    def estimates(self) -> tuple[int, int]:
        """The exact number of keys and bytes."""
        return len(self._content), self._bytes

    def size_bytes(self) -> int:
        """Bytes of keys and values."""
        return self._bytes

    def close(self) -> None:
        """Frees the memory; the content is lost."""
        self._content = {}
        self._ordered, self._unordered = [], []
        self._bytes = 0
        self._closed = True

    def _open(self) -> dict[bytes, bytes]:
        if self._closed:
            raise ValueError("the database is closed")
        return self._content


class MemoryDatabases(Databases):
    """The databases of a process with state in memory; a closed database is lost, and empty when opened again."""

    def __init__(self, export: Export) -> None:
        self._export = export

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        """An empty database."""
        return MemoryDatabase(self._export)

    def exists(self, path: Path) -> bool:
        """False: a closed database is gone."""
        return False

    def move(self, path: Path, to: Path) -> None:
        """Does nothing, because a closed database is lost."""

    def delete(self, path: Path) -> None:
        """Does nothing, because a closed database is lost."""
