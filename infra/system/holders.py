"""Names of processes that carry out plans (holders). Another process can test by the name whether a holder still runs.

    HOST/BOOT/NAMESPACE/PID/START MARK/RANDOM

Invariants:
    - Two holders never have the same name, not even in one process, because each name has a random part.
    - A holder counts as ended only if this process can see the holder's process. Containers may have the same host
      name, boot id and process ids, so a process in another container is never judged.
"""

from __future__ import annotations

import secrets
import socket

from holdfast.infra.system.process import ProcessIdentity, fate_of, own_identity


def new_holder() -> str:
    """A new name under which this process carries out plans (holder), at most 255 characters long."""
    return "/".join((socket.gethostname()[:64], str(own_identity()), secrets.token_hex(8)))


def is_gone(name: str) -> bool:
    """Whether the process with this holder name has ended; False if it is unknown, for example on another machine."""
    text = name.partition("/")[2].rpartition("/")[0]
    identity = ProcessIdentity.parse(text)
    return identity is not None and fate_of(identity) == "ended"
