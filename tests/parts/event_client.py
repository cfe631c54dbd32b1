"""An HTTP client that posts events until they are accepted, as clients of an HTTP source must do."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Answered(NamedTuple):
    """An answer: its status, its JSON document, and its headers with names in small letters."""

    status: int
    document: dict[str, Any]
    headers: dict[str, str]


def post(port: int, body: bytes, key: str | None, *, timeout_s: float = 30.0, **more: Any) -> Answered:
    """Send one request. ``more`` may have ``method``, ``path``, ``token`` and ``content_type``."""
    headers = {"Content-Type": more.get("content_type", "application/json")}
    if key is not None:
        headers["Idempotency-Key"] = key
    if more.get("token"):
        headers["Authorization"] = f"Bearer {more['token']}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(more.get("method", "POST"), more.get("path", "/events"), body, headers)
        answer = connection.getresponse()
        got: Mapping[str, str] = {name.lower(): value for name, value in answer.getheaders()}
        return Answered(answer.status, json.loads(answer.read() or b"{}"), dict(got))
    finally:
        connection.close()


class PatientClient(threading.Thread):
    """A thread that posts bodies one after the other, and repeats each until it is accepted.

    Args:
        port: The port of the source.
        bodies: The keys and bodies, in their order.
        ends: Whether the client should give up.
    """

    def __init__(
        self, port: int, bodies: Iterable[tuple[str, bytes]], ends: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(daemon=True)
        self._port, self._bodies, self._ends = port, list(bodies), ends
        self.accepted, self.repeated = 0, 0
        self.done = False

    def run(self) -> None:
        for key, body in self._bodies:
            while not self._is_accepted(key, body):
                if self._ends():
                    return
                self.repeated += 1
                time.sleep(0.002)
            self.accepted += 1
        self.done = True

    def _is_accepted(self, key: str, body: bytes) -> bool:
        try:
            return post(self._port, body, key).status == 200
        except (OSError, http.client.HTTPException):
            return False
