"""How both clients use httpx: limits, timeouts, headers, and what its failures mean. It is imported at the first query.

Invariants:
    - No proxy, cookie or automatic redirect is used, whatever the environment variables say.
    - A reply that comes byte by byte ends with the timeout of its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.infra.clock import Clock
from holdfast.processors.client.conversation import Ask
from holdfast.processors.client.replies import Lost, Reply

if TYPE_CHECKING:
    import ssl

    import httpx

#: Maximum number of connections of one client. Further queries wait for a free connection.
CONNECTIONS_MAX = 32
#: Seconds for which an idle connection is kept. A worker closes it after 60 seconds.
IDLE_S = 30.0
#: Maximum seconds for a connection to be made.
CONNECT_S = 2.0


def options(tls: ssl.SSLContext | None, *, has_tls: bool) -> dict[str, Any]:
    """The arguments of ``httpx.Client`` and ``httpx.AsyncClient``.

    Without ``https`` addresses, no certificates of authorities are loaded, because this takes longer than a query.
    """
    import ssl

    import httpx

    verify = tls or (True if has_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return {
        "limits": httpx.Limits(
            max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX, keepalive_expiry=IDLE_S
        ),
        "verify": verify,
        "trust_env": False,
        "follow_redirects": False,
        "headers": {"User-Agent": "holdfast-state-client", "Accept-Encoding": "identity"},
    }


def request_of(ask: Ask) -> dict[str, Any]:
    """The arguments of a request, as ``stream`` of both httpx clients takes them."""
    import httpx

    return {
        "method": "GET",
        "url": ask.worker.url + ask.target,
        "headers": {"Authorization": f"Bearer {ask.worker.token}"},
        "timeout": httpx.Timeout(ask.timeout_s, connect=min(ask.timeout_s, CONNECT_S)),
    }


def lost_of(failure: httpx.HTTPError | httpx.InvalidURL) -> Lost:
    """What a failure of httpx means."""
    import httpx

    dropped = isinstance(failure, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError))
    said = str(failure).strip()
    return Lost(f"{type(failure).__name__}: {said}" if said else type(failure).__name__, dropped)


class Received:
    """The body of a reply while it comes."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._clock, self._sent_at = clock, clock.monotonic()
        self._until = self._sent_at + ask.timeout_s
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Keeps a part of the body. Raises ``httpx.ReadTimeout`` after the timeout of the request."""
        import httpx

        if self._clock.monotonic() > self._until:
            raise httpx.ReadTimeout("the reply is not complete within the timeout")
        self._parts.append(part)

    def reply(self, response: httpx.Response) -> Reply:
        """The complete reply."""
        headers = {name.lower(): text for name, text in response.headers.items()}
        return Reply(response.status_code, headers, b"".join(self._parts), self._sent_at)
