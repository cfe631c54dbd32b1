"""Names of the holders of applies: the process of a machine, to show it and to test whether it has ended.

    HOST/PID/START MARK/MACHINE/RANDOM

Invariants:
    - Two holders never have one name, also in one process: each has a random part.
    - A holder counts as gone only for a process that can see it. Containers may share host name, boot and process ids,
      so the machine is the boot of the kernel together with the namespace of the process ids.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from holdfast.infra.process import is_running, start_mark

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def new_holder() -> str:
    """A new name for a holder that is this process, at most 255 characters."""
    pid = os.getpid()
    return "/".join((socket.gethostname()[:64], str(pid), str(start_mark(pid)), machine(), secrets.token_hex(8)))


def is_gone(name: str) -> bool:
    """Whether the process of a holder is known to have ended; False for holders that this process can't see."""
    _, pid, mark, where, *_ = [*name.split("/"), "", "", "", ""]
    return where == machine() and pid.isdigit() and not is_running(int(pid), mark)


def machine() -> str:
    """Identity of the running kernel and of its process ids as this process sees them."""
    try:
        boot, namespace = _BOOT_ID.read_text().strip(), _PID_NAMESPACE.readlink().name
    except OSError:  # a system without /proc: process ids are the host's
        return f"host {socket.gethostname()[:64]}"
    return f"{boot} {namespace}"
