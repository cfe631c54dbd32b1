"""TCP ports of this machine: free ports of its loopback interface, and the process that listens at a port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
#: The state of a listening socket in the kernel's tables.
_LISTENS = "0A"


def free_port() -> int:
    """A port that no program listens on now. Another program may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def can_bind(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        # The broker sets the same option, so a port whose last connections are in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((LOOPBACK, port))
            return True
        return False


def port_is_open(port: int) -> bool:
    """Whether a program accepts connections on this port."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
        return True
    return False


def listens_at(pid: int, port: int) -> bool | None:
    """Whether a process has a listening TCP socket at this port; None if the system can't report it."""
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
    """The inodes of the sockets that listen at a port; nothing if the system lacks the table."""
    if not table.exists():
        return
    for line in table.read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
            yield rest[5]
