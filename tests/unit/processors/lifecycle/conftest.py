"""A real supervisor, a real registry, and a small real program in the place of a processor.

The program is a package ``processors`` of its own in a folder of its own, started as the product starts
processors. It serves its status over HTTP as told by ``acts.json``: one act for each start, the last one for all
further starts.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from infra.database.registry import Registry
from infra.deploy.supervisord import Supervisord
from infra.paths import Paths
from processors.lifecycle.deployment import Rollout
from processors.lifecycle.ports import World

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
print("start", number, flush=True)
if act.get("exit") is not None:
    print("giving up", flush=True)
    sys.exit(act["exit"])
born = time.time()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        running = time.time() - born >= act.get("restore_s", 0)
        phase = act.get("phase", "running") if running else "restoring"
        body = json.dumps({
            "phase": phase, "pid": os.getpid(), "code_version": act.get("version", "v1"),
            "heartbeat_at": born if act.get("stuck") else time.time(), "error": act.get("error"),
            "tasks": [
                {"partition": p, "phase": "running" if running else "restoring", "inputs": {"flights": {}}}
                for p in act.get("partitions", {}).get(slot, [])
            ],
        }).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
(home / "run").mkdir(exist_ok=True)
endpoint = home / "run" / (name + ".json")
new = endpoint.with_suffix(".new")
new.write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:%d" % server.server_address[1], "token": "t"}))
new.replace(endpoint)
server.serve_forever()
"""


@dataclass(frozen=True)
class Position:
    committed: int | None = None
    position: int | None = None
    end: int | None = None
    lag: int | None = None


@dataclass(frozen=True)
class Task:
    partition: int
    phase: str = "running"
    inputs: Mapping[str, Position] = field(default_factory=lambda: {"flights": Position()})


@dataclass(frozen=True)
class Status:
    phase: str = "running"
    pid: int = 7
    code_version: str = "v1"
    heartbeat_at: float = 0.0
    error: Mapping[str, Any] | None = None
    tasks: tuple[Task, ...] = ()


@dataclass(frozen=True)
class Client:
    endpoint: Path

    def status(self, timeout_s: float = 2.0) -> Status | None:
        try:
            url = json.loads(self.endpoint.read_text())["url"]
            with urllib.request.urlopen(f"{url}/status", timeout=timeout_s) as answer:
                said = json.load(answer)
        except (OSError, urllib.error.URLError):
            return None
        tasks = [
            Task(task["partition"], task["phase"], {topic: Position() for topic in task["inputs"]})
            for task in said.pop("tasks")
        ]
        return Status(**said, tasks=tuple(tasks))


@dataclass(frozen=True)
class Stage:
    """Everything that a test of the lifecycle needs."""

    world: World
    supervisor: Supervisord
    registry: Registry
    rollout: Rollout

    def acts(self, *acts: Mapping[str, Any]) -> None:
        """What the program does at its first, second, ... start."""
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


@pytest.fixture
def make_status() -> type[Status]:
    return Status


@pytest.fixture
def make_task() -> type[Task]:
    return Task


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    project = tmp_path / "project"
    (project / "processors").mkdir(parents=True)
    (project / "processors" / "__main__.py").write_text(PROGRAM)
    (project / "processors" / "__init__.py").write_text("")
    paths = Paths(tmp_path / "home")
    registry = Registry(f"sqlite:///{paths.registry}")
    registry.migrate()
    supervisor = Supervisord(paths)
    world = World(
        deployer=supervisor,
        statuses=lambda processor, slot: Client(paths.endpoint(processor, slot)),
        registry=registry,
        paths=paths,
    )
    rollout = Rollout("fleet", "v1", ("0", "1"), {"flights": 4}, {"HOLDFAST_HOME": str(paths.home)}, project)
    stage = Stage(world, supervisor, registry, rollout)
    stage.acts({})
    yield stage
    supervisor.stop()
    registry.close()
