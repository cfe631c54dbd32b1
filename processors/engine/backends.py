"""The table of state backends. For a new backend, add its name to ``StateBackend`` and an entry to ``BACKENDS``.

A backend implements ``state.database.Databases``. A backend imports its libraries only when it is opened. A program
that only declares an application therefore does not load them. ``tests/contract/test_databases.py`` tests every
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.processors.engine.memory_plan import MemoryPlan

if TYPE_CHECKING:
    from holdfast.processors.engine.state.databases.database import Databases

StateBackend = Literal["rocksdb", "memory"]


@dataclass(frozen=True, slots=True)
class Backend:
    """One state backend.

    ``durable`` says whether state survives the end of the process. ``open`` returns the object that opens the databases
    of tasks.
    """

    durable: bool
    open: Callable[[MemoryPlan], Databases]


def _rocksdb(memory: MemoryPlan) -> Databases:
    from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
    from holdfast.processors.engine.state.databases.rocksdb_options import RocksMemory

    return RocksDatabases(RocksMemory(memory.block_cache, memory.write_buffers))


def _memory(memory: MemoryPlan) -> Databases:
    from holdfast.processors.engine.state.databases.memory import MemoryDatabases
    from holdfast.processors.engine.state.databases.rocksdb import export

    return MemoryDatabases(export)


#: The backend for each value of ``Application(state_backend=...)``.
BACKENDS: Mapping[str, Backend] = {"rocksdb": Backend(True, _rocksdb), "memory": Backend(False, _memory)}
