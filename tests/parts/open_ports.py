"""Reads from the kernel on which TCP ports a process listens."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path


def listening(pids: Iterable[int]) -> dict[int, str]:
    """The TCP ports on which these processes accept connections, with the IPv4 address of each (``0.0.0.0`` is all)."""
    found: dict[int, str] = {}
    for pid in pids:
        sockets = set(_sockets(pid))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in sockets:
                    address, port = fields[1].split(":")
                    last_word = struct.pack("<I", int(address[-8:], 16))
                    found[int(port, 16)] = socket.inet_ntoa(last_word)
    return found


def _sockets(pid: int) -> Iterable[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]
