"""Who may ask what: the token, and the names under which the server may be addressed.

On loopback every program of this machine may read; so may a web page in a browser on it, if a foreign name were made
to mean 127.0.0.1, which is why foreign names are refused there. Where other machines reach the server, reading needs
the token, too. Control needs it everywhere.
"""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from holdfast.infra.settings import ServingSettings

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
#: What says no more than whether the worker works; probes of other machines have no token.
OPEN_PAGES = frozenset({"/health", "/ready"})


class Guard:
    """Decides about requests.

    Args:
        serving: Where the server listens, and its token; without one, a token is drawn.
    """

    def __init__(self, serving: ServingSettings) -> None:
        self.token = serving.token or secrets.token_urlsafe(24)
        self._expected = f"Bearer {self.token}".encode("latin-1")
        self._on_loopback = serving.on_loopback
        self._names = _LOOPBACK_NAMES | {serving.host.lower()}

    def __repr__(self) -> str:
        """Without the token."""
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
        """Whether a request may be served."""
        reads = method in ("GET", "HEAD")
        if reads and (self._on_loopback or page in OPEN_PAGES):
            return True
        scheme, _, token = (authorization or "").partition(" ")
        given = f"{'Bearer' if scheme.lower() == 'bearer' else scheme} {token}".encode("latin-1", "replace")
        return secrets.compare_digest(given, self._expected)
