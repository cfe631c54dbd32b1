"""The places where state can be, by the name that an application gives."""

from __future__ import annotations

from holdfast.processors.engine.memory_plan import MemoryPlan
from holdfast.processors.engine.state.database import Databases
from holdfast.processors.engine.state.memory import MemoryDatabases
from holdfast.processors.engine.state.rocksdb import RocksDatabases, RocksMemory, export


def databases_of(backend: str, memory: MemoryPlan) -> Databases:
    """RocksDB within its parts of the process' memory, or the memory itself."""
    if backend == "memory":
        return MemoryDatabases(export)
    return RocksDatabases(RocksMemory(memory.block_cache, memory.write_buffers))
