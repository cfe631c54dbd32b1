"""The table of state backends. To add a backend, add its name to ``StateBackend`` and its line to ``BACKENDS``.

A backend implements ``state.database.Databases``. Opening a backend imports its libraries, so that declaring an
application loads none of them. ``tests/contract/test_databases.py`` tests each backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.processors.engine.memory_plan import MemoryPlan

if TYPE_CHECKING:
    from holdfast.processors.engine.state.database import Databases

StateBackend = Literal["rocksdb", "memory"]


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend: ``durable`` state survives the process; ``open`` returns the databases within a memory plan."""

    durable: bool
    open: Callable[[MemoryPlan], Databases]


def _rocksdb(memory: MemoryPlan) -> Databases:
    from holdfast.processors.engine.state.rocksdb import RocksDatabases
    from holdfast.processors.engine.state.rocksdb_options import RocksMemory

    return RocksDatabases(RocksMemory(memory.block_cache, memory.write_buffers))


def _memory(memory: MemoryPlan) -> Databases:
    from holdfast.processors.engine.state.memory import MemoryDatabases
    from holdfast.processors.engine.state.rocksdb import export

    return MemoryDatabases(export)


#: ``Application(state_backend=...)`` to its backend.
BACKENDS: Mapping[str, Backend] = {"rocksdb": Backend(True, _rocksdb), "memory": Backend(False, _memory)}
