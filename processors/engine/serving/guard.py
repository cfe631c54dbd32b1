"""Decides who may read a worker's status, and who may control or stop a worker.

    request                                    server on loopback           server that other machines reach
    GET /health, /ready                        every program                every program
    GET other routes                           every program                with the token of reads, or of control
    POST (control, stop, owner commands)       with the token of control    with the token of control

A control token is valid for one worker, from its start to its end. It is derived from the secret in the settings; the
secret itself gives no control. So a program that sees the data sent to one worker can control no other worker, and no
later process of the same slot.

On loopback, a request whose ``Host`` header has a foreign name is refused: a web page could otherwise resolve its own
name to 127.0.0.1 and read through a browser on this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import urlsplit

from holdfast.infra.masking import remember
from holdfast.infra.settings import ServingSettings

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
#: Routes that only report whether the worker is healthy; probes of other machines have no token.
OPEN_PAGES = frozenset({"/health", "/ready"})


#: The prefix of the text from which a control token is derived; another use of the secret needs another prefix.
_CONTROL_LABEL = "holdfast control 1"


def control_token(secret: str, processor: str, slot: str, pid: int, mark: str) -> str:
    """The token that controls one process of a worker: an HMAC-SHA256 over its identity, as hex.

    Names of processors and slots hold no NUL, so that two identities never give the same text.
    """
    identity = "\0".join((_CONTROL_LABEL, processor, slot, str(pid), mark))
    return hmac.new(secret.encode(), identity.encode(), hashlib.sha256).hexdigest()


class Guard:
    """Checks the host name and the token of each request.

    Args:
        token: The token of control; None draws a random one.
    """

    def __init__(self, serving: ServingSettings, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        remember((self.token,))
        #: The secret opens reads for scrapers that know no other token; a separate read token replaces it.
        reads = serving.read_token or serving.token
        self._controls = (_header(self.token),)
        self._reads = self._controls if reads is None else (*self._controls, _header(reads))
        self._on_loopback = serving.on_loopback
        self._names = _LOOPBACK_NAMES | {serving.host.lower()}

    @property
    def reads_need_token(self) -> bool:
        """Whether a read of the status needs a token."""
        return not self._on_loopback

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
        expected = self._reads if reads else self._controls
        return any(hmac.compare_digest(given, each) for each in expected)


def _header(token: str) -> bytes:
    return f"Bearer {token}".encode("latin-1")
