"""Connections that carry several queries, and the limits of queries."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from threading import Event, get_ident

import httpx
import pytest

from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.queries.figures import QueryFigures
from holdfast.processors.engine.serving import connection, connections, query_lane
from holdfast.processors.engine.serving.connections import RequestServer
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer, Head, Later

QUERY = b"GET /stores/totals/keys/%d HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Routes:
    """Routes that answer with the page; some pages need a thread, or wait."""

    def __init__(self) -> None:
        self.ready, self.threads, self.looks, self.closed = Event(), set[int](), 0, 0

    def serves(self, page: str) -> bool:
        return page.startswith("/stores")

    def at_once(self, head: Head) -> Answer | Later | None:
        if head.page.endswith("/thread"):
            return None
        if head.page.endswith("/later"):
            return Later(self._again)
        return Answer(200, {"page": head.page})

    def on_thread(self, head: Head) -> Answer | Later:
        self.threads.add(get_ident())
        return Answer(200, {"page": "thread"})

    @property
    def figures(self) -> Mapping[str, QueryFigures]:
        return {}

    def counted(self, head: Head, answer: Answer) -> None:
        pass

    def close(self) -> None:
        self.closed += 1

    def _again(self) -> Answer | Later | None:
        self.looks += 1
        if not self.ready.is_set():
            return Later(self._again)
        return None if self.looks % 2 else Answer(200, {"page": "later"})


@pytest.fixture
def routes() -> Routes:
    return Routes()


@pytest.fixture
def serve(routes: Routes) -> Iterator[Callable[..., RequestServer]]:
    made = []

    def start(**settings: int) -> RequestServer:
        serving = ServingSettings(**settings)  # type: ignore[arg-type]
        made.append(RequestServer(serving, Guard(serving), lambda *_: Answer(200, {}), ["/status"], queries=routes))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def received(link: socket.socket, count: int) -> list[bytes]:
    """The bodies of this many answers on one connection."""
    got, bodies = b"", list[bytes]()
    while len(bodies) < count:
        head, found, rest = got.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) if found else 1 << 30
        if len(rest) >= size:
            bodies.append(rest[:size])
            got = rest[size:]
            continue
        more = link.recv(65_536)
        assert more
        got += more
    return bodies


def test_queries_come_one_after_the_other_on_one_connection(serve: Callable[..., RequestServer]) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
        for number in range(20):
            link.sendall(QUERY % number)
            assert received(link, 1) == [b'{"page": "/stores/totals/keys/%d"}' % number]
        assert server.open_connections == 1
        link.sendall(b"".join(QUERY % number for number in range(3)))  # several at once
        assert received(link, 3) == [b'{"page": "/stores/totals/keys/%d"}' % number for number in range(3)]
        link.sendall(b"GET /stores/last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert received(link, 1) == [b'{"page": "/stores/last"}']
        assert link.recv(1) == b""


def test_other_routes_and_old_clients_get_one_answer(serve: Callable[..., RequestServer]) -> None:
    server = serve()
    for request in (
        b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /stores/a HTTP/1.0\r\nHost: localhost\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
            link.sendall(request)
            received(link, 1)
            assert link.recv(1) == b""


def test_a_query_that_blocks_gets_a_thread(serve: Callable[..., RequestServer], routes: Routes) -> None:
    assert httpx.get(f"{serve().url}/stores/thread", trust_env=False).json() == {"page": "thread"}
    assert get_ident() not in routes.threads
    assert len(routes.threads) == 1


def test_a_query_that_waits_is_looked_at_again(serve: Callable[..., RequestServer], routes: Routes) -> None:
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
        link.sendall(b"GET /stores/later HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while routes.looks < 3:
            assert httpx.get(f"{server.url}/stores/a", trust_env=False).status_code == 200
        routes.ready.set()
        (body,) = received(link, 1)
        assert body in (b'{"page": "later"}', b'{"page": "thread"}')


def test_too_many_queries_are_refused(serve: Callable[..., RequestServer]) -> None:
    server = serve(queries_per_s=1)
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        answers = [client.get("/stores/a") for _ in range(4)]
    assert [answer.status_code for answer in answers[:2]] == [200, 429]
    assert answers[1].headers["retry-after"] == "1"
    assert "HOLDFAST_SERVING__QUERIES_PER_S" in answers[1].json()["error"]


def test_new_connections_replace_one_that_waits_for_its_next_query_last(
    serve: Callable[..., RequestServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "AT_ONCE_MAX", 4)
    server = serve()
    kept = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    kept.sendall(QUERY % 1)
    received(kept, 1)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(12)]
    for _ in range(3):
        assert httpx.get(f"{server.url}/stores/a", trust_env=False).status_code == 200
    kept.sendall(QUERY % 2)
    assert received(kept, 1) == [b'{"page": "/stores/totals/keys/2"}']
    for each in (kept, *silent):
        each.close()


def test_a_connection_without_a_next_query_is_closed(
    serve: Callable[..., RequestServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "NEXT_REQUEST_S", 0.1)
    monkeypatch.setattr(connection, "REQUEST_S", 0.1)
    server = serve()
    for next_bytes in (b"", b"GET /sto"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
            link.sendall(QUERY % 1)
            received(link, 1)
            link.sendall(next_bytes)
            assert link.recv(1) == b""


def test_queries_shorten_the_switch_interval_for_a_while(
    serve: Callable[..., RequestServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_lane, "HURRY_S", 0.05)
    before, server = sys.getswitchinterval(), serve()
    assert httpx.get(f"{server.url}/stores/a", trust_env=False).status_code == 200
    while sys.getswitchinterval() != before:
        Event().wait(0.01)
    monkeypatch.setattr(query_lane, "HURRY_S", 60.0)
    httpx.get(f"{server.url}/stores/a", trust_env=False)
    assert sys.getswitchinterval() == pytest.approx(query_lane.SWITCH_S)
    server.close()
    assert sys.getswitchinterval() == before


def test_the_connections_to_other_workers_end_with_the_server(
    serve: Callable[..., RequestServer], routes: Routes
) -> None:
    server = serve()
    assert routes.closed == 0
    server.close()
    assert routes.closed == 1
