"""TCP ports of this machine's loopback interface."""

from __future__ import annotations

import socket
from contextlib import suppress

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that no program listens on now. Another program may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def can_bind(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        # The broker sets the same option: a port whose last connections are in TIME_WAIT is free.
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
