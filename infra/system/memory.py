"""Measures the memory that is available on this machine or in this container, and the memory of this process."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_mb(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """The memory that can be allocated without swapping, MiB, by the kernel's estimate; None if unknown.

    In a container with a memory limit (``memory.max`` of cgroup v2), the result is at most the rest of the limit.
    """
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) // 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:
        limit, used = int((cgroup / "memory.max").read_text()), int((cgroup / "memory.current").read_text())
    # No memory limit: this process is in no container, or `memory.max` of the container contains the word "max".
    except (OSError, ValueError):
        return free
    return max(0, min(free, (limit - used) // MIB))


def used_mib(statm: Path = Path("/proc/self/statm")) -> float | None:
    """The resident memory of this process, MiB; None if the system does not report it."""
    try:
        pages = int(statm.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 1)
