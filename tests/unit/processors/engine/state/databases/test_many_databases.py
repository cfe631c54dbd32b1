"""Many databases share the memory for writes. Their empty buffers fit into this memory, so a write flushes no file."""

from pathlib import Path

from holdfast.processors.engine.state.databases.rocksdb import RocksDatabase, RocksDatabases
from holdfast.processors.engine.state.databases.rocksdb_options import BUFFER_BYTES_MIN, RocksMemory

MANY, WRITE_BUFFERS = 80, 16 << 20


def files_of(database: RocksDatabase) -> int:
    return int(database._rdict.property_value("rocksdb.num-files-at-level0") or 0)


def test_small_writes_to_many_databases_stay_in_their_buffers(tmp_path: Path) -> None:
    databases = RocksDatabases(RocksMemory(8 << 20, WRITE_BUFFERS))
    opened = [databases.open(tmp_path / str(number)) for number in range(MANY)]
    try:
        for _ in range(2):
            for database in opened:
                database.write([(b"k", b"v")])
        assert sum(files_of(database) for database in opened if isinstance(database, RocksDatabase)) == 0
    finally:
        for database in opened:
            database.close()


def test_the_next_buffer_is_a_share_of_the_open_databases(tmp_path: Path) -> None:
    memory = RocksMemory(8 << 20, 64 << 20)
    databases = RocksDatabases(memory)
    assert memory.buffer_bytes == 8 << 20
    opened = [databases.open(tmp_path / str(number), bulk_records=1) for number in range(16)]
    assert memory.buffer_bytes == 4 << 20
    opened[0].reopen(None)
    assert memory.buffer_bytes == 4 << 20
    for database in opened:
        database.close()
    assert memory.buffer_bytes == 8 << 20
    memory.open.update(tmp_path / str(number) for number in range(1_000))
    assert memory.buffer_bytes == BUFFER_BYTES_MIN
