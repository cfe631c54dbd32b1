"""A request with Python's own client: what is sent, what is answered, and what happens without an answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.infra.http_request import FAILURES, post_json, request

Seen = list[tuple[str, str, bytes, dict[str, str]]]


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def url(seen: Seen) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            seen.append((self.command, self.path, body, dict(self.headers)))
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(json.dumps({"path": self.path}).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_carries_path_query_body_and_headers(url: str, seen: Seen) -> None:
    answer = post_json(f"{url}/a?b=c", {"n": 1}, timeout_s=60, headers={"Authorization": "Bearer x"})
    assert (answer.status_code, answer.is_success, answer.json()) == (200, True, {"path": "/a?b=c"})
    ((method, path, body, headers),) = seen
    assert (method, path, json.loads(body)) == ("POST", "/a?b=c", {"n": 1})
    assert (headers["Authorization"], headers["Content-Type"]) == ("Bearer x", "application/json")
    assert headers["Host"] == url.removeprefix("http://")


def test_neither_a_redirect_nor_a_proxy_is_followed(url: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    answer = request("GET", f"{url}/moved", timeout_s=60)
    assert (answer.status_code, answer.is_success) == (302, False)
    assert [path for _, path, _, _ in seen] == ["/moved"]


def test_an_error_after_the_connect_sends_nothing(url: str, seen: Seen) -> None:
    def refuse() -> None:
        raise KeyError("stranger")

    with pytest.raises(KeyError, match="stranger"):
        request("POST", url, timeout_s=60, body=b"secret", on_connect=refuse)
    assert seen == []


@pytest.mark.parametrize(
    "wrong", ["", "127.0.0.1:80", "ftp://127.0.0.1/", "http://127.0.0.1:70000/", "http://127.0.0.1:1/a b"]
)
def test_what_is_no_url_is_a_failure(wrong: str) -> None:
    with pytest.raises(FAILURES):
        request("GET", wrong, timeout_s=60)


def test_a_server_that_speaks_another_protocol_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(FAILURES):
            request("GET", f"http://127.0.0.1:{listening.getsockname()[1]}/", timeout_s=60)
        thread.join()
