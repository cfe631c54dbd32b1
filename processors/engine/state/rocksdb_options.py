"""The options of RocksDB: block cache, write buffers, filters, bulk mode and open files.

``memory_plan`` gives the sizes of cache and buffers; ``state.rocksdb`` opens databases with these options.
"""

from __future__ import annotations

import resource
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, MemtableFactory, Options, WriteBufferManager

#: The sizes without a memory plan: the block cache of the process, and the write buffer of one database.
BLOCK_CACHE_BYTES = 64 << 20
WRITE_BUFFER_BYTES = 32 << 20
#: The write buffer of a database is a share of the total: at most one part in this number, and at least this many
#: bytes.
BUFFERS_MIN, BUFFER_BYTES_MIN = 8, 1 << 20
#: A write buffer grows in blocks: the number of blocks in a full buffer, and the maximum block size in bytes (RocksDB's
#: own).
BUFFER_BLOCKS, BLOCK_BYTES_MAX = 16, 1 << 20
#: Write buffers of a database in bulk mode that may wait for their flush.
BULK_BUFFERS = 4
#: The size of the bloom filter of a write buffer, as a part of the buffer: about 20 bits a key.
BUFFER_FILTER_RATIO = 0.01
#: A bulk replay writes about this many files, of records of about this many bytes.
BULK_FILES, BULK_RECORD_BYTES = 8, 128
BULK_BUFFER_BYTES_MIN = 2 << 20
#: The size of a file of the first level; each next level has files of twice the size. A file's filter is one block of
#: the block cache, about 1.25 bytes per key; the cache has up to 64 shards. A filter larger than a shard is loaded
#: again at each read of a key: 145 us instead of 9, with a cache of 64 MiB and RocksDB's own file size of 64 MiB.
FILE_BYTES, FILE_GROWTH = 16 << 20, 2
#: More files of level 0 than a database ever has: writes never wait for compaction.
NEVER = 1 << 20
#: A database keeps this part (1/8) of the process' open files, and at least the minimum.
OPEN_FILES_SHARE, OPEN_FILES_MIN = 8, 64


class RocksMemory:
    """The memory that all databases of a process share, in bytes.

    RocksDB flushes early when the unflushed writes of all databases exceed ``write_buffers``. An empty buffer counts,
    too: its filter and its first block grow with its size. The empty buffers of 150 databases would exceed the limit,
    and each write would flush a file. So each further open database gets a smaller buffer.
    """

    def __init__(self, block_cache: int = BLOCK_CACHE_BYTES, write_buffers: int = 8 * WRITE_BUFFER_BYTES) -> None:
        self.cache = Cache(block_cache)
        self.writes = WriteBufferManager(write_buffers, False)
        #: The paths of the open databases.
        self.open: set[Path] = set()
        self._write_buffers = write_buffers

    @property
    def buffer_bytes(self) -> int:
        """The size of the next database's write buffer."""
        share = self._write_buffers // max(BUFFERS_MIN, len(self.open))
        return max(BUFFER_BYTES_MIN, min(WRITE_BUFFER_BYTES, share))


def bulk_buffer_bytes(records: int, usual: int) -> int:
    """The size of a write buffer for a replay of ``records``, at most ``usual`` bytes.

    A small buffer stays in the CPU's caches and is sorted faster. But each buffer becomes a file to compact later.
    """
    return min(usual, max(BULK_BUFFER_BYTES_MIN, records * BULK_RECORD_BYTES // BULK_FILES))


def database_options(memory: RocksMemory, bulk_records: int | None = None) -> Options:
    """The options of a database; in bulk mode for a replay of ``bulk_records``, None for normal use."""
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    # Otherwise each open file keeps its index and filter outside of the cache, without a limit.
    table.set_cache_index_and_filter_blocks(True)
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    buffer_bytes = memory.buffer_bytes
    options.set_write_buffer_size(buffer_bytes)
    options.set_arena_block_size(min(BLOCK_BYTES_MAX, buffer_bytes // BUFFER_BLOCKS))
    options.set_write_buffer_manager(memory.writes)
    options.set_target_file_size_base(FILE_BYTES)
    options.set_target_file_size_multiplier(FILE_GROWTH)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.increase_parallelism(2)
    # RocksDB's default starts 16 threads at each open, a quarter of its CPU time, to open a handful of files.
    options.set_max_file_opening_threads(1)
    options.set_max_open_files(max(OPEN_FILES_MIN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OPEN_FILES_SHARE))
    # A bulk replay leaves many small files. A write that waits for their compaction would block all of Python, because
    # rocksdict holds the interpreter lock. Reads skip these files by their filters.
    options.set_level_zero_slowdown_writes_trigger(NEVER)
    options.set_level_zero_stop_writes_trigger(NEVER)
    if bulk_records is not None:
        options.set_write_buffer_size(bulk_buffer_bytes(bulk_records, buffer_bytes))
        # A vector appends writes; RocksDB's own threads sort the vector in the flush.
        options.set_memtable_factory(MemtableFactory.vector())
        options.set_allow_concurrent_memtable_write(False)
        options.set_disable_auto_compactions(True)
        options.set_max_write_buffer_number(BULK_BUFFERS)
    else:
        # Most reads are of keys outside of the buffer; the filter answers these reads without a search.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(BUFFER_FILTER_RATIO)
    return options
