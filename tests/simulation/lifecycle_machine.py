"""Simulated access of an operator to a machine and a cluster: supervisor, HTTP to workers, Kafka, and time.

Each call passes two points, one before and one after its effect. At a point, the scheduler may switch to another
process or kill the operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent  # type: ignore[import-untyped]

from holdfast.infra.deploy.program_files import ProgramSpec, ProgramStatus, ProgramUnknown
from holdfast.infra.errors import HoldfastError
from holdfast.infra.http_request import Answer
from holdfast.infra.kafka.records import Partition
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.runtime.loop import Request as WorkerRequest
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.owner_commands.commands import COMMANDS, CommandRefused, CommandWrong, decode
from holdfast.processors.engine.serving.failure_file import failure_file, record_failure
from holdfast.processors.engine.serving.status import describe_worker
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.databases.database import Database, Databases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import items_of
from holdfast.processors.engine.state.errors import StateFailed, StateFolderTaken
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.testing.cluster import InMemoryTopics
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.workload import GROUP

if TYPE_CHECKING:
    from tests.simulation.lifecycle_world import LifecycleWorld

#: The interval, in virtual seconds, at which a waiting process checks its condition again.
LOOK_S = 0.05
#: The number of attempts to open a database that another process has open. After them, the database counts as in use.
PEEKS = 40
#: Virtual seconds after SIGTERM after which a worker that still runs is killed.
STOP_WAIT_S = 30.0


class Program:
    """One program of the simulated supervisor: its specification, and its current or last process (a worker)."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.spec = spec
        self.process: SimulatedProcess | None = None
        self.app: Application | None = None
        self.pid = 0
        #: When the process started and ended by the wall clock; ``began_at`` is its start by the monotonic clock.
        self.began = self.ended = self.began_at = 0.0
        #: Whether the process is idle: it waits for messages and can be woken by a request.
        self.idle = False
        self.failure: Exception | None = None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and not (self.process.ended or self.process.crashed)

    @property
    def worker(self) -> Worker | None:
        """The worker in the running process; None if no process runs."""
        return self.app._worker if self.alive and self.app is not None else None


class Pointed:
    """Wraps a real object. Before and after each call of a method, the process may be switched or killed."""

    def __init__(self, of: Any, process: SimulatedProcess, name: str) -> None:
        self._of = of
        self._process = process
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._of, attribute)
        name = f"{self._name}.{attribute}"
        if not callable(value):
            return Pointed(value, self._process, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._process.point(f"{name}:before")
            result = value(*arguments, **named)
            self._process.point(f"{name}:after")
            return result

        return call


class OperatorsTopics(InMemoryTopics):
    """The Kafka requests that only operators make, in addition to those of workers."""

    #: The address and the settings of a client that reads records; reads of the simulated log need neither.
    bootstrap, client_config = "memory", MappingProxyType[str, Any]({})

    def delete(self, name: str) -> None:
        """Delete a topic. A missing topic is no error."""
        self.answers("delete")
        self._broker.delete(name)

    def offsets_of_all(self, partitions: Mapping[str, int], of: str) -> dict[str, dict[int, int]]:
        """Return the start, the stable end or the end of each partition, by topic and partition."""
        assert of in ("start", "stable", "end")
        if of == "start":
            return {topic: self.start_offsets(topic) for topic in partitions}
        return {topic: self.end_offsets(topic, committed=of == "stable") for topic in partitions}

    def settled_end_offsets(self, topic: str) -> dict[int, int]:
        """The end of each partition, up to its first open transaction."""
        return self.end_offsets(topic, committed=True)

    def delete_group(self, group: str) -> None:
        """Delete a group's offsets. A missing group is no error."""
        self.answers("delete_group")
        self._broker.groups.pop(group, None)

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        """Return the group's committed offsets. Waits until no transaction has pending offsets."""
        self.answers("committed_offsets")
        known = self._broker.group(group)
        while known.pending:
            self._process.sleep(LOOK_S)
        return {place: int(offset) for place, offset in known.committed.items()}


class SimulatedDeployer:
    """Simulated implementation of ``processors.lifecycle.ports.Deployer`` for one operator process."""

    def __init__(self, world: LifecycleWorld, process: SimulatedProcess) -> None:
        self._world = world
        self._process = process

    def start(self, timeout_s: float = 30.0) -> int:
        self._process.point("deployer.start")
        return 1

    def running(self) -> bool:
        return True

    def apply(self, spec: ProgramSpec) -> bool:
        """Add or change a program.

        A changed program is stopped and not restarted. Returns whether the program changed.
        """
        self._process.point("deployer.apply:before")
        known = self._world.programs.get(spec.name)
        if known is not None and known.spec == spec:
            return False
        if known is not None:
            self.stop_program(spec.name)
            known.spec = spec
        else:
            self._world.programs[spec.name] = Program(spec)
        self._process.point("deployer.apply:after")
        return True

    def differs(self, spec: ProgramSpec) -> bool:
        known = self._world.programs.get(spec.name)
        return known is not None and known.spec != spec

    def start_program(self, name: str) -> None:
        self._process.point("deployer.start_program:before")
        program = self._program(name)
        if not program.alive:
            self._world.launch(program)
        self._process.point("deployer.start_program:after")

    def stop_program(self, name: str) -> None:
        self._process.point("deployer.stop_program:before")
        program = self._program(name)
        process = program.process
        if process is not None and program.alive:
            assert program.app is not None
            program.app.stop()
            self._world.wake(program)
            # The supervisor completes the stop even if the operator dies meanwhile.
            self._world.clock.call_later(STOP_WAIT_S, lambda: None if process.ended else self._world.kill(process))
            while not (process.ended or process.crashed):
                self._process.sleep(LOOK_S)
        self._process.point("deployer.stop_program:after")

    def kill_program(self, name: str) -> None:
        self._process.point("deployer.kill_program")
        process = self._program(name).process
        if process is not None and self._program(name).alive:
            self._world.kill(process)

    def remove(self, name: str) -> None:
        self.stop_program(name)
        del self._world.programs[name]

    def remove_all(self, names: Collection[str]) -> None:
        if names:
            self._process.point("deployer.remove_all:before")
        for name in names:
            if (app := self._program(name).app) is not None:
                app.stop()
                self._world.wake(self._program(name))
        for name in names:
            self.remove(name)

    def programs(self) -> dict[str, ProgramStatus]:
        self._process.point("deployer.programs")
        return {name: _seen(name, program) for name, program in self._world.programs.items()}

    def log_tail(self, name: str, lines: int = 0) -> tuple[str, ...]:
        failure = self._program(name).failure
        return () if failure is None else (f"{type(failure).__name__}: {failure}",)

    def _program(self, name: str) -> Program:
        if name not in self._world.programs:
            raise ProgramUnknown(f"There is no program {name}.")
        return self._world.programs[name]


def _seen(name: str, program: Program) -> ProgramStatus:
    since = datetime.fromtimestamp(program.began if program.alive else program.ended, UTC)
    killed = program.process is not None and program.process.crashed
    return ProgramStatus(
        name,
        "RUNNING" if program.alive else "EXITED" if program.pid else "STOPPED",
        program.pid if program.alive else None,
        None if program.alive or killed or not program.pid else _exit_status(program.failure),
        since,
        "SIGKILL" if killed else None,
        datetime.fromtimestamp(program.began, UTC) if program.pid else None,
    )


def leave_failure(world: LifecycleWorld, slot: str, program: Program, failure: HoldfastError) -> None:
    """Write the failure file of a worker that ends with an error, as ``python -m holdfast.processors`` does."""
    endpoint = world.paths.endpoint(GROUP, slot)
    # All simulated workers are one real process, and a process writes only its first error.
    failure_file(endpoint).unlink(missing_ok=True)
    record_failure(endpoint, GROUP, slot, failure.as_dict(), program.began)


def _exit_status(failure: Exception | None) -> int:
    """Return a worker's exit status. It follows from the worker's error, as in ``python -m holdfast.processors``."""
    return getattr(failure, "exit_code", 1) if failure is not None else 0


class SimulatedClient(ProcessorClient):
    """The production client of a worker, with simulated HTTP. It serves the pages of ``processors.engine.serving``."""

    def __init__(self, world: LifecycleWorld, process: SimulatedProcess, processor: str, slot: str) -> None:
        super().__init__(processor, slot, world.paths)
        self._world = world
        self._process = process
        self._name = world.paths.program(processor, slot)

    def alive(self) -> bool:
        program = self._world.programs.get(self._name)
        return program is not None and program.alive

    def _get(self, page: str, timeout_s: float) -> Answer | None:
        self._process.point(f"http:{page}")
        program = self._world.programs.get(self._name)
        worker = None if program is None else program.worker
        if program is None or worker is None:
            return None
        pid, began = program.pid, worker.started_at

        def status() -> dict[str, Any]:
            return {**describe_worker(worker, self.processor, self.slot, None), "pid": pid, "started_at": began}

        pages: dict[str, Callable[[], dict[str, Any]]] = {
            "/status": status,
            "/maintenance": lambda: {"commands": worker.maintenance.all_told()},
        }
        answer = self._done_by(worker, pages[page], timeout_s, only_reads=True)
        return answer if answer is not None and answer.is_success else None

    def _send(self, method: str, page: str, timeout_s: float, body: bytes = b"") -> Answer:
        self._process.point(f"http:{page}:before")
        program = self._world.programs.get(self._name)
        worker = None if program is None else program.worker
        if worker is None:
            raise self._silent(page, "it is not there")
        try:
            command = decode(page, body) if page in COMMANDS else None
        except CommandWrong as wrong:
            return _answer(400, wrong.as_dict())

        def begin() -> dict[str, Any]:
            return {"id": worker.maintenance.begin(command).id}

        def compact() -> dict[str, Any]:
            worker.commit_all()
            for task in worker.assignment.tasks:  # a real worker compacts its stores in a second thread
                assert task.store is not None
                task.store._database.compact()
            return {"bytes_before": 1, "bytes_after": 1, "seconds": 0.0}

        work = begin if command is not None else {"/compact": compact}[page]
        answer = self._done_by(worker, work, timeout_s, only_reads=False)
        self._process.point(f"http:{page}:after")
        if answer is None:
            raise self._silent(page, "it did not answer")
        return answer

    def _done_by(
        self, worker: Worker, work: Callable[[], dict[str, Any]], timeout_s: float, *, only_reads: bool
    ) -> Answer | None:
        """Run the work on the worker's own thread. Returns its result, or None if no result comes in time."""
        answers: list[Answer] = []

        def call() -> None:
            try:
                answers.append(_answer(200, work()))
            except (CommandWrong, CommandRefused) as failure:
                told = failure.as_dict()
                body = {"error": told["message"], "action": told["action"], "fields": told.get("fields", {})}
                answers.append(_answer(400 if isinstance(failure, CommandWrong) else 409, body))

        worker.requests.append(WorkerRequest(call, only_reads=only_reads))
        self._world.wake(self._world.programs[self._name])
        deadline = self._world.clock.monotonic() + timeout_s
        while not answers:
            if self._world.clock.monotonic() >= deadline or not self.alive():
                return None
            self._process.sleep(LOOK_S)
        return answers[0]


def _answer(code: int, document: Mapping[str, Any]) -> Answer:
    return Answer(code, json.dumps(document, default=str).encode())


class NothingHangs:
    """Reports no hanging transactions, because the coordinators of the simulated cluster lose no transaction."""

    def hanging(self, partitions: object) -> tuple[()]:
        return ()

    def abort_hanging(self, stage: object) -> bool:
        return False


class OperatorsTime:
    """Replaces the module ``time`` in modules of the lifecycle, so that they use the simulation's virtual time."""

    def __init__(self, world: LifecycleWorld) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.clock.monotonic()

    def time(self) -> float:
        return self._world.clock.time()

    def sleep(self, seconds: float) -> None:
        here = getcurrent()
        process = next(each for each in self._world.simulation.processes if each._greenlet is here)
        process.sleep(seconds)


class PeekHolding:
    """Reads the state of a slot (place of a worker) without owning the state, as an operator's command does.

    Each simulated process has its own disk, so only the lock of the slot's folder shows whether a worker uses the
    state. In reality, two readers can open a database at once. Here, a reader waits with ``pause`` while another
    reader has the database open.
    """

    def __init__(self, databases: Databases, pause: Callable[[float], None] = lambda seconds: None) -> None:
        self._databases = databases
        self._pause = pause

    def in_use(self, slot: Path) -> bool:
        try:
            StateFolder(slot.parent.parent, slot.parent.name, slot.name).release()
        except StateFolderTaken:
            return True
        return False

    def exists(self, path: Path) -> bool:
        return self._databases.exists(path)

    def open(self, path: Path) -> _Opened:
        for _ in range(PEEKS):
            try:
                return _Opened(self._databases.open(path))
            except BlockingIOError:
                self._pause(LOOK_S)
        raise StateFailed(f"{path} is in use.", action="Retry.")


class _Opened:
    def __init__(self, database: Database) -> None:
        self.database = database

    def meta(self) -> TaskMeta | None:
        raw = self.database.get(META_KEY)
        return None if raw is None else TaskMeta.decode(raw)

    def items(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        return items_of(self.database, store)

    def size_bytes(self) -> int:
        return self.database.size_bytes()

    def close(self) -> None:
        self.database.close()
