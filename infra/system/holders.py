"""Names of the holders of applies: the process and machine, for display and to test whether the process has ended.

    HOST/BOOT/NAMESPACE/PID/START MARK/RANDOM

Invariants:
    - Two holders never have one name, also in one process: each has a random part.
    - A holder counts as gone only for a process that can see it. Containers may share host name, boot and process ids.
"""

from __future__ import annotations

import secrets
import socket

from holdfast.infra.system.process import ProcessIdentity, fate_of, own_identity


def new_holder() -> str:
    """A new name for a holder that is this process, at most 255 characters."""
    return "/".join((socket.gethostname()[:64], str(own_identity()), secrets.token_hex(8)))


def is_gone(name: str) -> bool:
    """Whether the process of a holder is known to have ended; False for a process that this one can't see."""
    text = name.partition("/")[2].rpartition("/")[0]
    identity = ProcessIdentity.parse(text)
    return identity is not None and fate_of(identity) == "ended"
