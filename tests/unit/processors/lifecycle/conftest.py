"""A real supervisor, a real registry (Holdfast's database), and a small real program in place of a processor.

The program is a package named ``processors`` in a separate folder, and is started like a processor in production. It
serves its status over HTTP. The file ``acts.json`` has one act (what the program does) for each start. The last act is
for all later starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.paths import Paths
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus, TaskStatus
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.ports import World

PROGRAM = """
import http.server, json, os, pathlib, sys, threading, time

home = pathlib.Path(os.environ["HOLDFAST_HOME"])
slot = sys.argv[sys.argv.index("--slot") + 1]
name = sys.argv[sys.argv.index("--processor") + 1] + "-" + slot
starts = home / (name + ".starts")
number = int(starts.read_text()) if starts.exists() else 0
starts.write_text(str(number + 1))
acts = json.loads((home / "acts.json").read_text())
act = acts[min(number, len(acts) - 1)]
print("start", number, "of slot", slot, flush=True)
born = time.time()
(home / "run").mkdir(exist_ok=True)
endpoint = home / "run" / (name + ".json")

asked = 0

def status():
    global asked
    asked += 1
    running = time.time() - born >= act.get("restore_s", 0)
    at = {"committed": 0, "position": 0, "end": 0, "lag": act.get("lag", 0)}
    phases = act.get("phases", [act.get("phase", "running")])
    tasks = [
        {"task": "flights-%d" % p, "subtopology": "flights", "partition": p, "inputs": {"flights": at},
         "phase": "running" if running else "restoring", "stores": {}, "restore": None}
        for p in act.get("partitions", {}).get(slot, [])
    ]
    return json.dumps({
        "processor": "fleet", "slot": slot, "pid": os.getpid(), "guarantee": "exactly-once",
        "phase": phases[min(asked, len(phases)) - 1] if running else "restoring",
        "code_version": act.get("version", "v1"), "started_at": born,
        "heartbeat_at": born if act.get("stuck") else time.time(), "error": act.get("error"),
        "silent_s": None if act.get("stuck") else 0.0,
        "records": act.get("records", {}), "commits": {}, "tasks": tasks,
    })

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(status().encode())

    def log_message(self, *arguments):
        pass

if act.get("exit") is not None:
    print("giving up", flush=True)
    if act.get("error"):
        endpoint.with_suffix(".failed.json").write_text(status())
    sys.exit(act["exit"])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
new = endpoint.with_suffix(".new")
new.write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:%d" % server.server_address[1], "token": "t"}))
new.replace(endpoint)
server.serve_forever()
"""


@dataclass(frozen=True)
class Stage:
    """What a lifecycle test works with: ports to the world outside, supervisor, registry (database) and rollout."""

    world: World
    supervisor: Supervisord
    registry: Registry
    rollout: Rollout

    def acts(self, *acts: Mapping[str, Any]) -> None:
        """Set what the program does at its first, second and later starts."""
        partitions = {"0": [0, 1], "1": [2, 3]}
        home = self.world.paths.home
        home.mkdir(parents=True, exist_ok=True)
        (home / "acts.json").write_text(json.dumps([{"partitions": partitions, **act} for act in acts]))
        for starts in home.glob("*.starts"):
            starts.unlink()

    def pid(self, slot: str) -> int:
        pid = self.supervisor.programs()[f"fleet-{slot}"].pid
        assert pid is not None
        return pid

    def version(self, code_version: str) -> Rollout:
        return replace(self.rollout, code_version=code_version)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "not within 30 s"
            time.sleep(0.05)

    return wait


def _task(partition: int, phase: str = "running") -> TaskStatus:
    position = InputPosition(committed=None, position=None, end=None, lag=None)
    return TaskStatus(f"flights-{partition}", "flights", partition, phase, {"flights": position})


def _status(**facts: Any) -> ProcessorStatus:
    usual: dict[str, Any] = {"processor": "fleet", "slot": "0", "pid": 7, "phase": "running", "guarantee": ""}
    moments: dict[str, Any] = {"started_at": 0.0, "heartbeat_at": 0.0}
    rest: dict[str, Any] = {"code_version": "v1", "error": None, "records": {}, "commits": {}, "tasks": ()}
    return ProcessorStatus(**{**usual, **moments, **rest, **facts})


@pytest.fixture
def make_status() -> Callable[..., ProcessorStatus]:
    return _status


@pytest.fixture
def make_task() -> Callable[..., TaskStatus]:
    return _task


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    project = tmp_path / "project"
    worker = project / "holdfast" / "processors"
    worker.mkdir(parents=True)
    (worker / "__main__.py").write_text(PROGRAM)
    for package in (worker, worker.parent):
        (package / "__init__.py").write_text("")
    paths = Paths(tmp_path / "home")
    registry = Registry(f"sqlite:///{paths.registry}")
    registry.migrate()
    supervisor = Supervisord(paths)
    world = World(
        deployer=supervisor,
        statuses=lambda processor, slot: ProcessorClient(processor, slot, paths),
        registry=registry,
        paths=paths,
    )
    rollout = Rollout(
        "fleet",
        "v1",
        ("0", "1"),
        {"flights": 4},
        {"HOLDFAST_HOME": str(paths.home), "PYTHONPATH": str(project)},
        project,
    )
    stage = Stage(world, supervisor, registry, rollout)
    stage.acts({})
    yield stage
    supervisor.stop()
    registry.close()
