"""A thousand hostile connections do not block others from health, metrics or control."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.serving import connection as one_connection
from holdfast.processors.engine.serving import connections
from holdfast.processors.engine.serving.connections import RequestServer
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer
from tests.mechanics.tiers import variants
from tests.parts.hostile_clients import KINDS, attacked

#: Maximum seconds for one answer during an attack, on a busy machine.
ANSWER_S = 10.0
#: How many times each page is requested.
ASKED = 2
#: The body of ``/metrics``, larger than a socket's buffers.
PAGE = b"m" * 300_000


@pytest.fixture
def serve() -> Iterator[Callable[[], RequestServer]]:
    made = []

    def start() -> RequestServer:
        serving = ServingSettings()
        pages = {"/health": b"ok", "/metrics": PAGE, "/pause": b"paused"}
        made.append(RequestServer(serving, Guard(serving), lambda _, page, __: Answer(200, pages[page]), pages))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def asked(server: RequestServer, request: bytes) -> tuple[bytes, float]:
    """The body of an answer, and the seconds until it was complete."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    return answer.partition(b"\r\n\r\n")[2], time.monotonic() - began


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def everybody_is_served(server: RequestServer, kinds: tuple[str, ...]) -> None:
    token = server.rules.guard.token.encode()
    head = b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
    wanted = {b"GET /health": b"ok", b"GET /metrics": PAGE, b"POST /pause": b"paused"}
    threads, memory = threading.active_count(), resident_bytes()
    with attacked(server.port, kinds):
        for _ in range(ASKED):
            for line, expected in wanted.items():
                body, seconds = asked(server, line + head)
                assert body == expected
                assert seconds < ANSWER_S
            assert server.open_connections <= connections.AT_ONCE_MAX
        assert threading.active_count() - threads <= connections.READERS_MAX + connections.CONTROLLERS_MAX
        assert resident_bytes() - memory < 96 << 20


@pytest.mark.slow
def test_a_thousand_connections_of_all_kinds_keep_nobody_out(serve: Callable[[], RequestServer]) -> None:
    everybody_is_served(serve(), tuple(KINDS))


@pytest.mark.parametrize("kind", variants(KINDS, tested=0))
def test_a_thousand_connections_of_one_kind_keep_nobody_out(serve: Callable[[], RequestServer], kind: str) -> None:
    everybody_is_served(serve(), (kind,))


@pytest.mark.parametrize("kind", ["slow header", "slow body", "refused length", "never reads"])
def test_a_connection_ends_at_its_deadline_however_often_it_sends(
    serve: Callable[[], RequestServer], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for limit in ("REQUEST_S", "ANSWER_S", "DRAIN_S"):
        monkeypatch.setattr(one_connection, limit, 0.15)
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(KINDS[kind])
        deadline = time.monotonic() + 30

        def trickle() -> None:
            while time.monotonic() < deadline:
                slow.sendall(b"a")

        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            trickle()
