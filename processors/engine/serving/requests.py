"""The HTTP layer of a worker: bounded requests, JSON answers, one thread each. ``server`` holds the routes.

Invariants:
    - A request that is too long, too slow or names another host is refused before it is parsed further.
    - No answer and no log line holds a token.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO

import structlog

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.serving.guard import Guard

_log = structlog.get_logger("serving")

#: Maximum bytes of a request line with all headers, and of a body.
REQUEST_BYTES_MAX = 16_384
BODY_BYTES_MAX = 4_096
#: A connection that sends nothing for this many seconds is closed.
SILENCE_S = 10.0
#: Maximum open connections; a further one replaces the oldest that has not sent a request.
AT_ONCE_MAX = 32
#: Seconds that a new connection waits for a free place.
_ROOM_WAIT_S = 1.0
#: Bytes of a refused request that are still read, so that its sender receives the answer.
_DRAIN_BYTES_MAX = 1 << 20
_DRAIN_S = 1.0
#: The first refusals are logged one by one, later ones at every ``_LOG_EVERY``-th.
_LOG_FIRST, _LOG_EVERY = 5, 1000


class ServingImpossible(BadConfiguration):
    """The server can't listen on its address or port; fields: ``host``, ``port``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: an HTTP status code and a body, JSON unless it is bytes."""

    code: int
    body: Mapping[str, Any] | bytes
    content_type: str = "application/json"


#: Answers an admitted request, from its method, route and body.
Serve = Callable[[str, str, bytes], Answer]


class _TooLong(Exception):
    """A request has more than ``REQUEST_BYTES_MAX`` bytes."""


class _Bounded:
    """A request's stream that raises ``_TooLong`` after ``left`` bytes of lines."""

    def __init__(self, stream: BinaryIO, left: int) -> None:
        self._stream = stream
        self._left = left

    def readline(self, size: int = -1) -> bytes:
        """Read a line of the request's head, as ``io.IOBase.readline`` does."""
        line = self._stream.readline(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise _TooLong
        return line

    def read(self, size: int) -> bytes:
        """Read bytes of the body, whose length is checked before."""
        return self._stream.read(size)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


class RequestServer(ThreadingHTTPServer):
    """Listens, and serves each request on a thread of its own.

    Args:
        pages: The existing routes; other paths are never logged, because they may contain anything.
        bodies: By route that takes a body, its maximum bytes.

    Raises:
        ServingImpossible: The server can't listen on its address or port.
    """

    daemon_threads = True
    request_queue_size = 2 * AT_ONCE_MAX

    def __init__(
        self,
        serving: ServingSettings,
        guard: Guard,
        serve: Serve,
        pages: Collection[str],
        bodies: Mapping[str, int] | None = None,
    ) -> None:
        self.guard = guard
        self.pages = frozenset(pages)
        self.bodies = bodies or {}
        self.serve = serve
        self._free = threading.BoundedSemaphore(AT_ONCE_MAX)
        self._refusals = 0
        self._lock = threading.Lock()
        #: Connections that have not sent a request yet, oldest first.
        self._unasked: dict[int, Any] = {}
        self._host = serving.host
        self.address_family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
        try:
            super().__init__((serving.host, serving.port), _Handler)
        except OSError as failure:
            raise ServingImpossible(
                f"Status and control can't listen on {serving.host} port {serving.port}: {failure.strerror}.",
                action="Set `HOLDFAST_SERVING__PORT` to a free port or to `0`, which takes any free one; each worker "
                "of a machine needs its own. Or set `HOLDFAST_SERVING__HOST` to an address of this machine.",
                host=serving.host,
                port=serving.port,
            ) from failure

    @property
    def url(self) -> str:
        """The URL for programs on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 # nosec B104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}"

    def server_bind(self) -> None:
        """Bind without a lookup of this machine's name, which can be slow."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self._host, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve on a thread; close the connection when no place becomes free."""
        if not self._free.acquire(blocking=False):
            self._end_the_quietest()
            if not self._free.acquire(timeout=_ROOM_WAIT_S):
                self.shutdown_request(request)
                return
        with self._lock:
            self._unasked[id(request)] = request
        super().process_request(request, client_address)

    def asked(self, request: Any) -> None:
        """Record that a connection has sent a request."""
        with self._lock:
            self._unasked.pop(id(request), None)

    def _end_the_quietest(self) -> None:
        """Close the oldest connection that has not sent a request."""
        with self._lock:
            found = next(iter(self._unasked), None)
            oldest = None if found is None else self._unasked.pop(found)
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection on its thread, then free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.asked(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request without its content: the client disconnected, or the handler has a bug."""
        _log.warning("a request was not answered", client=str(client_address[0]), exc_info=True)

    def refused(self, client: str, page: str, why: str) -> None:
        """Count a refusal, and log the first ones and every ``_LOG_EVERY``-th."""
        self._refusals += 1
        if self._refusals <= _LOG_FIRST or self._refusals % _LOG_EVERY == 0:
            shown = page if page in self.pages else "unknown"
            _log.warning("request refused", client=client, page=shown, why=why, total=self._refusals)


class _Handler(BaseHTTPRequestHandler):
    server: RequestServer
    timeout = SILENCE_S

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Bounded(self.rfile, REQUEST_BYTES_MAX)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except _TooLong:
            self.requestline, self.request_version, self.command = "", "", ""
            self._refuse(431, f"a request has at most {REQUEST_BYTES_MAX} bytes")
        except ConnectionError:
            self.close_connection = True  # the client disconnected

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if "Transfer-Encoding" in self.headers:
            return self._refuse(411, "a body needs its length")
        length, page = self.headers.get("Content-Length", "0"), self._page
        most = self.server.bodies.get(page, BODY_BYTES_MAX)
        if not length.isascii() or not length.isdigit() or len(length) > 9 or int(length) > most:
            needs = "" if page in self.server.bodies else "; this needs none"
            return self._refuse(413, f"a body has at most {most} bytes{needs}")
        if int(length) > BODY_BYTES_MAX and not self._is_admitted():
            return  # a large body without the token is not read into memory
        self._serve(self.rfile.read(int(length)))

    @property
    def _page(self) -> str:
        return self.path.partition("?")[0]

    def _is_admitted(self) -> bool:
        """Whether the request may be served; sends the refusal if not."""
        self.server.asked(self.connection)
        guard = self.server.guard
        if not guard.knows_name(self.headers.get("Host")):
            self._refuse(421, "the Host header names another server", self._page)
            return False
        if not guard.admits(self.command, self._page, self.headers.get("Authorization")):
            self._refuse(401, "the token is missing or wrong: send it as Authorization: Bearer", self._page)
            return False
        return True

    def _serve(self, body: bytes = b"") -> None:
        if self._is_admitted():
            self._answer(self.server.serve(self.command, self._page, body))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse as all other refusals do; the library's own message would contain the request."""
        self._refuse(int(code), self.responses[code][0])

    def _refuse(self, code: int, why: str, page: str = "unknown") -> None:
        self.server.refused(str(self.client_address[0]), page, why)
        self.close_connection = True
        try:
            self._answer(Answer(code, {"error": why}))
            self.wfile.flush()
            self._drain()
        except OSError:
            return  # the client disconnected before the answer

    def _drain(self) -> None:
        """Read the rest of the request: closing with unread bytes resets the connection and may lose the answer."""
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(_DRAIN_S)
        left = _DRAIN_BYTES_MAX
        while left > 0:
            got = self.connection.recv(65_536)
            if not got:
                return
            left -= len(got)

    def _answer(self, answer: Answer) -> None:
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if answer.code == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "holdfast"

    def log_message(self, format: str, *args: Any) -> None:
        return
