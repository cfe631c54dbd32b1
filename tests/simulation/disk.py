"""A simulated disk in memory: it holds the databases of simulated processes, and has the faults of a real disk.

A write is one atomic batch in the journal of its database. When the process dies, all batches survive, except in bulk
mode (for the replay of a changelog). When the machine dies, or a process dies in bulk mode, the flushed batches
survive, and a random number of later batches.

Invariants:
    - A batch is complete or absent, and never present without all batches before it.
    - The disk outlives processes. An open database belongs to one process until the process closes it or dies.
"""

from __future__ import annotations

import errno
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.state.databases.database import (
    Change,
    Database,
    DatabaseCorrupt,
    DatabaseFiles,
    Databases,
    LocalFile,
    Snapshot,
)
from holdfast.processors.testing.process import Process

#: The number of keys in one file of a database.
KEYS_PER_FILE = 4
_LENGTHS = struct.Struct(">II")


class Damage(Enum):
    """The moment when a damaged database raises DatabaseCorrupt: when it is opened, or at a read."""

    NONE = "none"
    AT_OPEN = "at open"
    AT_READ = "at read"


@dataclass(slots=True)
class _Stored:
    """One database on the disk.

    ``synced`` survives the death of the machine. ``batches`` are written but not flushed.
    """

    synced: dict[bytes, bytes] = field(default_factory=dict)
    batches: list[tuple[Change, ...]] = field(default_factory=list)
    content: dict[bytes, bytes] = field(default_factory=dict)
    damage: Damage = Damage.NONE
    holder: Process | None = None
    bulk: bool = False
    #: The files of a database that was downloaded file by file. None once the database has been opened.
    files: dict[str, bytes] | None = None

    def apply(self, changes: Sequence[Change]) -> None:
        self.batches.append(tuple(changes))
        _fold(self.content, changes)

    def sync(self) -> None:
        self.synced = dict(self.content)
        self.batches.clear()

    def keep(self, count: int) -> None:
        del self.batches[count:]
        self.content = dict(self.synced)
        for batch in self.batches:
            _fold(self.content, batch)


class SimulatedDisk:
    """The disk of one simulated machine.

    Attributes:
        full: Whether writes and openings fail with ENOSPC.
        short_writes: The number of next writes that are torn. A torn write fails, and is absent when the database is
            reopened.
    """

    def __init__(self) -> None:
        self.full = False
        self.short_writes = 0
        self._stored: dict[Path, _Stored] = {}

    def attach(self, process: Process) -> DiskOfProcess:
        """One process's view of the disk, with the interface ``Databases``."""
        return DiskOfProcess(self, process)

    @property
    def paths(self) -> list[Path]:
        """The paths of all databases, in the order of their creation."""
        return list(self._stored)

    def content(self, path: Path) -> dict[bytes, bytes]:
        """A copy of a database's content."""
        return dict(self._stored[path].content)

    def damage(self, path: Path) -> Damage:
        """How a database is damaged."""
        return self._stored[path].damage

    def unsynced(self, path: Path) -> int:
        """The number of batches of a database that are not flushed."""
        return len(self._stored[path].batches)

    def in_bulk(self, path: Path) -> bool:
        """Whether a database is in bulk mode. In this mode, a killed process also loses its unflushed batches."""
        return self._stored[path].bulk

    def sync(self, path: Path) -> None:
        """Flushes a database, as a full write buffer does."""
        self._stored[path].sync()

    def corrupt(self, path: Path, damage: Damage) -> None:
        """Damages a database, so that opening it, or reading it, raises ``DatabaseCorrupt``."""
        self._stored[path].damage = damage

    def lose_unsynced(self, path: Path, keep: int) -> None:
        """Delete all unflushed batches except the first ``keep``."""
        self._stored[path].keep(keep)

    def lose(self) -> None:
        """Deletes everything on the disk."""
        self._stored.clear()

    def release(self, process: Process) -> None:
        """Releases all databases of a dead process."""
        for stored in self._stored.values():
            if stored.holder is process:
                stored.holder = None


class DiskOfProcess(Databases, DatabaseFiles):
    """One process's view of the disk. At every access the scheduler may switch or kill the process."""

    def __init__(self, disk: SimulatedDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def open(self, path: Path, bulk_records: int | None = None) -> SimulatedDatabase:
        """Opens a database, and creates it if absent.

        Raises:
            OSError: The disk is full, or another process has the database open.
            DatabaseCorrupt: The database is damaged with ``Damage.AT_OPEN``.
        """
        self._process.point("disk:open")
        if self._disk.full:
            raise _refused(errno.ENOSPC, path)
        stored = self._disk._stored.get(path)
        if stored is None:
            stored = self._disk._stored[path] = _Stored()
        if stored.holder is not None:
            raise _refused(errno.EWOULDBLOCK, path)
        if stored.damage is Damage.AT_OPEN:
            raise DatabaseCorrupt(f"Corruption: the manifest of {path.name} is damaged")
        if stored.files is not None:
            content, stored.files = content_of(stored.files), None
            stored.apply(list(content.items()))
        stored.holder, stored.bulk = self._process, bulk_records is not None
        if stored.bulk:
            stored.sync()  # as in RocksDB: all batches from before bulk mode are already in its files
        return SimulatedDatabase(self._disk, stored, path, self._process)

    def exists(self, path: Path) -> bool:
        return path in self._disk._stored

    def move(self, path: Path, to: Path) -> None:
        self._process.point("disk:move")
        self._closed(path)
        self._disk._stored[to] = self._disk._stored.pop(path)

    def delete(self, path: Path) -> None:
        self._process.point("disk:delete")
        self._closed(path)
        self._disk._stored.pop(path, None)

    # -- the files of closed databases (``DatabaseFiles``) -----------------------------------------------------------

    kind = "simulated"

    def files(self, path: Path) -> list[LocalFile]:
        files = files_of(self._disk._stored[path].content)
        return [LocalFile(name, len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in files.items()]

    def read_file(self, path: Path, name: str) -> Iterator[bytes]:
        yield files_of(self._disk._stored[path].content)[name]

    def write_file(self, path: Path, name: str, chunks: Iterable[bytes]) -> None:
        """Writes one file of a database.

        Raises:
            OSError: The disk is full.
        """
        raw = b"".join(chunks)
        self._process.point("disk:file")
        if self._disk.full:
            raise _refused(errno.ENOSPC, path)
        stored = self._disk._stored.setdefault(path, _Stored(files={}))
        assert stored.files is not None
        stored.files[name] = raw

    def clear(self, path: Path) -> None:
        self._process.point("disk:clear")
        # a comparison of text is faster than `Path.parents`, which builds all parents at each call
        beneath = f"{path}/"
        for below in [known for known in self._disk._stored if known == path or str(known).startswith(beneath)]:
            del self._disk._stored[below]

    def _closed(self, path: Path) -> None:
        stored = self._disk._stored.get(path)
        if stored is not None and stored.holder is not None:
            raise _refused(errno.EBUSY, path)


class SimulatedSnapshot(Snapshot):
    """The content of a simulated database at one moment."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database = database
        self._content = dict(database._readable())

    def get(self, key: bytes) -> bytes | None:
        return self._content.get(key)

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in sorted(self._content.items()):
            if key >= first:
                yield key, value

    def close(self) -> None:
        self._database.snapshots.discard(self)


class SimulatedDatabase(Database):
    """One open database, with the interface ``Database``."""

    def __init__(self, disk: SimulatedDisk, stored: _Stored, path: Path, process: Process) -> None:
        self._disk = disk
        self._stored = stored
        self._path = path
        self._process = process
        self._torn = False
        self._closed = False
        self.snapshots: set[SimulatedSnapshot] = set()

    def get(self, key: bytes) -> bytes | None:
        return self._readable().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        content = self._readable()
        return [content.get(key) for key in keys]

    def write(self, changes: Sequence[Change]) -> None:
        """Writes all changes as one batch.

        Raises:
            OSError: The disk is full, this or an earlier write was torn, or the database is closed.
        """
        self._process.point("disk:write:before")
        if self._disk.full:
            raise _refused(errno.ENOSPC, self._path)
        if self._disk.short_writes:
            self._disk.short_writes -= 1
            self._torn = True
        if self._torn or self._closed:
            raise _refused(errno.EIO, self._path)
        self._stored.apply(changes)
        self._process.point("disk:write:after")

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.write(list(zip(keys, values, strict=True)))

    def reopen(self, bulk_records: int | None) -> None:
        self.flush()
        self._stored.bulk = bulk_records is not None

    @property
    def flushing(self) -> bool:
        """Always False: a simulated flush does not run in the background."""
        return False

    def flush(self, *, wait: bool = True) -> None:
        """Flushes all batches, so that they survive the machine's death.

        Raises:
            OSError: The disk is full, an earlier write was torn, or the database is closed.
        """
        self._process.point("disk:flush:before")
        if self._disk.full:
            raise _refused(errno.ENOSPC, self._path)
        if self._torn or self._closed:
            raise _refused(errno.EIO, self._path)
        self._stored.sync()
        self._process.point("disk:flush:after")

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in sorted(self._readable().items()):
            if key >= first:
                yield key, value

    def items_back(self, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in sorted(self._readable().items(), reverse=True):
            if key < end:
                yield key, value

    def snapshot(self) -> Snapshot:
        """A copy of the content. It counts as open, so that a database that is closed too early is noticed."""
        made = SimulatedSnapshot(self)
        self.snapshots.add(made)
        return made

    def checkpoint(self, path: Path) -> None:
        self._process.point("disk:checkpoint")
        if self._disk.full:
            raise _refused(errno.ENOSPC, path)
        content = dict(self._readable())
        self._disk._stored[path] = _Stored(synced=dict(content), content=content)

    def compact(self) -> None:
        """Flushes all batches, as a compaction does."""
        self._process.point("disk:compact")
        if self._disk.full:
            raise _refused(errno.ENOSPC, self._path)
        self._readable()
        self._stored.sync()

    def estimates(self) -> tuple[int, int]:
        """The exact number of keys and bytes."""
        return len(self._stored.content), self.size_bytes()

    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._stored.content.items())

    def close(self) -> None:
        """Closes the database; unflushed batches of bulk mode are lost."""
        if self._closed:
            return
        self._process.point("disk:close")
        assert not self.snapshots, "the database is closed before its snapshots: RocksDB would stay open"
        self._closed = True
        if self._stored.bulk:
            self._stored.keep(0)
            self._stored.bulk = False
        self._stored.holder = None

    def _readable(self) -> dict[bytes, bytes]:
        if self._closed:
            raise _refused(errno.EBADF, self._path)
        if self._stored.damage is Damage.AT_READ:
            raise DatabaseCorrupt(f"Corruption: block checksum mismatch in {self._path.name}")
        return self._stored.content


def files_of(content: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """The content of a database as files.

    Each data file has ``KEYS_PER_FILE`` keys, in key order; one more file has the offsets.
    """
    keys = sorted(key for key in content if key != META_KEY)
    groups = [keys[first : first + KEYS_PER_FILE] for first in range(0, len(keys), KEYS_PER_FILE)]
    if META_KEY in content:
        groups.append([META_KEY])
    files = {
        f"{number:06d}.sst": b"".join(_LENGTHS.pack(len(key), len(content[key])) + key + content[key] for key in group)
        for number, group in enumerate(groups, 1)
    }
    return {**files, "CURRENT": str(len(files)).encode()}


def content_of(files: Mapping[str, bytes]) -> dict[bytes, bytes]:
    """The keys and values in the files of a database.

    Raises:
        DatabaseCorrupt: A file is missing, or cannot be parsed.
    """
    content: dict[bytes, bytes] = {}
    try:
        for number in range(1, int(files["CURRENT"]) + 1):
            raw = files[f"{number:06d}.sst"]
            at = 0
            while at < len(raw):
                key_size, size = _LENGTHS.unpack_from(raw, at)
                at += _LENGTHS.size + key_size + size
                content[raw[at - size - key_size : at - size]] = raw[at - size : at]
    except (KeyError, ValueError, struct.error) as failure:
        raise DatabaseCorrupt(f"Corruption: {failure!r}") from failure
    return content


def _fold(content: dict[bytes, bytes], changes: Sequence[Change]) -> None:
    for key, value in changes:
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value


def _refused(number: int, path: Path) -> OSError:
    return OSError(number, errno.errorcode[number], str(path))
