"""The memory of a worker: one limit for the process, split into parts.

A pure function. Each part stays within its share by flushing, evicting, fetching less or committing early. A part may
exceed its share for a short time.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Memory of an uncommitted write, as a multiple of the bytes of its key and value: both are Python objects.
OVERLAY_FACTOR = 3


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The shares of a worker's memory, in bytes.

    Attributes:
        overlay: Keys and values of uncommitted writes; above this share the worker commits early.
        state_cache: Values that were read or committed recently.
        fetched: Records that the client library prefetched. A restore and the inputs use this share in turn.
    """

    total: int
    block_cache: int
    write_buffers: int
    overlay: int
    state_cache: int
    fetched: int
    queued: int


def plan_memory(total: int) -> MemoryPlan:
    """The shares of a limit of ``total`` bytes for the process; raises MemoryTooSmall."""
    # Settings take a fifth of a second to import; declaring an application needs none.
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
