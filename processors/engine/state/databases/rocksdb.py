"""The RocksDB backend, which uses the library rocksdict. ``rocksdb_options`` sets its caches and write buffers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from rocksdict import AccessType, Checkpoint, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from holdfast.infra.system.rooted import inside
from holdfast.processors.engine.changelog.format import META_KEY, key_prefix
from holdfast.processors.engine.state.databases.database import (
    Change,
    Database,
    DatabaseCorrupt,
    DatabaseFiles,
    Databases,
    LocalFile,
    Snapshot,
)
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb_options import RocksMemory, database_options
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import BATCH_OPERATIONS_MAX, items_of
from holdfast.processors.engine.state.errors import StateFailed

#: Database files are copied in pieces of this size, in bytes.
CHUNK_BYTES = 4 << 20
#: Bytes of the block cache, and of the write buffers, of the RocksDB that is written as a checkpoint of state in
#: memory.
EXPORT_BYTES = 8 << 20
#: Number of pairs that a range read of a snapshot reads at once: at first, and at most.
_FIRST_ITEMS, ITEMS_AT_ONCE = 2, 64
#: The error text of rocksdict for a key that a snapshot does not contain. A snapshot has no `get` that returns None.
_ABSENT = "key not found"


def _opened(path: Path, memory: RocksMemory, bulk_records: int | None = None) -> Rdict:
    """Opens a database in bulk mode for a replay of ``bulk_records`` records. None opens it for normal use."""
    options = database_options(memory, bulk_records)
    with _named_errors():
        # Without an explicit column family, rocksdict opens an existing database with the options stored on disk, and
        # an 8 MB cache.
        rdict = Rdict(str(path), options, column_families={"default": options})
    if bulk_records is not None:
        # A replay needs no write-ahead log: after a crash, it resumes from the offsets of the last flush. Data and
        # offsets are in the same column family, so one flush writes both.
        writing = WriteOptions()
        writing.disable_wal = True
        rdict.set_write_options(writing)
    memory.open.add(path)
    return rdict


class RocksSnapshot(Snapshot):
    """A snapshot of a RocksDB database; of an empty one if the database is not created yet.

    The iterators of rocksdict's snapshots read the newest data, not the snapshot (seen in rocksdict 0.3.29). Range
    reads therefore use an iterator that is made together with the snapshot, because an iterator of RocksDB keeps the
    content that it had at its creation. Threads use this iterator one after the other.
    """

    def __init__(self, rdict: Rdict | None) -> None:
        self._snapshot = None if rdict is None else rdict.snapshot()
        self._iterator = None if rdict is None else rdict.iter()
        self._iterating = Lock()

    def get(self, key: bytes) -> bytes | None:
        if self._snapshot is None:
            return None
        try:
            value: bytes = self._snapshot[key]
        except Exception as failure:
            if str(failure) == _ABSENT:
                return None
            raise _named(failure) from failure
        return value

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        at: bytes | None = first
        size = _FIRST_ITEMS  # most reads are about one message key, which has few entries
        while at is not None:
            with _named_errors(), self._iterating:
                found, at = self._read(at, size)
            yield from found
            size = min(ITEMS_AT_ONCE, 4 * size)

    def _read(self, first: bytes, size: int) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Returns at most ``size`` pairs from the key ``first`` on, and the first key after them; None for no more."""
        iterator, found = self._iterator, list[tuple[bytes, bytes]]()
        if iterator is None:
            return found, None
        iterator.seek(first)
        while iterator.valid():
            if len(found) == size:
                return found, bytes(iterator.key())
            found.append((bytes(iterator.key()), bytes(iterator.value())))
            iterator.next()
        iterator.status()  # raises if the iterator ended at damaged data
        return found, None

    def close(self) -> None:
        with self._iterating:
            self._snapshot = self._iterator = None


class RocksDatabase(Database):
    """One RocksDB database.

    A new database is created on the disk by its first write. A new task that starts bulk mode before its first write
    therefore opens the database once and not twice.

    Args:
        rdict: The open database; None to create the database at the first write, with ``memory``.
        memory: The cache and buffers that all databases share; None for a read-only database.
    """

    def __init__(self, rdict: Rdict | None, path: Path, memory: RocksMemory | None = None) -> None:
        self._memory = memory
        self._made = rdict
        self._path = path

    @property
    def _rdict(self) -> Rdict:
        if self._made is None:
            assert self._memory is not None
            self._made = _opened(self._path, self._memory)
        return self._made

    def get(self, key: bytes) -> bytes | None:
        if self._made is None:
            return None
        try:
            value: bytes | None = self._rdict.get(key)
        except Exception as failure:
            raise _named(failure) from failure
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        if self._made is None:
            return [None] * len(keys)
        try:
            return list(self._rdict.get(keys))
        except Exception as failure:
            raise _named(failure) from failure

    def write(self, changes: Iterable[Change]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        with _named_errors():
            self._rdict.write(batch)

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.write(zip(keys, values, strict=True))

    def reopen(self, bulk_records: int | None) -> None:
        assert self._memory is not None  # Only a read-only database has no ``memory``, and it is never reopened.
        self.flush()
        self.close()
        self._made = _opened(self._path, self._memory, bulk_records)

    @property
    def flushing(self) -> bool:
        """Whether a background flush is running.

        After a failed flush it is False, and the next ``flush(wait=True)`` raises.
        """
        if self._number("background-errors"):
            return False
        return bool(self._number("mem-table-flush-pending") or self._number("num-running-flushes"))

    def flush(self, *, wait: bool = True) -> None:
        if self._made is None:
            return
        with _named_errors():
            self._rdict.flush(wait)

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._made is None:
            return
        with _named_errors():
            yield from _items(self._rdict, first)

    def items_back(self, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._made is None:
            return
        with _named_errors():
            yield from _items_back(self._rdict, end)

    def snapshot(self) -> Snapshot:
        with _named_errors():
            return RocksSnapshot(self._made)

    def checkpoint(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _named_errors():
            self._rdict.flush()
            checkpoint = Checkpoint(self._rdict)
            checkpoint.create_checkpoint(str(path))
            del checkpoint

    def compact(self) -> None:
        with _named_errors():
            self._rdict.flush()
            self._rdict.compact_range(None, None)

    def estimates(self) -> tuple[int, int]:
        return self._number("estimate-num-keys"), self._number("estimate-live-data-size")

    def size_bytes(self) -> int:
        return self._number("total-sst-files-size")

    def _number(self, fact: str) -> int:
        """Returns a numeric property of RocksDB; 0 if the database is not created yet."""
        return 0 if self._made is None else int(self._made.property_int_value(f"rocksdb.{fact}") or 0)

    def close(self) -> None:
        if self._memory is not None:
            self._memory.open.discard(self._path)
        if self._made is not None:
            self._made.close()


class RocksDatabases(Databases, DatabaseFiles):
    """Opens, moves and deletes RocksDB folders on the disks of this machine, and reads and writes their files."""

    def __init__(self, memory: RocksMemory | None = None) -> None:
        self._memory = memory or RocksMemory()

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder without the file CURRENT does not contain a database yet.
        there = (path / "CURRENT").exists()
        opened = _opened(path, self._memory, bulk_records) if there or bulk_records is not None else None
        return RocksDatabase(opened, path, self._memory)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def move(self, path: Path, to: Path) -> None:
        path.rename(to)

    def delete(self, path: Path) -> None:
        shutil.rmtree(path)

    # -- methods of ``DatabaseFiles``, for closed databases -------------------------------------------------------

    kind = "rocksdb"

    def files(self, path: Path) -> list[LocalFile]:
        """Lists the files by name.

        The identity of a file is its inode, time and size, because RocksDB never changes a complete file.
        """
        found = []
        for file in sorted(path.iterdir()):
            facts = file.stat()
            found.append(LocalFile(file.name, facts.st_size, f"{facts.st_ino}-{facts.st_mtime_ns}-{facts.st_size}"))
        return found

    def read_file(self, path: Path, name: str) -> Iterator[bytes]:
        with (path / name).open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece

    def write_file(self, path: Path, name: str, chunks: Iterable[bytes]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        with inside(path, name).open("wb") as file:
            for piece in chunks:
                file.write(piece)

    def clear(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)


def export(path: Path, items: Iterable[tuple[bytes, bytes]]) -> None:
    """Writes keys and values as a new RocksDB at ``path``. This is how a database in memory is checkpointed."""
    database = RocksDatabases(RocksMemory(EXPORT_BYTES, EXPORT_BYTES)).open(path)
    try:
        piece: list[Change] = []
        for item in items:
            piece.append(item)
            if len(piece) == BATCH_OPERATIONS_MAX:
                database.write(piece)
                piece = []
        database.write(piece)
        database.flush()
    finally:
        database.close()


class StateReader:
    """Reads a RocksDB folder without changing it: a checkpoint, or the state of a stopped worker."""

    def __init__(self, path: Path) -> None:
        try:
            # checked before opening, because rocksdict would create a missing folder
            if not (path / "CURRENT").is_file():
                raise FileNotFoundError("there is no RocksDB")
            self._rdict = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
            self._database = RocksDatabase(self._rdict, path)
        except Exception as failure:
            raise StateFailed(
                f"{path} can't be opened as a RocksDB: {str(failure)[:200]}.",
                action="Name the folder of a checkpoint, or of a task of a stopped worker.",
                path=str(path),
            ) from failure

    def meta(self) -> TaskMeta | None:
        """Returns the offsets of the last write; None if nothing was written yet."""
        raw = self._database.get(META_KEY)
        return None if raw is None else TaskMeta.decode(raw)

    def items(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Yields changelog keys and values of one store, in key order."""
        return items_of(self._database, store)

    def of_message(self, store: str, message_key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields changelog keys and values of one message key in a store."""
        before = store_prefix(store)
        first = before + key_prefix(message_key)
        with _named_errors():
            for key, value in _items(self._rdict, first):
                if not key.startswith(first):
                    break
                yield key[len(before) :], value

    def pages(self, store: str, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yields the pairs of one store in batches: a list of keys and a list of values, with up to ``rows_max`` items.

        The read does not put blocks into the block cache.
        """
        prefix = store_prefix(store)
        size = len(prefix)
        keys: list[bytes] = []
        values: list[bytes] = []
        reading = ReadOptions()
        reading.fill_cache(False)
        reading.set_readahead_size(CHUNK_BYTES)
        with _named_errors():
            for key, value in _items(self._rdict, prefix, reading):
                if not key.startswith(prefix):
                    break
                keys.append(key[size:])
                values.append(value)
                if len(keys) == rows_max:
                    yield keys, values
                    keys, values = [], []
        if keys:
            yield keys, values

    def size_bytes(self) -> int:
        """Returns the size of the database files on disk, in bytes."""
        return self._database.size_bytes()

    def close(self) -> None:
        """Closes the database."""
        self._database.close()


def _items(rdict: Rdict, first: bytes, reading: ReadOptions | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values in key order, from the key ``first``. Raises DatabaseCorrupt at a damaged block.

    At a damaged block, the iterator of rocksdict ends silently, as if no more keys existed. A second, lower-level
    iterator therefore checks whether it has reached the last key.
    """
    last: bytes | None = None
    for item in rdict.items(from_key=first, read_opt=reading):
        last = item[0]
        yield item
    probe = rdict.iter()
    probe.seek(first if last is None else last)
    if last is not None and probe.valid():
        probe.next()
    probe.status()
    if probe.valid():
        raise DatabaseCorrupt(f"Corruption: an iterator ended before key {bytes(probe.key())[:40]!r}")


def _items_back(rdict: Rdict, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values in reverse order, from the last key before ``end``; raises DatabaseCorrupt."""
    last: bytes | None = None
    for item in rdict.items(backwards=True, from_key=end):
        if item[0] < end:
            last = item[0]
            yield item
    probe = rdict.iter()
    probe.seek_for_prev(end if last is None else last)
    if probe.valid() and (last is not None or bytes(probe.key()) == end):
        probe.prev()
    probe.status()
    if probe.valid():
        raise DatabaseCorrupt(f"Corruption: an iterator ended behind key {bytes(probe.key())[:40]!r}")


def _named(failure: Exception) -> Exception:
    """Returns a DatabaseCorrupt for an error that reports corruption; any other error unchanged.

    rocksdict raises the same class for all errors. Only the error's text shows whether data is corrupt.
    """
    return DatabaseCorrupt(str(failure)[:300]) if "Corruption" in str(failure) else failure


@contextmanager
def _named_errors() -> Iterator[None]:
    """A context that replaces an error by DatabaseCorrupt if the error reports corruption.

    Reads of single keys repeat this code inline, for speed.
    """
    try:
        yield
    except Exception as failure:
        raise _named(failure) from failure
