"""The memory that a new process may use on this machine, or in this container."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_mb(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """The MiB that a process can take without swapping, as the kernel estimates them; None where it does not say.

    A container's limit (``memory.max`` of cgroup v2) counts where it leaves less.
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
