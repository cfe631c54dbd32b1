"""The options with which RocksDB databases are opened: block cache, write buffers, filters, bulk mode and open files.

The module ``memory_plan`` computes the sizes of cache and buffers.
"""

from __future__ import annotations

import resource
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, MemtableFactory, Options, WriteBufferManager

#: The sizes used without a memory plan: the block cache of the process, and the write buffer of one database, in bytes.
BLOCK_CACHE_BYTES = 64 << 20
WRITE_BUFFER_BYTES = 32 << 20
#: Limits of one database's write buffer: at most 1/``BUFFERS_MIN`` of the memory for all write buffers, but at least
#: ``BUFFER_BYTES_MIN`` bytes.
BUFFERS_MIN, BUFFER_BYTES_MIN = 8, 1 << 20
#: RocksDB allocates a write buffer in blocks. The numbers are the blocks of a full buffer, and the maximum bytes of a
#: block.
BUFFER_BLOCKS, BLOCK_BYTES_MAX = 16, 1 << 20
#: Maximum number of write buffers of a database in bulk mode, including full buffers that are not flushed yet.
BULK_BUFFERS = 4
#: The size of a write buffer's bloom filter, as a fraction of the buffer: about 20 bits for each key.
BUFFER_FILTER_RATIO = 0.01
#: For the size of a write buffer in a bulk replay: the number of files that the replay should write, and the assumed
#: bytes of a record.
BULK_FILES, BULK_RECORD_BYTES = 8, 128
BULK_BUFFER_BYTES_MIN = 2 << 20
#: Bytes of a file at level 1, and the factor by which files of each further level are larger. The bloom filter of a
#: file is one block in the block cache, with about 1.25 bytes per key. The cache has up to 64 shards. RocksDB loads a
#: filter that is larger than a shard again for each read of a key. With a cache of 64 MiB and files of 64 MiB
#: (RocksDB's default), a read then takes 145 us instead of 9 us.
FILE_BYTES, FILE_GROWTH = 16 << 20, 2
#: The limit for the number of level-0 files. It is never reached, so writes never wait for compaction.
NEVER = 1 << 20
#: Maximum open files of a database: 1/``OPEN_FILES_SHARE`` of the files that the operating system lets the process
#: open, but at least ``OPEN_FILES_MIN``.
OPEN_FILES_SHARE, OPEN_FILES_MIN = 8, 64


class RocksMemory:
    """The block cache and the write buffers that all databases of a process share; sizes in bytes.

    RocksDB flushes early when the write buffers of all databases exceed ``write_buffers``. Empty buffers count, too,
    because each already has its filter and its first block. Without smaller buffers, the empty buffers of 150 databases
    would exceed the limit, and each write would flush a file. Therefore the buffer of a new database is smaller if many
    databases are open.
    """

    def __init__(self, block_cache: int = BLOCK_CACHE_BYTES, write_buffers: int = 8 * WRITE_BUFFER_BYTES) -> None:
        self.cache = Cache(block_cache)
        self.writes = WriteBufferManager(write_buffers, False)
        #: The paths of the open databases.
        self.open: set[Path] = set()
        self._write_buffers = write_buffers

    @property
    def buffer_bytes(self) -> int:
        """The size of the write buffer of the next database to be opened, in bytes."""
        share = self._write_buffers // max(BUFFERS_MIN, len(self.open))
        return max(BUFFER_BYTES_MIN, min(WRITE_BUFFER_BYTES, share))


def bulk_buffer_bytes(records: int, usual: int) -> int:
    """Returns the size of a write buffer for a replay of ``records`` records: at most ``usual`` bytes.

    RocksDB sorts a small buffer faster, because it stays in the CPU's caches. But each buffer becomes a file that must
    be compacted later.
    """
    return min(usual, max(BULK_BUFFER_BYTES_MIN, records * BULK_RECORD_BYTES // BULK_FILES))


def database_options(memory: RocksMemory, bulk_records: int | None = None) -> Options:
    """Returns the options of a database.

    ``bulk_records`` is the number of writes in bulk mode; None is for normal use.
    """
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    # Without this option, each open file keeps its index and filter outside of the cache, where memory has no limit.
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
    # RocksDB's default is 16 threads. Starting these threads takes a quarter of the CPU time of opening a few files.
    options.set_max_file_opening_threads(1)
    options.set_max_open_files(max(OPEN_FILES_MIN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OPEN_FILES_SHARE))
    # A bulk replay leaves many small files. Writes must not wait for their compaction. rocksdict holds the interpreter
    # lock during a write, so all Python threads would wait, too. Bloom filters keep reads of many small files fast.
    options.set_level_zero_slowdown_writes_trigger(NEVER)
    options.set_level_zero_stop_writes_trigger(NEVER)
    if bulk_records is not None:
        options.set_write_buffer_size(bulk_buffer_bytes(bulk_records, buffer_bytes))
        # A vector memtable only appends writes, and RocksDB's background threads sort it at the flush.
        options.set_memtable_factory(MemtableFactory.vector())
        options.set_allow_concurrent_memtable_write(False)
        options.set_disable_auto_compactions(True)
        options.set_max_write_buffer_number(BULK_BUFFERS)
    else:
        # Most reads are for keys that are not in the write buffer. With this bloom filter, these reads need no search
        # in the buffer.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(BUFFER_FILTER_RATIO)
    return options
