"""Sends one HTTP request with Python's own client, because a command asks each worker and the webserver only once.

To import the library httpx takes 70 ms of CPU, which is a tenth of the CPU time of an everyday command.

Invariants:
    - No proxy, cookie or redirect is used, whatever the environment variables say.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

#: The errors that ``request`` raises. ValueError: the URL or a header is invalid. All others: the server does not
#: answer, or its answer is not HTTP.
FAILURES = (OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer: its HTTP status, and its body."""

    status_code: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status_code < 300

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 are replaced."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """The body as a JSON document; raises ValueError or RecursionError if it is none."""
        return json.loads(self.content)


def request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    on_connect: Callable[[], None] | None = None,
) -> Answer:
    """Send a request, and return the answer.

    Args:
        timeout_s: Timeout of each step (connect, send, read), in seconds.
        on_connect: Function that is called after the connection is made, before a byte is sent. If it raises an
            error, nothing is sent.

    Raises:
        OSError, http.client.HTTPException, ValueError: The server does not answer, or the URL or a header is invalid.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is no URL of a server; expected http://HOST:PORT/PATH.")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.connect()
        if on_connect is not None:
            on_connect()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body or None, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    finally:
        connection.close()


def post_json(url: str, document: object, *, timeout_s: float, headers: Mapping[str, str] | None = None) -> Answer:
    """Send a JSON document with POST, and return the answer; raises the same errors as ``request``."""
    typed = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
    return request("POST", url, timeout_s=timeout_s, body=json.dumps(document).encode(), headers=typed)
