"""Many cheap processors.

A real supervisor runs `sleep` for each processor, and one HTTP server answers for all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.program_files import ProgramSpec
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.settings import Settings
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus, TaskStatus

PROCESSORS, STORES, PARTITIONS = 50, 4, 4
MODULE = """
from holdfast import Application

def count(value, state):
    state.set("n", state.get("n", 0) + 1)
    return value

def make(number):
    application = Application(consumer_group=f"p{{number:02}}", auto_offset_reset="earliest")
    frame = application.dataframe(application.topic(f"p{{number:02}}-in"))
    for store in range({stores}):
        frame = frame.apply(count, stateful=True, store=f"store{{store}}")
    return application

for number in range({processors}):
    globals()[f"p{{number:02}}"] = make(number)
"""


def names(processors: int = PROCESSORS) -> list[str]:
    return [f"p{number:02}" for number in range(processors)]


def write_definitions(folder: Path, module: str) -> str:
    """Write a module that defines all processors. Returns the value of HOLDFAST_PROCESSORS."""
    (folder / f"{module}.py").write_text(MODULE.format(processors=PROCESSORS, stores=STORES))
    return json.dumps([f"{module}:{name}" for name in names()])


class _Server(ThreadingHTTPServer):
    request_queue_size = 256


def _has_hung_up(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


class Fleet:
    """Deployed processors that all look healthy.

    It has their programs, their endpoint files, and one server that answers.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.supervisor = Supervisord(settings.paths)
        self.questions: list[str] = []
        #: ``silent``: processors whose requests get no answer until the fleet stops. ``waiting``: the open connections
        #: to silent processors. ``most_waiting``: the largest number of such connections at the same time.
        self.silent: set[str] = set()
        self.lock = threading.Lock()
        self.waiting: set[socket.socket] = set()
        self.most_waiting = 0
        self.patient = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._pids: dict[str, int] = {}
        self._began = time.time()

    def start(self, registry: Registry, processors: int = PROCESSORS) -> Fleet:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        paths = self.settings.paths
        self.supervisor.start()
        paths.run.mkdir(parents=True, exist_ok=True)
        for name in names(processors):
            program = paths.program(name, "0")
            spec = ProgramSpec(program, ("/bin/sleep", "3600"), {}, paths.home, paths.program_log(name, "0"))
            self.supervisor.apply(spec)
            self.supervisor.start_program(program)
            registry.record_deployment(name, "v1", ["0"], datetime.now(UTC))
        deadline = time.monotonic() + 120
        while not all(each.alive and each.pid for each in self.supervisor.programs().values()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for program, status in self.supervisor.programs().items():
            name = program.removesuffix("-0")
            assert status.pid is not None
            self._pids[name] = status.pid
            url = f"http://127.0.0.1:{self._server.server_address[1]}/{name}"
            document = {"pid": status.pid, "url": url, "token": "of the test, none"}
            paths.endpoint(name, "0").write_text(json.dumps(document))
        threading.Thread(target=self._give_signs_of_life, daemon=True).start()
        return self

    def _give_signs_of_life(self) -> None:
        """Touch the endpoint files as workers do. The files of silent processors are touched as well."""
        while not self.patient.wait(1.0):
            for name in self._pids:
                with contextlib.suppress(OSError):
                    os.utime(self.settings.paths.endpoint(name, "0"))

    def stop(self) -> None:
        self.patient.set()
        self._server.shutdown()
        self._server.server_close()
        self.supervisor.stop()

    def status(self, name: str) -> dict[str, Any]:
        tasks = tuple(
            TaskStatus(f"0_{number}", "0", number, "running", {f"{name}-in": InputPosition(9, 9, 10, 1)})
            for number in range(PARTITIONS)
        )
        now = time.time()
        facts = (name, "0", self._pids[name], "running", "exactly-once", "v1", self._began, now, None)
        status = ProcessorStatus(*facts, records={"processed": int((now - self._began) * 100)}, commits={}, tasks=tasks)
        return asdict(status)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fleet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.split("/")[1]
                fleet.questions.append(name)
                if name in fleet.silent:
                    with fleet.lock:
                        fleet.waiting.add(self.connection)
                        # Clients that have closed their connection since the last check do not wait any more.
                        waiting = [each for each in fleet.waiting if not _has_hung_up(each)]
                        fleet.most_waiting = max(fleet.most_waiting, len(waiting))
                    self._await_hang_up()
                    with fleet.lock:
                        fleet.waiting.discard(self.connection)
                    return
                body = msgspec.json.encode(fleet.status(name))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # the client has closed its connection
                    self.wfile.write(body)

            def _await_hang_up(self) -> None:
                """Wait until the client hangs up or the fleet stops."""
                while not fleet.patient.wait(0.05) and not _has_hung_up(self.connection):
                    pass

            def log_message(self, *_: Any) -> None: ...

        return Handler
