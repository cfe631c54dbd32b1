"""Splits the memory limit of a worker process into shares for its parts.

This is a pure function. Each part keeps to its share by flushing, evicting, fetching less or committing early. A part
may exceed its share for a short time.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The memory of an uncommitted write, as a multiple of the bytes of its key and value, because both are Python objects.
OVERLAY_FACTOR = 3


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The shares of a worker's memory, in bytes.

    Attributes:
        overlay: Keys and values of uncommitted writes. Above this share, the worker commits early.
        state_cache: Values that were recently read or committed.
        fetched: Records that the client library has prefetched. Restores and inputs use this share one after the other.
    """

    total: int
    block_cache: int
    write_buffers: int
    overlay: int
    state_cache: int
    fetched: int
    queued: int


def plan_memory(total: int) -> MemoryPlan:
    """Computes the shares of a process limit of ``total`` bytes; raises MemoryTooSmall."""
    # Imported here, because the import takes 0.2 s and the declaration of an application does not need settings.
    from holdfast.infra.settings import BASE_BYTES, check_memory_bound

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
