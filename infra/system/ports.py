"""Finds free TCP ports on loopback, and tests whether a program or a given process listens on a port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
#: Code for the state LISTEN in the tables ``/proc/net/tcp`` and ``tcp6``.
_LISTENS = "0A"


def free_port() -> int:
    """A port on which no program listens now. Another program may take the port before the caller uses it."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def can_bind(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        # The broker sets SO_REUSEADDR, too. With it, a port counts as free even if old connections are in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((LOOPBACK, port))
            return True
        return False


def port_is_open(port: int) -> bool:
    """Whether a program accepts connections on this port of loopback."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
        return True
    return False


def listens_at(pid: int, port: int) -> bool | None:
    """Whether a process listens on this TCP port; None if the system does not report it."""
    try:
        held = set(_sockets_of(pid))
        listening = {inode for table in ("tcp", "tcp6") for inode in _listening(Path("/proc/net", table), port)}
    except OSError:
        return None
    return bool(held & listening)


def _sockets_of(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the process closed the file after it was listed
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]


def _listening(table: Path, port: int) -> Iterator[str]:
    """Yields the inodes of sockets that listen on a port, from one of the kernel's tables."""
    if not table.exists():
        return
    for line in table.read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
            yield rest[5]
