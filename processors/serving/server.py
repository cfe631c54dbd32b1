"""HTTP on loopback: ``GET /health``, ``GET /status``; with the token ``POST /checkpoint``, ``POST /stop``.

The server's threads never touch the worker's state: they hand requests to the worker's loop and wait. A loop that
does not answer in time gives 503, which is how a stuck worker looks from outside; the last status that the loop
published is served meanwhile, with the heartbeat that shows its age.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import structlog

from processors.runtime.loop import Request, Worker
from processors.serving.checkpoint import take_checkpoint
from processors.serving.status import describe_worker

_log = structlog.get_logger("serving")

#: How long a request waits for the loop, in seconds.
STATUS_WAIT_S = 1.0
CONTROL_WAIT_S = 120.0


class ControlServer:
    """Serves one worker.

    Args:
        worker: The worker.
        processor: The processor's name.
        slot: The worker's slot.
        endpoint: The file that tells others where this server is (pid, url, token; mode 0600).
        checkpoints: Where checkpoints go.
    """

    def __init__(self, worker: Worker, processor: str, slot: str, endpoint: Path, checkpoints: Path) -> None:
        self._worker = worker
        self._processor = processor
        self._slot = slot
        self._endpoint = endpoint
        self._checkpoints = checkpoints
        self._token = secrets.token_urlsafe(24)
        self._error: Mapping[str, Any] | None = None
        self._last: dict[str, Any] = describe_worker(worker, processor, slot, None)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    def start(self) -> str:
        """Serve in the background; return the URL."""
        threading.Thread(target=self._server.serve_forever, name="control", daemon=True).start()
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._endpoint.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._endpoint.with_suffix(f".{os.getpid()}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"pid": os.getpid(), "url": url, "token": self._token}, file)
        temporary.replace(self._endpoint)
        return url

    def failed(self, error: Mapping[str, Any]) -> None:
        """The worker stopped with an error: leave it where a reader finds it after this process is gone."""
        self._error = error
        self._last = {**describe_worker(self._worker, self._processor, self._slot, error), "tasks": []}
        failure = self._endpoint.with_suffix(".failed.json")
        try:
            failure.write_text(json.dumps(self._last))
        except OSError as why:
            _log.error("the failure could not be written down", path=str(failure), error=str(why))

    def close(self) -> None:
        """Stop serving; take the endpoint file away if it is still ours."""
        self._server.shutdown()
        self._server.server_close()
        try:
            if json.loads(self._endpoint.read_text())["pid"] == os.getpid():
                self._endpoint.unlink()
        except (OSError, ValueError, KeyError):
            return

    def status(self) -> dict[str, Any]:
        """The status as of now, or the last known one when the loop does not answer."""
        answer = self._on_loop(
            lambda: describe_worker(self._worker, self._processor, self._slot, self._error),
            STATUS_WAIT_S,
            only_reads=True,
        )
        if answer is not None:
            self._last = answer
        return {**self._last, "heartbeat_at": self._worker.heartbeat_at}

    def checkpoint(self) -> dict[str, Any] | None:
        """Commit, then checkpoint every running task; None when the loop does not answer."""

        def take() -> dict[str, Any]:
            self._worker.commit_now()
            return take_checkpoint(list(self._worker.assignment.tasks), self._processor, self._checkpoints)

        return self._on_loop(take, CONTROL_WAIT_S, only_reads=False)

    def _on_loop(self, work: Callable[[], dict[str, Any]], wait_s: float, *, only_reads: bool) -> dict[str, Any] | None:
        done = threading.Event()
        result: dict[str, Any] = {}

        def run() -> None:
            try:
                result["value"] = work()
            except Exception as failure:
                result["error"] = failure
            finally:
                done.set()

        self._worker.requests.append(Request(run, only_reads))
        if not done.wait(wait_s):
            return None
        if "error" in result:
            raise result["error"]
        value: dict[str, Any] = result["value"]
        return value

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/health":
                    silent = time.time() - server._worker.heartbeat_at
                    self._answer(200, {"status": "ok", "silent_s": round(silent, 3)})
                elif self.path == "/status":
                    self._answer(200, server.status())
                else:
                    self._answer(404, {"error": f"no page {self.path}; there are /health and /status"})

            def do_POST(self) -> None:
                given = self.headers.get("Authorization", "")
                if not secrets.compare_digest(given, f"Bearer {server._token}"):
                    self._answer(401, {"error": "the token is missing or wrong; it is in the endpoint file"})
                elif self.path == "/checkpoint":
                    self._checkpoint()
                elif self.path == "/stop":
                    server._worker.stop()
                    self._answer(202, {"status": "stopping"})
                else:
                    self._answer(404, {"error": f"no verb {self.path}; there are /checkpoint and /stop"})

            def _checkpoint(self) -> None:
                try:
                    answer = server.checkpoint()
                except Exception as failure:
                    self._answer(500, {"error": str(failure)})
                    return
                if answer is None:
                    self._answer(503, {"error": f"the worker did not answer within {CONTROL_WAIT_S:g} s"})
                else:
                    self._answer(200, answer)

            def _answer(self, code: int, document: Mapping[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler
