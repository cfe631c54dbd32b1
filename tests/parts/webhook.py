"""A real HTTP server that plays the webhook of a chat service; it can be unreachable, silent, refusing or healthy."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T0000SECRET/B0000SECRET/x0000secret0000token"


class Webhook:
    """A webhook server, unreachable until `start`.

    ``status`` is the status of each answer; None leaves requests unanswered.
    """

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.status: int | None = 200
        self.headers: dict[str, str] = {}
        self.received: list[dict[str, Any]] = []
        self.identities: list[str] = []
        self.patient = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/{SECRET}"

    def start(self) -> Webhook:
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if told.status is None:
                    told.patient.wait(60)
                    return
                if 200 <= told.status < 300:
                    assert self.path == f"/services/{SECRET}"
                    told.received.append(json.loads(body))
                    told.identities.append(self.headers["Idempotency-Key"])
                self.send_response(told.status)
                for name, value in told.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        self.patient.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
