"""The memory backend: databases in the memory of the process. Each start restores their content from the changelogs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.processors.engine.state.databases.database import Change, Database, Databases, Snapshot

#: A function that writes keys and values, given in key order, as a new RocksDB at a path.
Export = Callable[[Path, Iterable[tuple[bytes, bytes]]], None]


class MemorySnapshot(Snapshot):
    """A snapshot of a database in memory: the former values of the keys that were written since the snapshot.

    Another thread may read it during a write. ``write`` notes a former value before it changes the key. So a read looks
    at the content first, and at the former values afterwards.
    """

    def __init__(self, content: Mapping[bytes, bytes], release: Callable[[MemorySnapshot], None]) -> None:
        self._content, self._release = content, release
        self._former: dict[bytes, bytes | None] = {}

    def note(self, key: bytes, value: bytes | None) -> None:
        """Keeps the value that a key has before a write."""
        self._former.setdefault(key, value)

    def get(self, key: bytes) -> bytes | None:
        value = self._content.get(key)
        return self._former.get(key, value)

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = {*list(self._content), *list(self._former)}
        for key in sorted(key for key in keys if key >= first):
            value = self.get(key)
            if value is not None:
                yield key, value

    def close(self) -> None:
        self._release(self)


class MemoryDatabase(Database):
    """One database in memory. For a checkpoint, the function ``export`` writes its content to the disk."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._content: dict[bytes, bytes] = {}
        self._bytes = 0
        self._closed = False
        #: ``_ordered``: all keys as the last range read sorted them; some may be deleted by now. ``_unordered``: the
        #: keys that were added after that read.
        self._ordered: list[bytes] = []
        self._unordered: list[bytes] = []
        self._snapshots: list[MemorySnapshot] = []

    def get(self, key: bytes) -> bytes | None:
        return self._open().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return list(map(self._open().get, keys))

    def write(self, changes: Sequence[Change]) -> None:
        content = self._open()
        for key, value in changes:
            for snapshot in tuple(self._snapshots):
                snapshot.note(key, content.get(key))
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

    def reopen(self, bulk_records: int | None) -> None:
        """Does nothing, because writes to memory need no bulk mode."""

    @property
    def flushing(self) -> bool:
        """Always False, because memory needs no flush."""
        return False

    def flush(self, *, wait: bool = True) -> None:
        """Does nothing, because the changelog restores the state after a restart."""

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values in key order, from ``first``. Keys added during the iteration are not included."""
        content, keys = self._open(), self._in_order()
        for at in range(bisect_left(keys, first), len(keys)):
            value = content.get(keys[at])
            if value is not None:
                yield keys[at], value

    def items_back(self, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values in reverse order, from the last key before ``end``.

        Keys added during the iteration are not included.
        """
        content, keys = self._open(), self._in_order()
        for at in range(bisect_left(keys, end) - 1, -1, -1):
            value = content.get(keys[at])
            if value is not None:
                yield keys[at], value

    def _in_order(self) -> list[bytes]:
        """Returns the sorted keys. Some of them may be deleted by now, so the caller must check each key.

        The list is sorted again only if keys were added since the last call. Most range reads therefore need no sort.
        """
        if self._unordered or len(self._ordered) > 2 * len(self._content) + 100:
            self._ordered = sorted({*self._unordered, *self._content})
            self._unordered = []
        return self._ordered

    def snapshot(self) -> Snapshot:
        """Returns a snapshot. While it is open, each write also keeps the former value of its key."""
        made = MemorySnapshot(self._open(), self._snapshots.remove)
        self._snapshots.append(made)
        return made

    def checkpoint(self, path: Path) -> None:
        """Writes the content as a RocksDB database, so that every reader of checkpoints can read it."""
        self._export(path, self.items(b""))

    def compact(self) -> None:
        """Does nothing, because memory keeps no deleted or overwritten values."""
        self._open()

    def estimates(self) -> tuple[int, int]:
        """Returns the number of keys, and the total bytes of keys and values. Both numbers are exact."""
        return len(self._content), self._bytes

    def size_bytes(self) -> int:
        """Returns the total length of keys and values, in bytes."""
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
    """The databases of a process that keeps state in memory. A closed database loses its content."""

    def __init__(self, export: Export) -> None:
        self._export = export

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        """Returns an empty database, because the content of a closed database is lost."""
        return MemoryDatabase(self._export)

    def exists(self, path: Path) -> bool:
        """Returns False always, because the content of a closed database is lost."""
        return False

    def move(self, path: Path, to: Path) -> None:
        """Does nothing, because a closed database has no content."""

    def delete(self, path: Path) -> None:
        """Does nothing, because a closed database has no content."""
