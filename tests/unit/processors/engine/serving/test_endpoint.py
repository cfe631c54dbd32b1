"""A client sends a worker's token only to the worker's own process.

The sockets are real, and the test's process is the worker.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.paths import Paths
from holdfast.infra.settings import ServingSettings
from holdfast.infra.system.ports import listens_at
from holdfast.infra.system.process import start_mark
from holdfast.processors.engine.serving.connections import RequestServer
from holdfast.processors.engine.serving.endpoint_file import Endpoint, read_endpoint, write_endpoint
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer
from holdfast.processors.engine.serving.worker_client import ProcessorClient, ProcessorSilent

TOKEN = "the-token-of-one-worker"
MARK = start_mark(os.getpid()) or ""


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A foreign program on a former worker's port. ``accept`` raises an error if no connection has arrived."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def client_of(home: Path, endpoint: Endpoint) -> ProcessorClient:
    paths = Paths(home)
    write_endpoint(paths.endpoint("fleet", "0"), endpoint)
    return ProcessorClient("fleet", "0", paths)


def url_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_request_to_a_worker_reads_no_certificates(
    tmp_path: Path, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to a worker reads no certificates. To load them takes 25 ms of CPU, and commands send many requests."""
    client = client_of(tmp_path, Endpoint(os.getpid(), url_of(stranger), TOKEN, MARK))
    stranger.close()

    def read(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("the machine's certificates were read")

    monkeypatch.setattr(ssl, "create_default_context", read)
    assert client.status() is None


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint(2**22 + 1, "", TOKEN, "1"),
        Endpoint(os.getpid(), "", TOKEN, MARK + "0"),
        Endpoint(os.getppid(), "", TOKEN),
    ],
    ids=["process ended", "id reused", "older file, another process"],
)
def test_a_stranger_at_the_port_gets_no_request(tmp_path: Path, stranger: socket.socket, endpoint: Endpoint) -> None:
    there = Endpoint(endpoint.pid, url_of(stranger), endpoint.token, endpoint.mark, reads_need_token=True)
    client = client_of(tmp_path, there)
    assert client.status() is None
    for verb in (client.pause, client.stop, client.checkpoint):
        with pytest.raises(ProcessorSilent, match=r"has ended|no token was sent"):
            verb()
    with pytest.raises(BlockingIOError):
        stranger.accept()


def test_a_port_that_changes_hands_while_a_client_connects_gets_no_token(
    tmp_path: Path, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([True, False])
    monkeypatch.setattr(Endpoint, "is_owner", property(lambda _: next(looks)))
    client = client_of(tmp_path, Endpoint(os.getpid(), url_of(stranger), TOKEN, MARK))
    with pytest.raises(ProcessorSilent, match="no token was sent"):
        client.pause()
    connection, _ = stranger.accept()
    with connection:
        connection.settimeout(60)
        assert connection.recv(1000) == b"", "the client disconnects without a byte"


def test_the_worker_itself_gets_the_token_and_reads_carry_none(tmp_path: Path) -> None:
    serving, seen = ServingSettings(), []
    guard = Guard(serving)
    admits = guard.admits

    def recorded(method: str, page: str, authorization: str | None) -> bool:
        seen.append((method, page, authorization))
        return admits(method, page, authorization)

    guard.admits = recorded  # type: ignore[method-assign]
    server = RequestServer(serving, guard, lambda *_: Answer(200, {"paused": True}), ["/pause", "/status"])
    server.start()
    try:
        client = client_of(tmp_path, Endpoint(os.getpid(), server.url, guard.token, MARK))
        client.pause()
        assert client.status() is None, "the answer is no status"
    finally:
        server.close()
    assert seen == [("POST", "/pause", f"Bearer {guard.token}"), ("GET", "/status", None)]


def test_the_file_is_private_and_its_text_form_has_no_token(tmp_path: Path) -> None:
    file = Paths(tmp_path).endpoint("fleet", "0")
    written = Endpoint(os.getpid(), "http://127.0.0.1:1", TOKEN, MARK)
    write_endpoint(file, written)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_endpoint(file) == written
    assert TOKEN not in repr(written)


def test_the_owner_of_a_port_is_known(stranger: socket.socket) -> None:
    port = stranger.getsockname()[1]
    assert listens_at(os.getpid(), port) is True
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other_program:
        assert listens_at(other_program.pid, port) is False
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        assert listens_at(os.getpid(), other.getsockname()[1]) is True
    assert listens_at(2**22 + 1, port) is None
