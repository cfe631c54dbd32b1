"""Workers that serve the routes of state from dicts, on real sockets: for clients that are tested without a broker."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from holdfast.infra.system.process import start_mark
from holdfast.processors.engine.serving.endpoint_file import Endpoint, write_endpoint

TOKEN = "token-of-the-state"
#: A reply: status, headers, document (or raw bytes).
Reply = tuple[int, dict[str, str], Any]
#: Replaces the reply to a path and query; None replies as usual.
Fault = Callable[[str], Reply | None]


@dataclass
class World:
    """A processor with one store. ``states`` has the state of each key, by partition."""

    partitions: int = 2
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    owners: dict[int, StateWorker] = field(default_factory=dict)
    #: Whether a key can be in one partition only.
    grouped: bool = True
    processor: str = "shop"
    store: str = "counts"

    def put(self, key: str, state: Any, partition: int | None = None) -> None:
        at = self.candidates(key)[0] if partition is None else partition
        self.states.setdefault(at, {})[key] = state

    def candidates(self, key: str) -> list[int]:
        first = sum(key.encode()) % self.partitions
        return [first] if self.grouped else [first, *(at for at in range(self.partitions) if at != first)]

    def position(self, partition: int) -> dict[str, Any]:
        return {
            "partition": partition,
            "inputs": {"orders": 7},
            "after": f"orders:{partition}:7",
            "committed_at": 1.5,
            "age_s": 0.25,
            "source": "owner",
            "worker": self.owners[partition].slot,
        }


class StateWorker:
    """One worker. ``asked`` has the path and query of each request; ``connections`` counts accepted ones.

    Args:
        listens: Whether it has a socket. Without one, a test calls ``reply`` itself.
    """

    def __init__(self, world: World, slot: str, *, listens: bool = True) -> None:
        self.world, self.slot, self.url = world, slot, f"http://worker-{slot}:1"
        self.asked: list[str] = []
        self.token = TOKEN
        self.fault: Fault = lambda target: None
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self.lives = True
        if listens:
            self.start()

    def start(self) -> StateWorker:
        worker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                worker.connections += 1
                worker._open.add(self.connection)

            def do_GET(self) -> None:
                worker.asked.append(self.path)
                bearer = self.headers.get("Authorization", "")
                status, headers, body = worker.reply(self.path, bearer)
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                with suppress(OSError):
                    self.send_response(status)
                    for name, text in headers.items():
                        self.send_header(name, text)
                    self.send_header("Content-Length", str(len(payload)))
                    self.end_headers()
                    self.wfile.write(payload)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url, self.lives = f"http://127.0.0.1:{self._server.server_address[1]}", True
        return self

    def kill(self) -> None:
        """End at once: the port refuses, and open connections break."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server, self.lives = None, False
            self.drop_connections()

    def drop_connections(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def announce(self, folder: Path) -> None:
        """Write the endpoint file."""
        name = f"holdfast-{self.world.processor}-0123456789ab-{self.slot}"
        mark = start_mark(os.getpid()) or ""
        made = Endpoint(os.getpid(), self.url, "control", mark, state_token=self.token, worker=name)
        write_endpoint(folder / f"{self.world.processor}-{self.slot}.json", made)

    # -- replies ---------------------------------------------------------------------------------------------------

    def reply(self, target: str, bearer: str) -> Reply:
        if bearer != f"Bearer {self.token}":
            return 401, {}, {"error": "the token is missing or wrong"}
        found = self.fault(target)
        return self.served(target) if found is None else found

    def served(self, target: str) -> Reply:
        parts = urlsplit(target)
        params = parse_qs(parts.query, keep_blank_values=True)
        match [unquote(part) for part in parts.path.split("/")[1:]]:
            case ["stores"]:
                told = {"store": self.world.store, "kind": "key-value", "partitions": self.world.partitions, "here": []}
                return 200, {}, {"stores": [told]}
            case ["stores", store, "keys", key] if store == self.world.store:
                return self._key(parts.path, params, _decoded(key, params))
            case ["stores", store, "keys"] if store == self.world.store and "key" in params:
                rows = [self._key("", {}, _decoded(key, params))[2] for key in params["key"]]
                return 200, {}, {"store": self.world.store, "rows": rows}
            case ["stores", store, "keys"] if store == self.world.store:
                return self._page(params)
            case ["stores", store, *_]:
                error = f"Processor shop has no store {store!r}; its stores are {self.world.store}."
                return 404, {}, {"error": error, "action": "Ask for one of these stores.", "fields": {}}
        return 404, {}, {"error": "no such route"}

    def _key(self, path: str, params: dict[str, list[str]], key: str) -> Reply:
        only = params.get("partition")
        read = []
        for at in [int(only[0])] if only else self.world.candidates(key):
            owner = self.world.owners[at]
            if owner is not self and "redirect" in params:
                rest = {name: each for name, each in params.items() if name not in ("redirect", "partition")}
                query = urlencode({**rest, "partition": [str(at)]}, doseq=True)
                return 307, {"Location": f"{owner.url}{path}?{query}"}, {"owner": owner.url}
            if not owner.lives:
                return self.away("The worker that owns the task did not answer.")
            if key in self.world.states.get(at, {}):
                document = {"store": self.world.store, "partition": at, "key": key, "found": True}
                return 200, {}, {**document, "state": self.world.states[at][key], "position": self.world.position(at)}
            read.append(self.world.position(at))
        absent = {"store": self.world.store, "key": key, "found": False, "positions": read}
        return 404, {}, absent if len(read) > 1 else {**absent, "position": read[0]}

    def _page(self, params: dict[str, list[str]]) -> Reply:
        number, _, after = params.get("page", ["0."])[0].partition(".")
        at, limit = int(number), int(params["limit"][0])
        if not self.world.owners[at].lives:
            return self.away("The worker that owns the task did not answer.")
        keys = sorted(key for key in self.world.states.get(at, {}) if key >= _text(after))
        rows = [{"key": key, "state": self.world.states[at][key]} for key in keys[:limit]]
        document = {"store": self.world.store, "partition": at, "rows": rows, "position": self.world.position(at)}
        if keys[limit:]:
            document["next"] = f"{at}.{base64.urlsafe_b64encode(keys[limit].encode()).decode()}"
        elif at + 1 < self.world.partitions:
            document["next"] = f"{at + 1}."
        return 200, {}, document

    @staticmethod
    def away(why: str, retry_after: str = "0.02") -> Reply:
        return 503, {"Retry-After": retry_after}, {"error": why, "action": "Send the query again.", "fields": {}}


def _decoded(key: str, params: dict[str, list[str]]) -> str:
    return _text(key) if "encoding" in params else key


def _text(encoded: str) -> str:
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()


@contextmanager
def state_workers(
    count: int = 2, partitions: int | None = None, *, grouped: bool = True
) -> Iterator[list[StateWorker]]:
    """Workers that own the partitions in turn."""
    world = World(partitions or count, grouped=grouped)
    workers = [StateWorker(world, str(slot)) for slot in range(count)]
    world.owners = {at: workers[at % count] for at in range(world.partitions)}
    try:
        yield workers
    finally:
        for each in workers:
            each.kill()
