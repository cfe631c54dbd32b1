"""Which process listens at a port of this machine, where the system can tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: The state of a listening socket in the kernel's tables.
_LISTENS = "0A"


def listens_at(pid: int, port: int) -> bool | None:
    """Whether a process holds a listening TCP socket at this port; None where the system can't tell."""
    try:
        held = set(_sockets_of(pid))
        listening = {inode for table in ("tcp", "tcp6") for inode in _listening(Path("/proc/net", table), port)}
    except OSError:
        return None
    return bool(held & listening)


def _sockets_of(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]


def _listening(table: Path, port: int) -> Iterator[str]:
    """The inodes of the sockets that listen at a port; no row of a table that the system does not have."""
    if not table.exists():
        return
    for line in table.read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
            yield rest[5]
