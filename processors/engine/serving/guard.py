"""Decides who may read a worker's status, and who may control or stop a worker.

    request                                    server on loopback           server that other machines reach
    GET /health, /ready                        every program                every program
    GET other routes                           every program                with the token
    POST (control, stop, owner commands)       with the token               with the token

On loopback, a request whose ``Host`` header has a foreign name is refused: a web page could otherwise resolve its own
name to 127.0.0.1 and read through a browser on this machine.
"""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from holdfast.infra.masking import remember
from holdfast.infra.settings import ServingSettings

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
#: Routes that say only whether the worker works; probes of other machines have no token.
OPEN_PAGES = frozenset({"/health", "/ready"})


class Guard:
    """Checks the host name and the token of each request; without a token in the settings, a random one is drawn."""

    def __init__(self, serving: ServingSettings) -> None:
        self.token = serving.token or secrets.token_urlsafe(24)
        remember((self.token,))
        self._expected = f"Bearer {self.token}".encode("latin-1")
        self._on_loopback = serving.on_loopback
        self._names = _LOOPBACK_NAMES | {serving.host.lower()}

    def __repr__(self) -> str:
        """The guard without its token, for logs."""
        return f"Guard(on_loopback={self._on_loopback})"

    def knows_name(self, host: str | None) -> bool:
        """Whether a ``Host`` header names this server."""
        if not self._on_loopback:
            return True
        try:
            return urlsplit(f"//{host or ''}").hostname in self._names
        except ValueError:
            return False

    def admits(self, method: str, page: str, authorization: str | None) -> bool:
        """Whether a request may be served, by its method, route and ``Authorization`` header."""
        reads = method in ("GET", "HEAD")
        if reads and (self._on_loopback or page in OPEN_PAGES):
            return True
        scheme, _, token = (authorization or "").partition(" ")
        given = f"{'Bearer' if scheme.lower() == 'bearer' else scheme} {token}".encode("latin-1", "replace")
        return secrets.compare_digest(given, self._expected)
