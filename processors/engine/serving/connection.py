"""One connection of a worker's HTTP server: reads requests, and sends answers. ``connections`` has all of them.

READING ──head and body──► SERVED ──► ANSWERED ──sent──► DRAINED ──► CLOSED
   ▲                                     └─ an answer of a query is sent: the connection waits for the next one
   └─────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from selectors import EVENT_READ, EVENT_WRITE
from typing import Protocol

from holdfast.infra.system.server_tls import TlsSocket
from holdfast.processors.engine.serving.requests import (
    Answer,
    Head,
    Refused,
    Rules,
    head_end,
    judge,
    refused_early,
    written,
)

#: Time limits in seconds. ``REQUEST_S``: from the accept of a connection until its request is complete. ``ANSWER_S``:
#: from the start of the answer until the client has read it.
REQUEST_S = 10.0
ANSWER_S = 10.0
#: Seconds for which a connection may wait for its next query.
NEXT_REQUEST_S = 60.0
#: After an answer, the server reads on for at most this many seconds and bytes, ignores these bytes, and then closes
#: the connection. If it closed the socket with unread bytes, TCP would send a reset, and the client could lose the
#: answer.
DRAIN_S = 1.0
_DRAIN_BYTES_MAX = 1 << 20
#: After ``_READS_AT_ONCE`` reads of an incomplete head, the server pauses ``_READ_AGAIN_S`` seconds before each
#: further read.
_READS_AT_ONCE, _READ_AGAIN_S = 4, 0.05
#: Maximum bytes of one ``recv``.
_READ_BYTES = 65_536


class Server(Protocol):
    """The parts of the server that its connections use; ``connections.RequestServer`` implements them."""

    rules: Rules

    def serve(self, connection: Connection, head: Head, body: bytes) -> None:
        """Serves a complete request."""

    def refused(self, client: str, refused: Refused) -> None:
        """Counts a refused request."""

    def reads_on(self, connection: Connection) -> None:
        """Notes that the client reads its answer."""

    def place_freed(self) -> None:
        """Notes that a connection was closed or answered."""

    def bound_unsent(self) -> None:
        """Closes connections if too many bytes of answers are unread."""

    def forget(self, connection: Connection) -> None:
        """Removes a closed connection."""


class _Phase(Enum):
    READING = "reading"
    SERVED = "served"
    ANSWERED = "answered"
    ANSWERED_KEPT = "answered, and the connection stays open"
    DRAINED = "drained"
    CLOSED = "closed"


class Connection:
    """One connection. It carries one request, or queries one after the other.

    All methods run on the event loop's thread.
    """

    def __init__(
        self, server: Server, loop: asyncio.AbstractEventLoop, accepted: socket.socket | TlsSocket, client: str
    ) -> None:
        self._server, self._loop, self._socket, self._client = server, loop, accepted, client
        # The file descriptor, because the event loop finds a number faster than a socket object.
        self._descriptor = accepted.fileno()
        self._phase = _Phase.READING
        self._received = bytearray()
        self._head: Head | None = None
        self._unsent = memoryview(b"")
        self._drained = self._reads = 0
        self._was_answered = False
        #: What the event loop watches: bytes of the client (``EVENT_READ``), room to send (``EVENT_WRITE``), or both.
        self._watched = EVENT_READ
        self._again: asyncio.TimerHandle | None = None
        self._deadline = loop.call_later(REQUEST_S, self.close)
        loop.add_reader(self._descriptor, self.read)

    @property
    def is_idle(self) -> bool:
        """Whether a new connection may replace this one: the head is incomplete, or the whole answer is sent."""
        if self._was_answered and self._phase is _Phase.READING:
            return bool(self._received) and self._head is None
        return self._phase is _Phase.DRAINED or (self._phase is _Phase.READING and self._head is None)

    @property
    def waits_for_next(self) -> bool:
        """Whether the connection has carried a query and waits for the next one."""
        return self._was_answered and self._phase is _Phase.READING and not self._received

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return self._phase is _Phase.CLOSED

    @property
    def is_answered_soon(self) -> bool:
        """Whether the request is complete, but the answer is not completely sent."""
        return self._phase in (_Phase.SERVED, _Phase.ANSWERED, _Phase.ANSWERED_KEPT)

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes of the answer that the client has not read yet."""
        return len(self._unsent)

    def close(self) -> None:
        """Closes the socket, and removes the connection from the server. A second call does nothing."""
        if self._phase is _Phase.CLOSED:
            return
        self._phase = _Phase.CLOSED
        self._deadline.cancel()
        self._read_no_more()
        self._send_no_more()
        self._socket.close()
        self._received, self._unsent = bytearray(), memoryview(b"")
        self._server.forget(self)

    def read(self) -> None:
        """Reads the bytes that the client has sent."""
        try:
            got = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return self._read_seldom()  # with TLS, these may be bytes of the handshake
        except OSError:
            got = b""  # the client has disconnected
        if self._phase is _Phase.DRAINED:
            self._drained += len(got)
        if not got or self._drained > _DRAIN_BYTES_MAX:
            self.close()
        elif self._phase is _Phase.READING:
            looked_at = len(self._received)
            if self._was_answered and not looked_at:  # the next query begins
                self._deadline.cancel()
                self._deadline = self._loop.call_later(REQUEST_S, self.close)
            self._received += got
            self._advance(looked_at)
        self._read_seldom()

    def _read_seldom(self) -> None:
        """Pauses before each further read of a request whose head does not come to its end."""
        self._reads += 1
        if self._reads > _READS_AT_ONCE and self.is_idle:
            self._read_no_more()
            self._again = self._loop.call_later(_READ_AGAIN_S, self._read_on)

    def _read_on(self) -> None:
        if not self._watched & EVENT_READ:
            self._watched |= EVENT_READ
            self._loop.add_reader(self._descriptor, self.read)

    def _read_no_more(self) -> None:
        if self._watched & EVENT_READ:
            self._watched &= ~EVENT_READ
            self._loop.remove_reader(self._descriptor)
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _advance(self, looked_at: int) -> None:
        """Refuses the request as soon as the received bytes are invalid. Serves it as soon as it is complete.

        The first ``looked_at`` bytes were already searched for the end of the head.
        """
        if self._head is None:
            end = head_end(self._received, looked_at)
            early = refused_early(self._received if end is None else self._received[:end])
            if early is not None:
                return self._refuse(early)
            if end is None:
                return
            judged = judge(bytes(self._received[:end]), self._server.rules)
            if isinstance(judged, Refused):
                return self._refuse(judged)
            self._head = judged
            del self._received[:end]
        if len(self._received) < self._head.body_bytes:
            return
        body = bytes(self._received[: self._head.body_bytes])
        del self._received[: self._head.body_bytes]
        self._phase = _Phase.SERVED
        self._deadline.cancel()
        self._server.serve(self, self._head, body)
        if self.is_answered_soon:  # otherwise the answer is sent already, and nothing had to be changed
            self._read_no_more()

    def _refuse(self, refused: Refused) -> None:
        self._server.refused(self._client, refused)
        self._read_no_more()
        self.answer(written(Answer(refused.code, {"error": refused.why})))

    def answer(self, answer: bytes, *, keeps: bool = False) -> None:
        """Sends the answer.

        Then waits for the next query if ``keeps`` is True. Otherwise, reads and ignores further bytes until the client
        closes the connection.
        """
        if self._phase is _Phase.CLOSED:
            return
        if not keeps:
            self._received = bytearray()
        self._phase, self._unsent = _Phase.ANSWERED_KEPT if keeps else _Phase.ANSWERED, memoryview(answer)
        self._deadline.cancel()
        self._write()
        if self._unsent:
            self._deadline = self._loop.call_later(ANSWER_S, self.close)
            self._watched |= EVENT_WRITE
            self._loop.add_writer(self._descriptor, self._write)
            self._server.bound_unsent()
        self._server.place_freed()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
            if self._unsent:
                return self._server.reads_on(self)
            if self._phase is _Phase.ANSWERED_KEPT:
                return self._next_request()
            self._socket.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            return self.close()  # the client has disconnected before it got the answer
        self._phase = _Phase.DRAINED
        self._deadline.cancel()
        self._deadline = self._loop.call_later(DRAIN_S, self.close)
        self._send_no_more()
        self._read_on()

    def _send_no_more(self) -> None:
        if self._watched & EVENT_WRITE:
            self._watched &= ~EVENT_WRITE
            self._loop.remove_writer(self._descriptor)

    def _next_request(self) -> None:
        """Waits for the next query. A client may have sent it already."""
        self._phase, self._head, self._reads, self._was_answered = _Phase.READING, None, 0, True
        self._deadline.cancel()
        self._deadline = self._loop.call_later(NEXT_REQUEST_S, self.close)
        self._send_no_more()
        self._server.reads_on(self)
        self._read_on()
        if self._received:
            self._loop.call_soon(self._advance, 0)
