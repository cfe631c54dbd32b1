"""Splits the memory limit of a worker process into shares: uncommitted writes, the state cache, and fetched records.

The functions are pure. To stay within a share, the worker commits early, evicts cached values, or fetches less. Until
these actions take effect, the worker may use more than a share.
"""

from __future__ import annotations

from dataclasses import dataclass

#: An uncommitted write needs this many times the bytes of its key and value, because Python objects need more memory
#: than their content.
OVERLAY_FACTOR = 3


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The shares of a worker's memory, in bytes.

    Attributes:
        overlay: Keys and values of uncommitted writes. Above this share, the worker commits early.
        state_cache: Values that were recently read or committed.
        fetched: Records that the client library has prefetched: changelog records during a restore, input records after
            it.
    """

    total: int
    block_cache: int
    write_buffers: int
    overlay: int
    state_cache: int
    fetched: int
    queued: int


def plan_memory(total: int) -> MemoryPlan:
    """Divides the memory limit of a process into shares. ``total`` is the limit in bytes.

    Raises MemoryTooSmall if the limit is too small for a worker.
    """
    # The settings are imported here and not at the top, because their import takes 0.2 s. A program that only declares
    # an application also imports this module, and does not need the settings.
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
