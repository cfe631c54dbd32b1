"""The memory of a worker: one number for the process, split over everything that grows.

Pure: the settings give the number, ``plan_memory`` the parts; whoever fills a part keeps to it by flushing, evicting,
fetching less or committing early. Nothing dies for being over its part for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.infra.settings import BASE_BYTES, check_memory_bound

#: Uncommitted writes take about so many times the bytes of their keys and values: they are Python objects.
OVERLAY_FACTOR = 3


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes for each part of a worker.

    Attributes:
        total: The bound of the process.
        block_cache: RocksDB's blocks, of all tasks together.
        write_buffers: What is not flushed yet, of all tasks together.
        overlay: Keys and values of uncommitted writes; above it, the worker commits early.
        state_cache: Values that were read or committed lately.
        fetched: Records that the library has fetched ahead; a restore takes it in turns with the inputs.
        queued: Records that wait to be sent.
    """

    total: int
    block_cache: int
    write_buffers: int
    overlay: int
    state_cache: int
    fetched: int
    queued: int


def plan_memory(total: int) -> MemoryPlan:
    """Split a process' memory.

    Args:
        total: Bytes that the process is to stay within.

    Raises:
        MemoryTooSmall: Nothing useful fits in.
    """
    check_memory_bound(total)
    shared = total - BASE_BYTES
    return MemoryPlan(
        total=total,
        block_cache=shared * 15 // 100,
        write_buffers=shared * 20 // 100,
        overlay=shared * 15 // 100 // OVERLAY_FACTOR,
        state_cache=shared * 20 // 100,
        fetched=shared * 15 // 100,
        queued=shared * 15 // 100,
    )
