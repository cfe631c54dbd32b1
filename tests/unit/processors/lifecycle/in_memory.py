"""A processor with simulated workers. The registry (Holdfast's database) is a real SQLite file.

The supervisor and the workers' answers are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.program_files import ProgramSpec, ProgramStatus, SupervisorSilent
from holdfast.infra.paths import Paths
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus, TaskStatus
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.ports import World

NAME = "orders"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
#: The holder of an apply (the process that executes a plan), on another machine.
ELSEWHERE = "another-host/boot/namespace/1/1/random"


@dataclass
class Worker:
    """One worker: its process, how the process ended, and its answer."""

    slot: str
    pid: int | None = None
    exit_status: int | None = None
    signal: str | None = None
    error: dict[str, Any] | None = None
    started_at: datetime = NOW
    #: Whether a started process keeps running. Otherwise it ends at once.
    restarts: bool = True
    #: Whether the worker answers no request.
    silent: bool = False

    def kill(self, signal: str = "SIGKILL") -> None:
        """End the worker's process with a signal."""
        self.pid, self.exit_status, self.signal, self.error = None, None, signal, None

    def fail(self, cause: str, message: str, **fields: Any) -> None:
        """End the worker's process with an error."""
        error = {"type": "Failure", "message": message, "action": "mend it", "cause": cause, "fields": fields}
        self.pid, self.exit_status, self.signal, self.error = None, 1, None, error


@dataclass
class Installation:
    """A processor's supervisor and its workers' answers. Each worker owns one partition of topic ``placed``."""

    registry: Registry
    paths: Paths
    slots: tuple[str, ...] = ("0",)
    now: datetime = NOW
    workers: dict[str, Worker] = field(default_factory=dict)
    #: Each start, stop or other change of a program, in order.
    done: list[str] = field(default_factory=list)
    #: Whether the supervisor hangs: its process runs, but does not answer.
    hangs: bool = False
    #: Called before a program is started.
    before_start: Callable[[], None] = lambda: None
    _pids: int = 100

    def __post_init__(self) -> None:
        for slot in self.slots:
            self.workers[self.paths.program(NAME, slot)] = Worker(slot)
            self.start_program(self.paths.program(NAME, slot))
        self.done.clear()
        self.registry.record_deployment(NAME, "v1", self.slots, NOW)

    @property
    def world(self) -> World:
        """The ports through which the lifecycle code uses this installation."""
        return World(self, lambda _, slot: self.answer(slot), self.registry, self.paths, lambda: self.now)  # type: ignore[arg-type]

    @property
    def rollout(self) -> Rollout:
        """A rollout of the deployed version."""
        return Rollout(NAME, "v1", self.slots, {"placed": len(self.slots)}, {}, self.paths.home)

    def worker(self, slot: str = "0") -> Worker:
        """The worker in this slot (place)."""
        return self.workers[self.paths.program(NAME, slot)]

    def pass_time(self, seconds: float) -> None:
        """Move the clock of this machine forward."""
        self.now += timedelta(seconds=seconds)

    # --- the deployer ---------------------------------------------------------------------------------------

    def start(self, timeout_s: float = 0.0) -> int:
        return 1

    def running(self) -> bool:
        self._answer()
        return True

    def _answer(self) -> None:
        if self.hangs:
            action = "End it and start another one: `holdfast down`, then `holdfast up`."
            raise SupervisorSilent("The supervisor hangs.", action=action, folder="", pid=1)

    def apply(self, spec: ProgramSpec) -> bool:
        return False

    def differs(self, spec: ProgramSpec) -> bool:
        return False

    def start_program(self, name: str) -> None:
        self.before_start()
        self._answer()
        worker = self.workers[name]
        self._pids += 1
        self.done.append(f"start {worker.slot}")
        if worker.restarts:
            worker.pid, worker.exit_status, worker.signal, worker.error = self._pids, None, None, None
        worker.started_at = self.now

    def stop_program(self, name: str) -> None:
        self.done.append(f"stop {self.workers[name].slot}")
        self.workers[name].kill("SIGTERM")

    def kill_program(self, name: str) -> None:
        self.done.append(f"kill {self.workers[name].slot}")
        self.workers[name].kill()

    def remove(self, name: str) -> None:
        self.workers.pop(name, None)

    def remove_all(self, names: Collection[str]) -> None:
        for name in names:
            self.remove(name)

    def programs(self) -> dict[str, ProgramStatus]:
        self._answer()
        return {name: self._program(name, each) for name, each in self.workers.items()}

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        return ()

    @staticmethod
    def _program(name: str, each: Worker) -> ProgramStatus:
        state = "EXITED" if each.pid is None else "RUNNING"
        return ProgramStatus(
            name, state, each.pid, each.exit_status, each.started_at, each.signal, started_at=each.started_at
        )

    # --- the workers ----------------------------------------------------------------------------------------

    def answer(self, slot: str) -> Any:
        """Return an object that reports the status of the worker in this slot (place)."""
        return _Source(self, self.worker(slot))


@dataclass
class _Source:
    installation: Installation
    worker: Worker

    def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
        return None if self.worker.pid is None or self.worker.silent else self._status("running")

    def last_heartbeat(self, pid: int | None) -> datetime | None:
        return None

    def last_failure(self) -> ProcessorStatus | None:
        return None if self.worker.error is None else replace(self._status("failed"), error=self.worker.error)

    def _status(self, phase: str) -> ProcessorStatus:
        number, worker = int(self.worker.slot), self.worker
        position = InputPosition(committed=None, position=None, end=None, lag=0)
        task = TaskStatus(f"placed-{number}", "placed", number, "running", {"placed": position})
        at = worker.started_at.timestamp()
        facts: dict[str, Any] = {"processor": NAME, "slot": worker.slot, "pid": worker.pid or 0, "phase": phase}
        moments = {"started_at": at, "heartbeat_at": at, "silent_s": 0.0}
        rest: dict[str, Any] = {"guarantee": "exactly-once", "code_version": "v1", "error": None, "records": {}}
        return ProcessorStatus(**facts, **moments, **rest, commits={}, tasks=(task,))


def open_installation(folder: Path, slots: int = 1, steady_s: Callable[[], float] | None = None) -> Installation:
    """A processor with ``slots`` running workers. The caller closes the registry (Holdfast's database)."""
    url = f"sqlite:///{folder / 'registry.db'}"
    registry = Registry(url) if steady_s is None else Registry(url, steady_s)
    registry.migrate()
    return Installation(registry, Paths(folder), tuple(str(number) for number in range(slots)))
