"""The databases of a real disk: RocksDB through rocksdict."""

from __future__ import annotations

import resource
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from operator import itemgetter
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.state.database import Change, Database, DatabaseCorrupt, LocalFile
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.keys import store_prefix
from holdfast.processors.engine.state.task_store import BATCH_OPERATIONS_MAX, TaskMeta, items_of

BLOCK_CACHE_BYTES = 64 << 20
WRITE_BUFFER_BYTES = 32 << 20
#: Files of databases are copied in pieces of so many bytes.
CHUNK_BYTES = 4 << 20
#: What writing a checkpoint of state in memory takes, for blocks and for buffers.
EXPORT_BYTES = 8 << 20
#: In bulk so many buffers may wait to be written before writes have to wait.
BULK_BUFFERS = 4
#: The filter of a buffer's keys, as a part of the buffer: some 20 bits a key.
BUFFER_FILTER_RATIO = 0.01
#: Buffers in bulk make about so many files, of records that take about so much with what is around them.
BULK_FILES, BULK_RECORD_BYTES = 8, 128
BULK_BUFFER_BYTES_MIN = 2 << 20
#: More files of the first level than there ever are: writes never wait for their compaction.
NEVER = 1 << 20
#: A database keeps no more of its files open than this part of what the process may, and no fewer than the minimum.
OPEN_FILES_SHARE, OPEN_FILES_MIN = 8, 64


class RocksMemory:
    """What all databases of a process share: a block cache, and a bound for what is not flushed.

    Args:
        block_cache: Bytes of cached blocks.
        write_buffers: Bytes that wait to be flushed, of all databases together; over it, RocksDB flushes early.
    """

    def __init__(self, block_cache: int = BLOCK_CACHE_BYTES, write_buffers: int = 8 * WRITE_BUFFER_BYTES) -> None:
        self.cache = Cache(block_cache)
        self.writes = WriteBufferManager(write_buffers, False)
        self.buffer_bytes = max(1 << 20, min(WRITE_BUFFER_BYTES, write_buffers // 8))


def bulk_buffer_bytes(records: int, usual: int) -> int:
    """The buffers of a replay of so many records.

    Sorting a small one takes less time for each record, as it stays in the processor's caches; but each is a file that
    is compacted later.
    """
    return min(usual, max(BULK_BUFFER_BYTES_MIN, records * BULK_RECORD_BYTES // BULK_FILES))


def _options(memory: RocksMemory, bulk_records: int | None = None) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    # Else every open file has its index and filter beside the cache, without a bound.
    table.set_cache_index_and_filter_blocks(True)
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(memory.buffer_bytes)
    options.set_write_buffer_manager(memory.writes)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.increase_parallelism(2)
    options.set_max_open_files(max(OPEN_FILES_MIN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OPEN_FILES_SHARE))
    # A replay in bulk leaves many small files. A write that waits for their compaction would stop all of Python for as
    # long; what is read meanwhile passes by them by their filters.
    options.set_level_zero_slowdown_writes_trigger(NEVER)
    options.set_level_zero_stop_writes_trigger(NEVER)
    if bulk_records is not None:
        options.set_write_buffer_size(bulk_buffer_bytes(bulk_records, memory.buffer_bytes))
        # Writes are appended, and sorted when they are flushed, by threads of RocksDB's own.
        options.set_memtable_factory(MemtableFactory.vector())
        options.set_allow_concurrent_memtable_write(False)
        options.set_disable_auto_compactions(True)
        options.set_max_write_buffer_number(BULK_BUFFERS)
    else:
        # Most reads are of keys that are not in the buffer: a filter knows it, without a search through the buffer.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(BUFFER_FILTER_RATIO)
    return options


def _opened(path: Path, memory: RocksMemory, bulk_records: int | None = None) -> Rdict:
    """Opened for a replay of so many records, or None for all other use."""
    options = _options(memory, bulk_records)
    try:
        # Without the explicit column family, a reopened store takes its options from disk, with an 8 MB cache.
        rdict = Rdict(str(path), options, column_families={"default": options})
    except Exception as failure:
        raise _named(failure) from failure
    if bulk_records is not None:
        # A replay that dies is replayed again from the offsets of its last flush: no log is needed. Data and offsets
        # are in one column family, so that a flush never parts them.
        writing = WriteOptions()
        writing.disable_wal = True
        rdict.set_write_options(writing)
    return rdict


class RocksDatabase:
    """One RocksDB; see ``Database``.

    One that is not on the disk yet is made when it is written to: what is opened only to see that nothing is there, or
    for a replay in bulk, is not opened twice.

    Args:
        rdict: Open; None for one that is made later, with ``memory``.
        path: Its folder.
        memory: What it shares with others; None when it is only read.
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
        """See ``Database.get``."""
        if self._made is None:
            return None
        try:
            value: bytes | None = self._rdict.get(key)
        except Exception as failure:
            raise _named(failure) from failure
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See ``Database.get_many``."""
        if self._made is None:
            return [None] * len(keys)
        try:
            return list(self._rdict.get(keys))
        except Exception as failure:
            raise _named(failure) from failure

    def write(self, changes: Sequence[Change]) -> None:
        """See ``Database.write``."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        if None in map(itemgetter(1), changes):
            for key, value in changes:
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        else:
            deque(starmap(put, changes), maxlen=0)
        try:
            self._rdict.write(batch)
        except Exception as failure:
            raise _named(failure) from failure

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See ``Database.load``."""
        if None in values:
            self.write(list(zip(keys, values, strict=True)))
            return
        batch = WriteBatch(raw_mode=True)
        deque(map(batch.put, keys, values), maxlen=0)
        try:
            self._rdict.write(batch)
        except Exception as failure:
            raise _named(failure) from failure

    def begin_bulk(self, records: int) -> None:
        """See ``Database.begin_bulk``."""
        self._reopen(records)

    def end_bulk(self) -> None:
        """See ``Database.end_bulk``."""
        self._reopen(None)

    def _reopen(self, bulk_records: int | None) -> None:
        assert self._memory is not None  # else it was opened for reading only
        if self._made is not None:
            self.flush()
            self._made.close()
        self._made = _opened(self._path, self._memory, bulk_records)

    @property
    def flushing(self) -> bool:
        """See ``Database.flushing``; one that failed stays pending, and the next that is waited for says why."""
        if self._made is None:
            return False
        if self._rdict.property_int_value("rocksdb.background-errors"):
            return False
        pending = self._rdict.property_int_value("rocksdb.mem-table-flush-pending")
        return bool(pending or self._rdict.property_int_value("rocksdb.num-running-flushes"))

    def flush(self, *, wait: bool = True) -> None:
        """See ``Database.flush``."""
        if self._made is None:
            return
        try:
            self._rdict.flush(wait)
        except Exception as failure:
            raise _named(failure) from failure

    def items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See ``Database.items``."""
        if self._made is None:
            return
        try:
            yield from _items(self._rdict, first)
        except Exception as failure:
            raise _named(failure) from failure

    def checkpoint(self, path: Path) -> None:
        """See ``Database.checkpoint``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._rdict.flush()
            checkpoint = Checkpoint(self._rdict)
            checkpoint.create_checkpoint(str(path))
            del checkpoint
        except Exception as failure:
            raise _named(failure) from failure

    def compact(self) -> None:
        """See ``Database.compact``."""
        try:
            self._rdict.flush()
            self._rdict.compact_range(None, None)
        except Exception as failure:
            raise _named(failure) from failure

    def estimates(self) -> tuple[int, int]:
        """See ``Database.estimates``."""
        if self._made is None:
            return 0, 0
        keys = int(self._rdict.property_int_value("rocksdb.estimate-num-keys") or 0)
        return keys, int(self._rdict.property_int_value("rocksdb.estimate-live-data-size") or 0)

    def size_bytes(self) -> int:
        """See ``Database.size_bytes``."""
        if self._made is None:
            return 0
        return int(self._made.property_int_value("rocksdb.total-sst-files-size") or 0)

    def close(self) -> None:
        """See ``Database.close``."""
        if self._made is not None:
            self._made.close()


class RocksDatabases:
    """RocksDB folders on this machine's disks; see ``Databases``.

    Args:
        memory: What they share.
    """

    def __init__(self, memory: RocksMemory | None = None) -> None:
        self._memory = memory or RocksMemory()

    def open(self, path: Path, bulk_records: int | None = None) -> Database:
        """See ``Databases.open``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without the file that names its catalogue it is none yet.
        there = (path / "CURRENT").exists()
        opened = _opened(path, self._memory, bulk_records) if there or bulk_records is not None else None
        return RocksDatabase(opened, path, self._memory)

    def exists(self, path: Path) -> bool:
        """See ``Databases.exists``."""
        return path.exists()

    def move(self, path: Path, to: Path) -> None:
        """See ``Databases.move``."""
        path.rename(to)

    def delete(self, path: Path) -> None:
        """See ``Databases.delete``."""
        shutil.rmtree(path)

    # -- the files of closed databases, ``processors.engine.state.database.DatabaseFiles`` -----------------------

    kind = "rocksdb"

    def files(self, path: Path) -> list[LocalFile]:
        """See ``DatabaseFiles.files``; RocksDB never changes a file's content under the same inode and time."""
        found = []
        for file in sorted(path.iterdir()):
            facts = file.stat()
            found.append(LocalFile(file.name, facts.st_size, f"{facts.st_ino}-{facts.st_mtime_ns}-{facts.st_size}"))
        return found

    def read_file(self, path: Path, name: str) -> Iterator[bytes]:
        """See ``DatabaseFiles.read_file``."""
        with (path / name).open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece

    def write_file(self, path: Path, name: str, chunks: Iterable[bytes]) -> None:
        """See ``DatabaseFiles.write_file``."""
        path.mkdir(parents=True, exist_ok=True)
        with (path / name).open("wb") as file:
            for piece in chunks:
                file.write(piece)

    def clear(self, path: Path) -> None:
        """See ``DatabaseFiles.clear``."""
        shutil.rmtree(path, ignore_errors=True)


def export(path: Path, items: Iterable[tuple[bytes, bytes]]) -> None:
    """Write keys and values as a RocksDB of its own (``processors.engine.state.memory.Export``)."""
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
    """A RocksDB folder opened for reading only: a checkpoint, or a store whose process is gone.

    Raises:
        StateFailed: The folder is not a RocksDB.
    """

    def __init__(self, path: Path) -> None:
        try:
            if not (path / "CURRENT").is_file():  # the library would make a folder that is not there
                raise FileNotFoundError("there is no RocksDB")
            self._rdict = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
            self._database = RocksDatabase(self._rdict, path)
        except Exception as failure:
            raise StateFailed(
                f"{path} can't be opened as a RocksDB: {str(failure)[:200]}.",
                action="Give the folder of a checkpoint or of a stopped task.",
                path=str(path),
            ) from failure

    def meta(self) -> TaskMeta | None:
        """The offsets of the last batch."""
        raw = self._database.get(META_KEY)
        return None if raw is None else TaskMeta.decode(raw)

    def items(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Changelog keys and values of one store, in key order."""
        return items_of(self._database, store)

    def pages(self, store: str, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Like ``items``, as parallel lists of so many: for whoever reads all of it once.

        Raises:
            DatabaseCorrupt: A file is damaged.
        """
        prefix = store_prefix(store)
        size = len(prefix)
        keys: list[bytes] = []
        values: list[bytes] = []
        reading = ReadOptions()
        reading.fill_cache(False)
        reading.set_readahead_size(CHUNK_BYTES)
        try:
            for key, value in _items(self._rdict, prefix, reading):
                if not key.startswith(prefix):
                    break
                keys.append(key[size:])
                values.append(value)
                if len(keys) == rows_max:
                    yield keys, values
                    keys, values = [], []
        except Exception as failure:
            raise _named(failure) from failure
        if keys:
            yield keys, values

    def size_bytes(self) -> int:
        """Its size on disk."""
        return self._database.size_bytes()

    def close(self) -> None:
        """Close."""
        self._database.close()


def _items(rdict: Rdict, first: bytes, reading: ReadOptions | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values from ``first`` on.

    The library's iterator ends at a damaged block as it does at the last key. So where it ended is looked at again,
    with one that tells why it goes no further.
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


def _named(failure: Exception) -> Exception:
    """The library has one class for all errors: tell damaged data from a disk that refuses."""
    return DatabaseCorrupt(str(failure)[:300]) if "Corruption" in str(failure) else failure
