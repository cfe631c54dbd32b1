"""The HTTP server of a source: it receives and limits requests. It answers a request after its events are committed.

    admitted request ──rate, place, key──► inbox of the source ──committed──► 200
                            └── 429 or 503 with Retry-After

Invariants:
    - A request is answered exactly once, and 2xx only by the source, after its commit.
    - The number of waiting requests, and their bytes, are limited. Others are refused at once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.serving.connections import RequestServer, ServingImpossible
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.limits import Allowance
from holdfast.processors.engine.serving.requests import Answer, Head, written

#: The header with the idempotency key, in small letters, and the maximum length of its value.
KEY_HEADER, KEY_LENGTH_MAX = "idempotency-key", 255
#: Paths that tell a load balancer whether this worker runs the source.
HEALTH = ("/health", "/ready")


class PortTaken(HoldfastError):
    """A source can't listen on its address and port. Fields: ``host``, ``port``."""


class HttpLimitsInvalid(BadConfiguration):
    """A limit of an HTTP source has a value that is not allowed. Fields: ``limit``, ``seen``."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of an ``HttpSource``. A request beyond one of them is refused, with the reason.

    Args:
        body_bytes: Maximum bytes of a body, to 16 MiB.
        events: Maximum events of a request, to 10,000.
        rate_per_s: Requests that are accepted in a second, on average.
        waiting: Maximum requests that wait for their commit, to 100.
        keys: Maximum idempotency keys that are remembered, to 5,000,000. Each takes about 300 bytes of memory.
        answer_s: Seconds after which a request that is not committed is answered with 503.
    """

    body_bytes: int = 1 << 20
    events: int = 1_000
    rate_per_s: float = 500.0
    waiting: int = 64
    keys: int = 200_000
    answer_s: float = 30.0

    def __post_init__(self) -> None:
        """Raises HttpLimitsInvalid if a limit is not allowed."""
        most = {"body_bytes": 16 << 20, "events": 10_000, "waiting": 100, "keys": 5_000_000}
        for name, least in (("body_bytes", 1), ("events", 1), ("rate_per_s", 0.01), ("waiting", 1), ("keys", 1)):
            given, top = getattr(self, name), most.get(name, 100_000)
            if isinstance(given, bool) or not isinstance(given, (int, float)) or not least <= given <= top:
                raise HttpLimitsInvalid(
                    f"`{name}` of the limits is {given!r}; expected a number from {least:g} to {top:,}.",
                    action=f"Correct `{name}`.",
                    limit=name,
                    seen=repr(given)[:80],
                )


@dataclass(slots=True, eq=False)
class Request:
    """A request whose events wait for their commit."""

    key: str
    content_type: str
    body: bytes
    _send: Callable[[Answer], None]
    _lock: Lock = field(default_factory=Lock)
    _answered: bool = False

    def answer(self, answer: Answer) -> None:
        """Answers the request. A second answer does nothing."""
        with self._lock:
            if self._answered:
                return
            self._answered = True
        self._send(answer)


class EventGuard(Guard):
    """Checks the token of each request. Without a token, the server must listen on loopback."""

    def __init__(self, serving: ServingSettings, token: str | None) -> None:
        super().__init__(serving, token)
        self._expected = None if token is None else f"Bearer {token}".encode("latin-1")

    def admits(self, method: str, page: str, authorization: str | None) -> bool:
        """Whether a request is allowed: POST with the token of the source; other methods read the health only."""
        if method != "POST" or self._expected is None:
            return True
        scheme, _, token = (authorization or "").partition(" ")
        given = f"{'Bearer' if scheme.lower() == 'bearer' else scheme} {token}".encode("latin-1", "replace")
        return hmac.compare_digest(given, self._expected)


class EventServer(RequestServer):
    """Receives the requests of a source. It listens from its construction, and answers from ``start`` until ``close``.

    Args:
        address: Host and port.
        token: The token that requests must have; None on loopback only.
        path: The path to which events are posted.
        limits: The limits of the source.
        woken: Called after a request came into the inbox.

    Raises:
        PortTaken: The address and port can't be used.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str | None,
        path: str,
        limits: HttpLimits,
        woken: Callable[[], None],
    ) -> None:
        serving = ServingSettings(host=address[0], port=address[1], token=token)
        self._path, self._limits, self._woken = path, limits, woken
        self._rate = Allowance(limits.rate_per_s, max(1.0, limits.rate_per_s))
        #: Requests that the source has not taken, and the number of those that it has taken and not answered.
        self._inbox: list[Request] = []
        self._taken = 0
        self._inbox_lock, self._accepts = Lock(), True
        try:
            super().__init__(serving, EventGuard(serving, token), _unused, [path, *HEALTH], {path: limits.body_bytes})
        except ServingImpossible as failure:
            raise PortTaken(
                f"A source can't listen on {address[0]} port {address[1]}: {failure.message.rpartition(': ')[2]}",
                action="Choose another `port` or `host` for the source, or end the program that has the port.",
                host=address[0],
                port=address[1],
            ) from failure

    def serve(self, connection: Any, head: Head, body: bytes) -> None:
        """Puts a request into the inbox, or answers it at once. It runs on the thread of the sockets."""
        answer = self._at_once(head)
        if answer is not None:
            connection.answer(written(answer, with_body=head.method != "HEAD"))
            return
        assert self._loop is not None
        request = Request(
            head.headers[KEY_HEADER], head.headers.get("content-type", ""), body, partial(self._reply, connection)
        )
        self._loop.call_later(self._limits.answer_s, self._waited, request)
        with self._inbox_lock:
            self._inbox.append(request)
        self._woken()

    @property
    def has_requests(self) -> bool:
        """Whether ``take`` would return requests."""
        return bool(self._inbox)

    def take(self) -> list[Request]:
        """Returns the requests that came since the last call. The source must answer or put back each of them."""
        with self._inbox_lock:
            taken, self._inbox = self._inbox, []
            self._taken = len(taken)
        return taken

    def put_back(self, requests: list[Request]) -> None:
        """Puts requests at the begin of the inbox, because a unit is full."""
        with self._inbox_lock:
            self._inbox[:0] = requests
            self._taken -= len(requests)

    def committed(self) -> None:
        """Must be called after the taken requests are answered: further ones can then wait in their places."""
        with self._inbox_lock:
            self._taken = 0

    def refuse_all(self) -> None:
        """Refuses the waiting requests and all further ones, because the source ends on this worker."""
        self._accepts = False
        for each in self.take():
            each.answer(ENDS)

    def _at_once(self, head: Head) -> Answer | None:
        """The answer to a request that does not come into the inbox; None if it does."""
        if head.page in HEALTH and head.reads:
            return Answer(200, {"status": "ok"}) if self._accepts else ENDS
        if head.page != self._path:
            return Answer(404, {"error": f"no such path; events are posted to {self._path}"})
        if head.method != "POST":
            return Answer(405, {"error": f"{self._path} needs the method POST"}, headers={"Allow": "POST"})
        key = head.headers.get(KEY_HEADER, "")
        if not (0 < len(key) <= KEY_LENGTH_MAX and key.isascii() and key.isprintable()):
            return Answer(
                400,
                {
                    "error": f"the header Idempotency-Key is missing or invalid; expected 1 to {KEY_LENGTH_MAX} "
                    "printable ASCII characters, the same ones when the request is repeated"
                },
            )
        assert self._loop is not None
        if not self._rate.takes_one(self._loop.time()):
            return refusal(429, f"more than {self._limits.rate_per_s:g} requests in a second")
        if not self._accepts:
            return ENDS
        if len(self._inbox) + self._taken >= self._limits.waiting:
            return refusal(503, f"{self._limits.waiting} requests wait for their commit")
        return None

    def _waited(self, request: Request) -> None:
        """Refuses a request that waits too long. One that the source has taken may still be committed."""
        with self._inbox_lock:
            if request in self._inbox:
                self._inbox.remove(request)
        request.answer(refusal(503, "the commit takes too long"))

    def _reply(self, connection: Any, answer: Answer) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(connection.answer, written(answer))
        except RuntimeError:  # the server was closed in the meantime, and with it the connection
            return


def refusal(code: int, why: str, seconds: int = 1) -> Answer:
    """The answer to a request that the client must repeat, with the same idempotency key."""
    return Answer(
        code, {"error": f"{why}; repeat the request with the same key"}, headers={"Retry-After": f"{seconds}"}
    )


ENDS = refusal(503, "this worker does not run the source any more")


def _unused(method: str, page: str, body: bytes) -> Answer:
    raise NotImplementedError  # EventServer.serve answers all requests
