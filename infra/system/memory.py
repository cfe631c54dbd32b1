"""The memory that a new process may use on this machine, or in this container; and the memory of this process."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_mb(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """The MiB that a process can allocate without swapping, as the kernel estimates; None if there is no estimate.

    A container's limit (``memory.max`` of cgroup v2) applies if it leaves less memory.
    """
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) // 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:
        limit, used = int((cgroup / "memory.max").read_text()), int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or one without a limit: "max"
        return free
    return max(0, min(free, (limit - used) // MIB))


def used_mib(statm: Path = Path("/proc/self/statm")) -> float | None:
    """The resident memory of this process, MiB; None if the system does not report it."""
    try:
        pages = int(statm.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 1)
