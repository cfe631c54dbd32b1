"""The endpoint file of a worker: the id of its process, the URL of its HTTP server, and its control token.

The file mode is 0600. The file may outlive its process, and another program may then listen on the port. Therefore a
client first checks that the worker's process still runs. Before it sends a token, the client also checks that this
process listens on the port.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from holdfast.infra.masking import remember
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.ports import listens_at
from holdfast.infra.system.process import ProcessIdentity, fate_of, is_running, start_mark
from holdfast.processors.engine.changelog.names import is_worker_of

_Pid = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Endpoint(msgspec.Struct, frozen=True):
    """The content of an endpoint file.

    Attributes:
        pid: The id of the worker's process.
        mark: The start mark of the process, which distinguishes it from a later process with the same pid. It is empty
            in files of older Holdfast versions.
        url: The URL of the worker's HTTP server, for programs on this machine.
        token: The token for control requests to this process. It is valid for no other process.
        reads_need_token: Whether reads of the status need a token, too.
        process: The identity of the process (machine, boot, container, pid) as text; empty in files of older versions.
        state_token: The token for queries about state; empty in files of older versions.
        worker: The worker's transactional id, by which the members of the group name their owner; may be empty, too.
    """

    pid: _Pid
    url: str
    token: str
    mark: str = ""
    reads_need_token: bool = False
    process: str = ""
    state_token: str = ""
    worker: str = ""

    def __repr__(self) -> str:
        """Returns the endpoint as text without its token, so that the token gets into no log."""
        return f"Endpoint(pid={self.pid}, url={self.url!r})"

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote the file still runs; False for a process of another boot or container."""
        identity = ProcessIdentity.parse(self.process)
        if identity is not None:
            return fate_of(identity) == "running"
        return is_running(self.pid, self.mark) if self.mark else start_mark(self.pid) is not None

    @property
    def is_owner(self) -> bool:
        """Whether the process that wrote the file runs and listens on the file's port.

        If the operating system can't tell which process listens on the port, a running process with the file's start
        mark is enough.
        """
        try:
            port = urlsplit(self.url).port
        except ValueError:
            return False
        if port is None or not self.is_alive:
            return False
        listens = listens_at(self.pid, port)
        return bool(self.mark) if listens is None else listens


def running_workers(folder: Path, processor: str) -> Mapping[str, Endpoint]:
    """Returns the endpoints of a processor's workers that run on this machine and answer queries, by slot.

    Args:
        folder: The folder of the endpoint files.
    """
    found = {}
    for file in sorted(folder.glob(f"{processor}-*.json")):
        endpoint = read_endpoint(file)
        if endpoint is None or not endpoint.state_token or not is_worker_of(processor, endpoint.worker):
            continue
        if endpoint.is_owner:
            remember((endpoint.state_token,))
            found[file.stem[len(processor) + 1 :]] = endpoint
    return found


def read_endpoint(file: Path) -> Endpoint | None:
    """Returns the content of an endpoint file; None if the file is missing or damaged."""
    return read_json(file, Endpoint)


def write_endpoint(file: Path, endpoint: Endpoint) -> None:
    """Writes or replaces an endpoint file.

    Raises:
        OSError: The file can't be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(msgspec.json.encode(endpoint))
    temporary.replace(file)
