"""Splits the memory limit of a worker process into shares for the worker's parts.

This is a pure function. To stay within its share, a part flushes, evicts, fetches less or commits early. For a short
time, a part may use more than its share.
"""

from __future__ import annotations

from dataclasses import dataclass

#: An uncommitted write needs this many times the bytes of its key and value, because both are Python objects.
OVERLAY_FACTOR = 3


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The shares of a worker's memory, in bytes.

    Attributes:
        overlay: Keys and values of uncommitted writes. Above this share, the worker commits early.
        state_cache: Values that were recently read or committed.
        fetched: Records that the client library has prefetched: those of changelogs during a restore, those of inputs
            after it.
    """

    total: int
    block_cache: int
    write_buffers: int
    overlay: int
    state_cache: int
    fetched: int
    queued: int


def plan_memory(total: int) -> MemoryPlan:
    """Divides the memory limit of a process, ``total`` bytes, into shares; raises MemoryTooSmall."""
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
