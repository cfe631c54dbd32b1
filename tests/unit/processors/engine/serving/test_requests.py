"""HTTP requests over real sockets that are too long, too slow, malformed or too many."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest
from structlog.testing import capture_logs

from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.serving import connection as one_connection
from holdfast.processors.engine.serving import connections
from holdfast.processors.engine.serving.connections import RequestServer, ServingImpossible
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer


@pytest.fixture
def server() -> Iterator[RequestServer]:
    """A server that answers with the method and the page of the request."""
    serving = ServingSettings()
    made = RequestServer(
        serving, Guard(serving), lambda method, page, _: Answer(200, {"asked": [method, page]}), ["/a"]
    )
    made.start()
    yield made
    made.close()


def said(server: RequestServer, request: bytes) -> tuple[int, dict[str, object]]:
    """The status code and the JSON body of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_a_request_is_served_without_its_query(server: RequestServer) -> None:
    answer = httpx.get(f"{server.url}/a?b=c", trust_env=False)
    assert answer.json() == {"asked": ["GET", "/a"]}
    assert (answer.headers["Server"], answer.headers["Cache-Control"]) == ("holdfast", "no-store")
    assert httpx.head(f"{server.url}/a", trust_env=False).content == b""


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 20_000), 431),
        (b"GET /a HTTP/1.1\r\nHost: localhost\r\nX-Long: %s\r\n\r\n" % (b"a" * 200_000), 431),
        (b"GET /a HTTP/1.1\r\nHost: localhost\r\n" + b"X-Many: aaaaaaaaaaaaaaaa\r\n" * 90 * 10 + b"\r\n", 431),
        (b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n" + b"a" * 5_000, 413),
        (b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 413),
        (b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n", 413),
        (b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"HUNTER2 /a HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"GET /a hunter2 HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\n\r\n", 421),
        (b"GET /a HTTP/1.1\r\nHost: [\r\n\r\n", 421),
        (b"POST /a HTTP/1.1\r\nHost: localhost\r\n\r\n", 401),
    ],
    ids=[
        "long path",
        "long header",
        "many headers",
        "long body",
        "negative length",
        "unreadable length",
        "no length",
        "unknown method",
        "no request at all",
        "no name",
        "broken name",
        "no token",
    ],
)
def test_what_is_refused(server: RequestServer, request_bytes: bytes, code: int) -> None:
    with capture_logs() as events:
        got, body = said(server, request_bytes)
    assert (got, list(body)) == (code, ["error"])
    assert [event["event"] for event in events] == ["request refused"]
    assert "hunter2" not in str([body, events]).lower()


def test_a_path_that_is_no_page_is_not_logged(server: RequestServer) -> None:
    with capture_logs() as events:
        httpx.post(f"{server.url}/a", trust_env=False)
        httpx.post(f"{server.url}/a-secret-in-a-path", trust_env=False)
    assert [event["page"] for event in events] == ["/a", "unknown"]


def test_refusals_do_not_fill_the_log(server: RequestServer) -> None:
    with capture_logs() as events:
        for _ in range(20):
            assert httpx.post(f"{server.url}/a", trust_env=False).status_code == 401
    assert [event["total"] for event in events] == [1, 2, 3, 4, 5]


def test_who_says_nothing_is_hung_up_on(server: RequestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_connection, "REQUEST_S", 0.1)
    token = server.rules.guard.token.encode()
    post = b"POST /a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: 9\r\n\r\n1" % token
    for beginning in (b"", b"GET /a HTTP/1.1\r\n", post):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(beginning)
            assert connection.recv(100) == b""


def test_connections_that_ask_for_nothing_never_keep_others_out(server: RequestServer) -> None:
    waiting = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(connections.AT_ONCE_MAX)]
    waiting[0].sendall(b"GET /a HTTP/1.0\r\nHost: loc")
    assert httpx.get(f"{server.url}/a", trust_env=False).status_code == 200
    assert waiting[0].recv(100) == b"", "the oldest has made room"
    waiting.pop(0).close()
    for connection in waiting:
        connection.sendall(b"GET /a HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200")
        connection.close()


def test_a_port_in_use_is_named(server: RequestServer) -> None:
    serving = ServingSettings(port=server.port)
    with pytest.raises(ServingImpossible, match=f"port {server.port}") as refused:
        RequestServer(serving, Guard(serving), lambda method, page, _: Answer(200, {}), [])
    assert refused.value.exit_code == 64


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")])
def test_the_address_that_this_machine_uses(host: str, shown: str) -> None:
    serving = ServingSettings(host=host, token="x" * 16)
    made = RequestServer(serving, Guard(serving), lambda method, page, _: Answer(200, {}), [])
    assert made.url == f"http://{shown}:{made.port}"
    made.close()
