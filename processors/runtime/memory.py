"""The memory of a worker: one number for the process, split over everything that grows.

Pure: the settings give the number, ``plan_memory`` the parts; whoever fills a part keeps to it by flushing, evicting,
fetching less or committing early. Nothing dies for being over its part for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

#: What a worker takes that holds nothing yet: the interpreter, the libraries, their threads.
BASE_BYTES = 160 << 20
#: Below so much beside it, buffers are smaller than single batches.
SHARED_BYTES_MIN = 64 << 20
MEMORY_BYTES_MIN = BASE_BYTES + SHARED_BYTES_MIN
#: Uncommitted writes take about so many times the bytes of their keys and values: they are Python objects.
OVERLAY_FACTOR = 3


class MemoryTooSmall(HoldfastError):
    """The memory bound leaves no room to work in."""

    exit_code = EXIT_BAD_CONFIGURATION


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
    if isinstance(total, bool) or not isinstance(total, int) or total < MEMORY_BYTES_MIN:
        shown = f"{total:,}" if isinstance(total, int) else repr(total)
        raise MemoryTooSmall(
            f"The memory bound is {shown} bytes; a worker needs at least {MEMORY_BYTES_MIN:,} "
            f"({MEMORY_BYTES_MIN >> 20} MiB).",
            action=f"Set HOLDFAST_MEMORY_MAX_MB to {MEMORY_BYTES_MIN >> 20} or more, or memory_max_bytes, in bytes, to "
            f"{MEMORY_BYTES_MIN} or more.",
            seen=total,
            smallest=MEMORY_BYTES_MIN,
        )
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
