"""Decides which HTTP requests may read a worker's status, and which may control or stop the worker.

    request                                    server on loopback           server reachable from other machines
    GET /health, /ready                        allowed without a token      allowed without a token
    GET other routes                           allowed without a token      with a read token or a control token
    GET of state (/stores, /tables, …)         with a token of state        with a token of state
    POST (control, stop, owner commands)       with the control token       with the control token

The control token is also a token of state. ``state_token`` of the settings reads all stores, and each token of
``store_tokens`` reads one store. Without these settings, only programs that can read the endpoint file read state.

A control token is valid for one worker process only. It is derived from a secret in the settings; without a secret, it
is random. The secret itself is not accepted for control. If a program sees the traffic to one worker, it can therefore
control neither another worker nor a later process that takes this worker's place.

On loopback, a request is refused if its ``Host`` header has another name than this server. Otherwise a web page could
resolve its own name to 127.0.0.1, and read the status through a browser on this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import urlsplit

from holdfast.infra.masking import remember
from holdfast.infra.settings import ServingSettings
from holdfast.infra.settings.serving import LOOPBACK_NAMES

#: Routes that only report whether the worker is healthy. They need no token, because health probes have no token.
OPEN_PAGES = frozenset({"/health", "/ready"})


#: The prefix of the text from which a control token is derived. Other tokens that are derived from the same secret must
#: use another prefix.
_CONTROL_LABEL = "holdfast control 1"
#: The text from which the token of state is derived, if the settings have a secret and no such token. All workers of an
#: installation with one secret have the same token, so that they can forward queries to each other.
_STATE_LABEL = "holdfast state 1"


def control_token(secret: str, processor: str, slot: str, pid: int, mark: str) -> str:
    """Returns the token that controls one process of a worker: an HMAC-SHA256 of the process's identity, as hex.

    The parts of the identity are joined by NUL characters, which no name contains. So two identities never give one
    text.
    """
    identity = "\0".join((_CONTROL_LABEL, processor, slot, str(pid), mark))
    return hmac.new(secret.encode(), identity.encode(), hashlib.sha256).hexdigest()


def state_token(serving: ServingSettings) -> str | None:
    """Returns the token that reads the state of all stores, for queries between workers; None without a secret."""
    if serving.state_token is not None:
        return serving.state_token
    secret = serving.token
    return None if secret is None else hmac.new(secret.encode(), _STATE_LABEL.encode(), hashlib.sha256).hexdigest()


class Guard:
    """Checks the host name and the token of each HTTP request.

    Args:
        token: The control token; None generates a random token.
    """

    def __init__(self, serving: ServingSettings, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(24)
        #: The token that reads the state of all stores.
        self.state_token = state_token(serving) or secrets.token_urlsafe(24)
        remember((self.token, self.state_token, *serving.store_tokens.values()))
        #: Tokens that allow reads: the control token, and the read token of the settings (or the secret, if there is no
        #: read token). Metrics scrapers, for example, use the read token.
        reads = serving.read_token or serving.token
        self._controls = (_header(self.token),)
        self._reads = self._controls if reads is None else (*self._controls, _header(reads))
        self._of_state = (_header(self.state_token), _header(self.token))
        self._of_stores = {store: _header(token) for store, token in serving.store_tokens.items()}
        self._on_loopback = serving.on_loopback
        self._names = LOOPBACK_NAMES | {serving.host.lower()}

    @property
    def reads_need_token(self) -> bool:
        """Whether requests that read the status need a token."""
        return not self._on_loopback

    def __repr__(self) -> str:
        """Returns the guard as text without its token, so that the token gets into no log."""
        return f"Guard(on_loopback={self._on_loopback})"

    def knows_name(self, host: str | None) -> bool:
        """Whether the ``Host`` header is accepted. On loopback, it must be a name of this server."""
        if not self._on_loopback:
            return True
        try:
            return urlsplit(f"//{host or ''}").hostname in self._names
        except ValueError:
            return False

    def admits(self, method: str, page: str, authorization: str | None) -> bool:
        """Whether a request is allowed, by its method, route and ``Authorization`` header."""
        reads = method in ("GET", "HEAD")
        if reads and (self._on_loopback or page in OPEN_PAGES):
            return True
        given, expected = _given(authorization), self._reads if reads else self._controls
        return any(hmac.compare_digest(given, each) for each in expected)

    def admits_state(self, store: str, authorization: str | None) -> bool:
        """Whether a request may read the state of a store. An empty ``store`` stands for the list of stores."""
        given = _given(authorization)
        expected = [*self._of_state, *(token for name, token in self._of_stores.items() if store in (name, ""))]
        return any(hmac.compare_digest(given, each) for each in expected)


def _given(authorization: str | None) -> bytes:
    scheme, _, token = (authorization or "").partition(" ")
    return f"{'Bearer' if scheme.lower() == 'bearer' else scheme} {token}".encode("latin-1", "replace")


def _header(token: str) -> bytes:
    return f"Bearer {token}".encode("latin-1")
