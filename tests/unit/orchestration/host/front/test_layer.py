"""The access layer on a real server: admitted requests, streams and WebSockets pass unchanged; others go nowhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holdfast.infra.settings import WebserverSettings
from holdfast.orchestration.host.front.layer import FORM_MAX, WHO, Front
from holdfast.orchestration.host.front.rules import COOKIE, SIGN_IN, rules_of

TOKEN = "0123456789abcdef-of-anna"


@dataclass
class Served:
    """A running server, and the requests that reached the application behind the access layer."""

    port: int
    reached: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(settings: WebserverSettings) -> Iterator[Served]:
    listening = socket.create_server(("127.0.0.1", 0))
    served = Served(listening.getsockname()[1])
    held = threading.Event()
    served.held = held  # type: ignore[attr-defined]

    async def echo(request: Request) -> JSONResponse:
        served.reached.append((request.url.path, request.scope[WHO]))
        return JSONResponse({"body": (await request.body()).decode()})

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            import asyncio

            yield b"first"
            await asyncio.to_thread(held.wait, 20)
            yield b"second"

        return StreamingResponse(parts())

    async def talk(websocket: WebSocket) -> None:
        served.reached.append(("websocket", websocket.scope[WHO]))
        await websocket.accept(subprotocol="graphql-ws")
        while True:
            await websocket.send_text((await websocket.receive_text())[::-1])

    routes = [
        Route("/stream", stream),
        WebSocketRoute("/graphql", talk),
        Route("/{path:path}", echo, methods=["GET", "POST"]),
    ]
    front = Front(Starlette(routes=routes), rules_of(settings))
    server = uvicorn.Server(uvicorn.Config(front, log_level="critical", proxy_headers=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield served
    finally:
        held.set()
        server.should_exit = True
        thread.join(20)
        listening.close()


@pytest.fixture(scope="module")
def open_() -> Iterator[Served]:
    with serving(WebserverSettings()) as served:
        yield served


@pytest.fixture(scope="module")
def asking() -> Iterator[Served]:
    with serving(WebserverSettings(tokens={"anna": TOKEN}, hosts=("dagster.example.com",))) as served:
        yield served


def test_a_stream_passes_part_by_part(open_: Served) -> None:
    with httpx.stream("GET", f"{open_.url}/stream", timeout=20) as answer:
        parts = answer.iter_raw()
        assert next(parts) == b"first"
        open_.held.set()  # type: ignore[attr-defined]
        assert b"".join(parts) == b"second"


def test_a_websocket_passes_both_ways_with_its_subprotocol(open_: Served) -> None:
    with connect(f"ws://127.0.0.1:{open_.port}/graphql", subprotocols=["graphql-ws"], origin=open_.url) as talking:  # type: ignore[arg-type, list-item]
        assert talking.subprotocol == "graphql-ws"
        for word in ("abc", "x" * 200_000):
            talking.send(word)
            assert talking.recv(timeout=20) == word[::-1]


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example.com"}, {"sec-fetch-site": "cross-site"}])
def test_a_foreign_websocket_is_refused_before_it_opens(open_: Served, headers: dict[str, str]) -> None:
    before = list(open_.reached)
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{open_.port}/graphql", additional_headers=headers)
    assert refused.value.response.status_code == 403
    assert b"What to do" in refused.value.response.body
    assert open_.reached == before


def test_a_refused_body_is_not_read(open_: Served) -> None:
    """The server answers a refused request although its body never arrives."""
    with socket.create_connection(("127.0.0.1", open_.port), timeout=20) as line:
        line.sendall(b"POST /x HTTP/1.1\r\nHost: evil.example.com\r\nContent-Length: 999999999\r\n\r\n{")
        assert line.recv(65536).startswith(b"HTTP/1.1 403")
    assert ("/x", None) not in open_.reached


def test_a_body_passes_as_it_is(open_: Served) -> None:
    answer = httpx.post(f"{open_.url}/echo", json={"a": "é" * 1000})
    assert answer.json()["body"] == answer.request.content.decode()
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"


def test_a_person_signs_in_with_a_browser(asking: Served) -> None:
    page = {"accept": "text/html", "sec-fetch-site": "none", "sec-fetch-mode": "navigate"}
    with httpx.Client(base_url=asking.url, headers={**page, "origin": asking.url}) as browser:
        asked = browser.get("/runs/7")
        assert asked.status_code == 401
        assert '<input type="hidden" name="next" value="/runs/7">' in asked.text
        wrong = browser.post(SIGN_IN, data={"token": "wrong", "next": "/runs/7"})
        assert (wrong.status_code, wrong.cookies) == (401, httpx.Cookies())
        done = browser.post(SIGN_IN, data={"token": f" {TOKEN} ", "next": "/runs/7"})
        assert (done.status_code, done.headers["location"]) == (303, "/runs/7")
        cookie = done.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert TOKEN not in cookie
        assert browser.get("/runs/7").status_code == 200
        assert asking.reached[-1] == ("/runs/7", "anna")
        with connect(
            f"ws://127.0.0.1:{asking.port}/graphql",
            subprotocols=["graphql-ws"],  # type: ignore[list-item]
            additional_headers={"cookie": f"{COOKIE}={browser.cookies[COOKIE]}"},
        ):
            pass
    assert asking.reached[-1] == ("websocket", "anna")


def test_a_link_from_another_site_reloads_itself_so_that_the_session_is_sent(asking: Served) -> None:
    link = {"accept": "text/html", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    foreign = httpx.get(f"{asking.url}/runs", headers={**link, "sec-fetch-dest": "document"}).text
    own = httpx.get(f"{asking.url}/runs", headers={"accept": "text/html", "sec-fetch-site": "same-origin"}).text
    assert 'http-equiv="refresh"' in foreign
    assert 'http-equiv="refresh"' not in own


@pytest.mark.parametrize("goal", ["//evil.example.com", "https://evil.example.com", "/\\evil.example.com", "", "/a\tb"])
def test_sign_in_leads_to_this_server_only(asking: Served, goal: str) -> None:
    done = httpx.post(f"{asking.url}{SIGN_IN}", data={"token": TOKEN, "next": goal})
    assert done.headers["location"] == "/"


def test_a_page_that_is_asked_for_cannot_write_into_the_form(asking: Served) -> None:
    asked = httpx.get(f"{asking.url}/%22%3E%3Cscript%3E", headers={"accept": "text/html"})
    assert "<script>" not in asked.text


def test_a_long_form_is_refused(asking: Served) -> None:
    assert httpx.post(f"{asking.url}{SIGN_IN}", data={"token": "x" * FORM_MAX}).status_code == 413


def test_without_a_token_nothing_is_reached(asking: Served) -> None:
    before = list(asking.reached)
    for answer in (
        httpx.get(f"{asking.url}/server_info"),
        httpx.post(f"{asking.url}/graphql", json={"query": "{version}"}),
        httpx.post(f"{asking.url}/graphql", json={}, headers={"authorization": f"Bearer {TOKEN}x"}),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    with pytest.raises(InvalidStatus):
        connect(f"ws://127.0.0.1:{asking.port}/graphql")
    assert asking.reached == before


def test_a_hostile_page_does_not_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Refusals are logged once for each cause, even if a hostile page changes its host name with each request."""
    with serving(WebserverSettings(tokens={"anna": TOKEN})) as served:
        for number in range(20):
            httpx.get(served.url, headers={"host": f"often-{number}.example.com"})
            httpx.post(f"{served.url}{SIGN_IN}", data={"token": f"guess {number}"})
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("often-") == 1
    assert (printed.out + printed.err).count("sign_in_failed") == 1
