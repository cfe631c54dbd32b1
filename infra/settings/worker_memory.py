"""The smallest value of ``HOLDFAST_MEMORY_MAX_MB``, the memory bound of a worker."""

from __future__ import annotations

from holdfast.infra.settings.group import SettingsInvalid

#: Memory of an empty worker, bytes: the interpreter, the libraries, their threads.
BASE_BYTES = 160 << 20
#: Smallest memory beside ``BASE_BYTES``, bytes: with less, buffers are smaller than single batches.
SHARED_BYTES_MIN = 64 << 20
#: Smallest memory bound of a worker, bytes (``HOLDFAST_MEMORY_MAX_MB``). ``processors.engine.memory_plan`` splits the
#: bound over RocksDB's buffers, caches and queues.
MEMORY_BYTES_MIN = BASE_BYTES + SHARED_BYTES_MIN


class MemoryTooSmall(SettingsInvalid):
    """The memory bound is below ``MEMORY_BYTES_MIN``."""


def check_memory_bound(total: object) -> None:
    """Raise MemoryTooSmall for a memory bound, in bytes, that is no integer or below ``MEMORY_BYTES_MIN``."""
    if isinstance(total, bool) or not isinstance(total, int) or total < MEMORY_BYTES_MIN:
        shown = f"{total:,}" if isinstance(total, int) else repr(total)
        raise MemoryTooSmall(
            f"The memory bound is {shown} bytes; a worker needs at least {MEMORY_BYTES_MIN:,} "
            f"({MEMORY_BYTES_MIN >> 20} MiB).",
            action=f"Set `HOLDFAST_MEMORY_MAX_MB` to {MEMORY_BYTES_MIN >> 20} or more, or `memory_max_bytes` to "
            f"{MEMORY_BYTES_MIN} or more.",
            seen=total,
            smallest=MEMORY_BYTES_MIN,
        )
