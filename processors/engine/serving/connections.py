"""The sockets of a worker's HTTP server. One thread does all socket I/O, and a few threads serve the requests.

    accepted ──head and body──► admitted ──a thread serves it──► answered ──► drained ──► closed
        ▲ └───────refused, with an error answer─────────────────────►┤
        └──────────────the answer of a query is sent: the connection stays open

No connection can block other connections. Each connection has a deadline for its whole request and a deadline for its
whole answer, even if the client keeps sending bytes. If the maximum number of connections is open, a new connection
replaces the oldest connection whose request head is incomplete or whose answer is sent. Without such a connection, it
replaces the answered connection whose client has not read for the longest time, then a connection that waits for its
next query.

Invariants:
    - Only complete and admitted requests get a thread, and the number of threads is limited.
    - ``/health`` and ``/ready`` need no thread, so they are answered even while all threads wait for the worker's main
      loop, which processes messages.
    - Memory is limited: the number of connections, the bytes of a request, and the unsent bytes of all answers.
    - With a certificate, other machines reach the server by TLS only. Programs on this machine use a port of their own
      on loopback, so that commands need no certificate.
    - CPU time is limited: the accepts per second, and the reads of a slow request. The worker's main loop shares the
      Python interpreter with this thread, so a flood of requests must not keep the interpreter busy.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from holdfast.infra.errors import BadConfiguration
from holdfast.infra.settings import ServingSettings
from holdfast.infra.system.server_tls import ServerCertificate, TlsSocket
from holdfast.processors.engine.queries.figures import QueryFigures
from holdfast.processors.engine.serving.connection import Connection
from holdfast.processors.engine.serving.guard import OPEN_PAGES, Guard
from holdfast.processors.engine.serving.limits import Allowance, WorkThreads
from holdfast.processors.engine.serving.query_lane import FAILED, Queries, QueryLane
from holdfast.processors.engine.serving.requests import (
    Answer,
    Head,
    Refused,
    Rules,
    written,
)

_log = structlog.get_logger("serving")

#: Maximum number of open connections. If all are in use, a new connection replaces an old one, for example one whose
#: request head is incomplete.
AT_ONCE_MAX = 128
#: Maximum number of threads for requests that only read, and for control requests. A reading request waits at most one
#: second for the worker's main loop.
READERS_MAX, CONTROLLERS_MAX = 4, 16
#: Maximum bytes of all answers that clients have not read yet.
UNSENT_BYTES_MAX = 32 << 20
#: ``_BACKLOG``: maximum connections that the kernel queues before they are accepted. ``_ACCEPTS_PER_TURN``: maximum
#: accepts in one turn of the event loop, so that open connections are also read.
_BACKLOG, _ACCEPTS_PER_TURN = 1024, 16
#: Rate limit under load: accepts per second, and accepts in one burst. An accept takes up to 0.13 ms. The thousandth
#: queued connection waits one second, which is shorter than the timeout of clients that read the status.
_ACCEPTS_PER_S, _ACCEPTS_MAX = 1000, AT_ONCE_MAX
#: The same limit with TLS. A handshake takes up to 2 ms.
_HANDSHAKES_PER_S = 100
#: The address at which programs of this machine reach a server that speaks only TLS elsewhere.
LOOPBACK = "127.0.0.1"
#: Seconds for which the server accepts no connections after the process has run out of file descriptors.
_ACCEPT_AGAIN_S = 0.1
#: Maximum seconds that running requests get for their answers when the server stops.
_FAREWELL_S = 0.5
#: Bytes of an unread answer that the kernel buffers for each connection.
_KERNEL_BYTES = 131_072
#: The first ``_LOG_FIRST`` refused requests are logged, then only every ``_LOG_EVERY``-th.
_LOG_FIRST, _LOG_EVERY = 5, 1000

#: A function that serves an admitted request. Its arguments are method, route and body.
Serve = Callable[[str, str, bytes], Answer]


class ServingImpossible(BadConfiguration):
    """The server can't listen on its address or port. Fields: ``host``, ``port``."""


class RequestServer:
    """The HTTP server. It listens as soon as it is constructed, and serves requests from ``start`` until ``close``.

    Args:
        pages: The existing routes. Any other path is logged as ``unknown``, because a client may put anything into it.
        bodies: For each route that accepts a large body, its maximum bytes.
        queries: The routes of queries about state; None for a server without them.

    Raises:
        ServingImpossible: The server can't listen on its address or port.
        TlsUnusable: The files of the certificate can't be used.
    """

    def __init__(
        self,
        serving: ServingSettings,
        guard: Guard,
        serve: Serve,
        pages: Collection[str],
        bodies: Mapping[str, int] | None = None,
        queries: Queries | None = None,
    ) -> None:
        of_state = (lambda page: False) if queries is None else queries.serves
        self.rules = Rules(guard, frozenset(pages), bodies or {}, of_state)
        self._serve = serve
        self._refusals = 0
        self._listeners = _listeners(serving)
        #: The port of the settings.
        self.port = self._listeners[0].port
        self._crews = {True: WorkThreads("serving", READERS_MAX), False: WorkThreads("control", CONTROLLERS_MAX)}
        self._lane = None if queries is None else QueryLane(queries, serving.queries_per_s)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Open connections, oldest first. A connection whose client reads some of the answer moves to the end.
        self._open: dict[Connection, None] = {}
        self._closing = False

    @property
    def url(self) -> str:
        """The server's URL for programs on this machine, without TLS."""
        return self._listeners[-1].url

    @property
    def open_connections(self) -> int:
        """The number of open connections, at most ``AT_ONCE_MAX``."""
        return len(self._open)

    @property
    def query_figures(self) -> Mapping[str, QueryFigures]:
        """The queries that clients have sent to this worker, by store; empty for a server without queries."""
        return {} if self._lane is None else self._lane.figures

    def start(self) -> None:
        """Starts serving on a separate thread."""
        self._loop = loop = asyncio.new_event_loop()
        loop.set_exception_handler(_log_failure)
        loop.call_soon(self._resume)
        self._thread = threading.Thread(target=self._run, args=(loop,), name="connections", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the server. Running requests get half a second for their answers."""
        if self._thread is None or self._loop is None:
            for listener in self._listeners:
                listener.close()
            return
        with suppress(RuntimeError):  # RuntimeError means that the event loop is already closed
            self._loop.call_soon_threadsafe(self._finish)
        self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            self._closing = True
            for connection in list(self._open):
                connection.close()
            loop.close()
            for crew in self._crews.values():
                crew.end()
            if self._lane is not None:
                self._lane.end()

    def _finish(self) -> None:
        assert self._loop is not None
        self._closing = True
        for listener in self._listeners:
            self._pause(listener)
            listener.close()
        for connection in list(self._open):
            if not connection.is_answered_soon:
                connection.close()
        if self._open:
            self._loop.call_later(_FAREWELL_S, self._loop.stop)
        else:
            self._loop.stop()

    # -- places: accepting and replacing connections ---------------------------------------------------------------

    def _resume(self) -> None:
        assert self._loop is not None
        for listener in self._listeners:
            if not (self._closing or listener.accepts or listener.rests):
                listener.accepts = True
                self._loop.add_reader(listener.socket, self._accept, listener)

    def _pause(self, listener: _Listener) -> None:
        if listener.accepts:
            assert self._loop is not None
            listener.accepts = False
            self._loop.remove_reader(listener.socket)

    def _rest(self, listener: _Listener, seconds: float) -> None:
        """Accepts no connections of a listener for this many seconds."""
        assert self._loop is not None
        self._pause(listener)
        listener.rests = True
        self._loop.call_later(seconds, self._rested, listener)

    def _rested(self, listener: _Listener) -> None:
        listener.rests = False
        self._resume()

    def _accept(self, listener: _Listener) -> None:
        assert self._loop is not None
        for _ in range(_ACCEPTS_PER_TURN):
            if not listener.allowance.takes_one(self._loop.time()):
                self._rest(listener, _ACCEPTS_PER_TURN / listener.accepts_per_s)
                return
            full = len(self._open) >= AT_ONCE_MAX
            oldest = self._replaceable() if full else None
            if full and oldest is None:
                # No connection may be closed, because all requests are being served. The next finished answer resumes
                # the accepts.
                self._pause(listener)
                return
            try:
                accepted, address = listener.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as failure:
                _log.warning("a connection can't be accepted", error=str(failure))
                oldest = self._replaceable()
                if oldest is not None:
                    oldest.close()  # frees a file descriptor for the next accept
                self._rest(listener, _ACCEPT_AGAIN_S)
                return
            if oldest is not None:
                oldest.close()
            made = listener.opened(accepted)
            if made is None:
                continue
            connection = Connection(self, self._loop, made, str(address[0]))
            self._open[connection] = None
            connection.read()  # read at once, because most clients have already sent their request

    def _replaceable(self) -> Connection | None:
        """Returns the connection that a new connection may replace; None if no open connection may be closed."""
        unread = between = None
        for each in self._open:
            if each.is_idle:
                return each
            if unread is None and each.unsent_bytes:
                unread = each
            if between is None and each.waits_for_next:
                between = each
        return unread or between

    def reads_on(self, connection: Connection) -> None:
        """Moves a connection to the end of the list of open connections, because its client is reading its answer.

        The connections at the start of the list are closed first.
        """
        del self._open[connection]
        self._open[connection] = None

    def forget(self, connection: Connection) -> None:
        """Removes a closed connection from the list of open connections, so that a new connection can be accepted.

        ``Connection.close`` calls this method.
        """
        self._open.pop(connection, None)
        self.place_freed()

    def place_freed(self) -> None:
        """Accepts connections again. Must be called after a connection was closed, or after a request was answered."""
        if not self._closing:
            self._resume()
        elif not self._open and self._loop is not None:
            self._loop.stop()

    def bound_unsent(self) -> None:
        """Closes connections with unread answers, oldest first, until the unsent bytes are within the limit."""
        unread = [each for each in self._open if each.unsent_bytes]
        size = sum(each.unsent_bytes for each in unread)
        for each in unread:
            if size <= UNSENT_BYTES_MAX:
                return
            size -= each.unsent_bytes
            each.close()

    # -- requests --------------------------------------------------------------------------------------------------

    def serve(self, connection: Connection, head: Head, body: bytes) -> None:
        """Passes a complete request to a thread. The event loop's thread sends the answer.

        Routes of ``OPEN_PAGES`` are answered at once, without a thread.
        """
        if head.reads and head.page in OPEN_PAGES:
            connection.answer(self._answer(head, body))
            return
        if head.reads and self._lane is not None and self._lane.serves(head.page):
            assert self._loop is not None
            self._lane.take(connection, head, self._loop)
            return
        crew = self._crews[head.reads]
        crew.take(partial(self._serve_on_thread, connection, head, body))

    def _serve_on_thread(self, connection: Connection, head: Head, body: bytes) -> None:
        assert self._loop is not None
        answer = self._answer(head, body)
        with suppress(RuntimeError):  # RuntimeError means that the server was closed in the meantime
            self._loop.call_soon_threadsafe(connection.answer, answer)

    def _answer(self, head: Head, body: bytes) -> bytes:
        try:
            answer = self._serve(head.method, head.page, body)
        except Exception:
            _log.warning("a request was not answered", page=head.page, exc_info=True)
            answer = FAILED
        return written(answer, with_body=head.method != "HEAD")

    def refused(self, client: str, refused: Refused) -> None:
        """Counts a refused request. Logs the first ``_LOG_FIRST`` refused requests, then every ``_LOG_EVERY``-th."""
        self._refusals += 1
        if self._refusals <= _LOG_FIRST or self._refusals % _LOG_EVERY == 0:
            shown = refused.page if refused.page in self.rules.pages else "unknown"
            _log.warning("request refused", client=client, page=shown, why=refused.why, total=self._refusals)


class _Listener:
    """One address on which the server accepts connections, with or without TLS."""

    def __init__(self, host: str, port: int, certificate: ServerCertificate | None) -> None:
        self.socket, self._host, self._certificate = _listening(host, port), host, certificate
        self.port = int(self.socket.getsockname()[1])
        self.accepts_per_s = _ACCEPTS_PER_S if certificate is None else _HANDSHAKES_PER_S
        self.allowance = Allowance(self.accepts_per_s, _ACCEPTS_MAX)
        #: Whether the event loop watches the socket, and whether the listener accepts nothing for a while.
        self.accepts = self.rests = False

    @property
    def url(self) -> str:
        """The URL for programs on this machine."""
        # If the server listens on all interfaces, programs on this machine reach it by the loopback address. The
        # wildcard address is only compared here, not bound.
        host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(self._host, self._host)  # noqa: S104 # nosec B104
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def opened(self, accepted: socket.socket) -> socket.socket | TlsSocket | None:
        """Returns the socket of an accepted connection, which never waits; None if the client has disconnected."""
        accepted.setblocking(False)
        try:
            return accepted if self._certificate is None else self._certificate.serve(accepted)
        except OSError:
            accepted.close()
            return None

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()


def _listeners(serving: ServingSettings) -> list[_Listener]:
    """Opens the listener of the settings. With TLS, also one for programs on this machine: the last one has no TLS."""
    if serving.tls_certificate is None:
        return [_Listener(serving.host, serving.port, None)]
    certificate = ServerCertificate(serving.tls_certificate, serving.tls_key)
    first = _Listener(serving.host, serving.port, certificate)
    try:
        return [first, _Listener(LOOPBACK, 0, None)]
    except ServingImpossible:
        first.close()
        raise


def _listening(host: str, port: int) -> socket.socket:
    """Opens a listening socket."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # the accepted sockets inherit this buffer size
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as failure:
        listener.close()
        raise ServingImpossible(
            f"Status and control can't listen on {host} port {port}: {failure.strerror}.",
            action="Set `HOLDFAST_SERVING__PORT` to a free port or to `0`, which takes any free one; each worker "
            "of a machine needs its own. Or set `HOLDFAST_SERVING__HOST` to an address of this machine.",
            host=host,
            port=port,
        ) from failure
    return listener


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an unexpected error in the server's code. The connection is closed at its deadline."""
    _log.error("a connection failed", error=str(context.get("message")), exc_info=context.get("exception"))
