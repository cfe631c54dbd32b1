"""A simulated installation whose operators plan, apply and deploy with production code.

The simulation replaces the supervisor, the disk, the object store, Kafka, time, and HTTP between operators and workers.
Holdfast's registry is a real database. Each call to one of these parts passes a point: a place in the call where the
operator or the worker that makes the call may be killed.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from holdfast.infra import waiting
from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.marks import read_mark
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.infra.paths import Paths
from holdfast.infra.settings import CheckpointSettings, Settings
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.serving import worker_client as serving
from holdfast.processors.lifecycle.deploy import deployment, running
from holdfast.processors.lifecycle.deploy.code_files import Code
from holdfast.processors.lifecycle.plans import apply as applying
from holdfast.processors.lifecycle.recovery import attempt as recovery
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.network import Network
from tests.simulation.disk import SimulatedDisk
from tests.simulation.lifecycle_machine import OperatorsTime, Program, leave_failure
from tests.simulation.lifecycle_operator import Operator
from tests.simulation.lifecycle_tables import SimulatedTables
from tests.simulation.objects import SimulatedObjects
from tests.simulation.schedule import Schedule
from tests.simulation.scheduler import SimulatedProcess, Simulation, Step
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import ANY_TIME_AHEAD, GROUP, INPUT, OUTPUT, Workload, draw_workload

#: Releases contain no copy of the code in this simulation, because all versions have the same code.
CODE = Code("tests.simulation.workload:application", why_not="it is a part of Holdfast")
#: Virtual seconds after which an operator that is still running counts as hanging.
OPERATOR_S = 3_000.0


class LifecycleWorld:
    """A simulated machine with a supervisor, a Kafka cluster, and operators that start and end.

    ``standby_replicas`` is the number of standbys of each task.

    Args:
        schedule: The settings of the workers, drawn from a seed.
        folder: An empty folder for lock files, exports and Holdfast's registry.
        template: A new, empty database of Holdfast's registry, to copy.
    """

    standby_replicas = 0

    def __init__(self, schedule: Schedule, folder: Path, template: Path) -> None:
        self.schedule = schedule
        self.random = Random(f"lifecycle of {schedule.seed}")
        self.clock = VirtualClock()
        self.store = SimulatedObjects(self.clock)
        self.store.step_s = schedule.store_step_s
        self.network = Network()
        self.network.marker_delay_s = schedule.marker_delay_s
        self.cluster = InMemoryCluster(clock=self.clock, network=self.network)
        self.cluster.assignor = schedule.assignor
        self.disk = SimulatedDisk()
        self.slots = tuple(str(number) for number in range(min(schedule.processes, 2)))
        self.programs: dict[str, Program] = {}
        self.simulation = Simulation(self.clock, self.random, self._on_point)
        #: Returns whether a process is killed at a point (a place in a call). None kills no process.
        self.strike: Callable[[SimulatedProcess, str], bool] | None = None
        self.broken: InvariantBroken | None = None
        self.operators = self.pids = 0
        #: Whether all operators run on one machine. An operator then sees at once that another operator has ended.
        self.one_machine = schedule.seed % 2 == 0
        checkpoints = CheckpointSettings(every_s=schedule.checkpoint_s, stop_wait_s=1.0)
        self.paths = Paths(folder / "home")
        self.settings = Settings(home=folder / "home").model_copy(update={"checkpoints": checkpoints})
        self.state_dir = folder / "state"
        self.state_dir.mkdir(parents=True)
        self._registry_file = folder / "registry.db"
        shutil.copy(template, self._registry_file)
        self.registry = self._opened_registry()
        drawn = draw_workload(
            self.random, schedule.partitions, schedule.stores, exactly_once=True, dead_letters=schedule.dead_letters
        )
        self.workload = self.workload_of(drawn, folder)
        self.topology = self.application("0", Start()).topology()
        self.tables = SimulatedTables(self)
        #: Called with the positions that a restore from the warehouse is about to commit.
        self.setting_positions: Callable[[Mapping[Partition, int]], None] = lambda offsets: None
        self.sent = [0] * schedule.partitions
        #: The offset of each produced message, by partition.
        self.offsets: list[list[int]] = [[] for _ in range(schedule.partitions)]
        self.cluster.create_topic(INPUT, schedule.partitions, ANY_TIME_AHEAD)
        self.cluster.create_topic(OUTPUT, schedule.partitions)

    def workload_of(self, drawn: Workload, folder: Path) -> Workload:
        """The workload of this simulation. Subclasses may add steps to the one that is drawn."""
        return drawn

    # -- workers ---------------------------------------------------------------------------------------------------

    def application(self, slot: str, start: Start) -> Application:
        """The processor as ``python -m holdfast.processors`` runs it."""
        made = self.workload.application(
            state_dir=self.state_dir,
            commit_every=self.commit_every(),
            commit_interval=self.schedule.commit_interval_s,
            standby_replicas=self.standby_replicas,
        )
        made.with_run_overrides(slot=slot, auto_create_topics=False, start=start)
        return made

    def commit_every(self) -> int:
        """The number of messages after which the next worker commits."""
        return self.schedule.commit_every

    def started(self, program: Program, slot: str, start: Start) -> Application:
        """Return the application for a new process of a supervised program.

        Subclasses choose the code that it imports.
        """
        return self.application(slot, start)

    def check_start(self, slot: str) -> None:
        """Called before a worker runs. A subclass may raise an error here; the worker then ends with it."""

    def code(self) -> Code:
        """The code files of the processor's definition."""
        return CODE

    def launch(self, program: Program) -> None:
        """Start a program's process."""
        given = program.spec.command
        slot = given[given.index("--slot") + 1]
        mark = read_mark(self.paths, GROUP)
        start = Start(
            generation=0 if mark is None else mark.generation,
            paused="--paused" in given,
            from_changelog="changelog" in given,
            begin_empty=dict(given[at + 1].split("=", 1) for at, word in enumerate(given) if word == "--begin-empty"),
            reseed=frozenset(given[at + 1] for at, word in enumerate(given) if word == "--reseed"),
        )
        self.pids += 1
        program.pid = self.pids
        program.began, program.began_at, program.failure = self.clock.time(), self.clock.monotonic(), None
        program.app = app = self.started(program, slot, start)

        def live(process: SimulatedProcess) -> None:
            try:
                self.check_start(slot)
                app.run_on(
                    self.cluster.connect(process),
                    self.settings,
                    databases=self.disk.attach(process),
                    storage=self.store.attach(process),
                )
            except Exception as failure:
                program.failure = failure
                if isinstance(failure, HoldfastError):
                    leave_failure(self, slot, program, failure)
                self.simulation.note(process.name, f"exit {type(failure).__name__}: {failure}")
            finally:
                program.ended = self.clock.time()

        program.process = self.simulation.start(f"w{slot}.{program.pid}", live)

    def wake(self, program: Program) -> None:
        """Called when a worker has a new request. May wake up an idle worker."""

    def kill(self, process: SimulatedProcess) -> None:
        """Kill a process with SIGKILL. Its writes stay on disk.

        In bulk mode, the process loses its unflushed batches.
        """
        process.kill()
        bulk = [path for path in self.disk.paths if self.disk._stored[path].holder is process]
        self.disk.release(process)
        for path in bulk:
            if self.disk.in_bulk(path):
                self.disk.lose_unsynced(path, self.random.randint(0, self.disk.unsynced(path)))
        self.simulation.note(process.name, "KILLED")

    def _on_point(self, process: SimulatedProcess, name: str) -> Step:
        if self.strike is not None and self.strike(process, name):
            self.kill(process)
            return Step.CRASH
        return Step.YIELD if self.random.random() < self.schedule.switching else Step.GO_ON

    # -- input -----------------------------------------------------------------------------------------------------

    def feed(self, partition: int, upto: int) -> None:
        """Produce the messages of a partition up to this number."""
        for message in self.workload.messages[partition][self.sent[partition] : upto]:
            time_ms, encoded = message.time_ms(self.clock.time()), message.encode(partition)
            offset = self.cluster.produce(INPUT, encoded, message.key, partition=partition, timestamp_ms=time_ms)
            self.offsets[partition].append(offset)
        self.sent[partition] = max(self.sent[partition], upto)

    def consumed(self, partition: int) -> int:
        """Return the number of messages of a partition that the group has committed."""
        committed = self.cluster.committed_offsets(GROUP).get(Partition(INPUT, partition), 0)
        return sum(offset < committed for offset in self.offsets[partition])

    # -- waiting ---------------------------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Run the simulation until the condition is true.

        Raises:
            InvariantBroken: The condition is not true in time.
        """
        try:
            self.simulation.run_until(done, timeout_s)
        except HoldfastError as stuck:
            raise InvariantBroken("liveness", f"{what}: {stuck.message} {stuck.fields}") from stuck

    def rest(self, seconds: float) -> None:
        """Run the simulation for this many virtual seconds."""
        until = self.clock.monotonic() + seconds
        self.clock.call_at(until, lambda: None)
        self.until(lambda: self.clock.monotonic() >= until, seconds + 60.0, "time goes by")

    def is_gone(self, name: str) -> bool:
        """Whether an observer sees that the process of this name has ended."""
        living = {each.name for each in self.simulation.processes if not (each.ended or each.crashed)}
        return self.one_machine and name not in living

    def operate(self, work: Callable[[Operator], None]) -> SimulatedProcess:
        """Run an operator's work in its own process. Returns the process after it has ended or was killed."""
        process = self.begin(work)
        self.clock.call_later(OPERATOR_S, lambda: None)
        self.until(lambda: process.ended or process.crashed, OPERATOR_S, f"{process.name} ends")
        return process

    def begin(self, work: Callable[[Operator], None]) -> SimulatedProcess:
        """Start an operator's work in its own process. Returns the running process."""
        self.operators += 1

        def live(process: SimulatedProcess) -> None:
            try:
                work(self.operator(process))
            finally:
                self.disk.release(process)  # a process that ends, also by Ctrl-C, holds no database any longer

        return self.simulation.start(f"op{self.operators}", live)

    def operator(self, process: SimulatedProcess) -> Operator:
        """The operator that runs in a process."""
        return Operator(self, process)

    # -- Holdfast's registry ---------------------------------------------------------------------------------------

    def newest_logged(self) -> tuple[int, str] | None:
        """The newest deployment that wrote to the changelogs: its generation (number) and its code version."""
        logs = [changelog_topic(GROUP, store) for store in self.workload.names]
        there = [log for log in logs if log in self.cluster._broker.topics]
        found = [record for log in there for _, record in self.cluster.read(log)]
        records = [record.value for record in found if record.key == META_KEY and record.value is not None]
        newest = max(map(ChangelogMeta.decode, records), key=lambda meta: meta.generation, default=None)
        return None if newest is None or not newest.generation else (newest.generation, newest.code_version)

    def copy_registry(self) -> Path:
        """Copies Holdfast's present registry into a file."""
        copy = self._registry_file.with_suffix(".copy")
        with closing(sqlite3.connect(self._registry_file)) as here, closing(sqlite3.connect(copy)) as there:
            here.backup(there)
        return copy

    def replace_registry(self, copy: Path) -> None:
        """Replaces Holdfast's registry with a copy, as if a backup were restored."""
        self.registry.close()
        for file in self._registry_file.parent.glob("registry.db*"):
            file.unlink()
        shutil.copy(copy, self._registry_file)
        self.registry = self._opened_registry()

    def _opened_registry(self) -> Registry:
        """Holdfast's registry, with the simulation's clock."""
        return Registry(f"sqlite:///{self._registry_file}", self.clock.monotonic)

    def end(self) -> None:
        """Ends all processes and closes Holdfast's registry."""
        self.simulation.end()
        self.registry.close()


@contextmanager
def virtual_time(world: LifecycleWorld) -> Iterator[None]:
    """While the block runs, the lifecycle's modules wait in virtual time."""
    modules: tuple[Any, ...] = (deployment, serving, applying, running, recovery, waiting)
    former = [module.time for module in modules]
    for module in modules:
        module.time = OperatorsTime(world)
    try:
        yield
    finally:
        for module, real in zip(modules, former, strict=True):
            module.time = real


def quiet(schedule: Schedule) -> Schedule:
    """Return the schedule's settings for workers, without faults, and with tombstones that compaction keeps.

    Simulations of operators have their own faults. One seed in eight has a dead-letter topic; the others skip failed
    messages.
    """
    chosen: dict[str, Any] = {"exactly_once": True, "aggregated": False, "faults": ()}
    chosen["dead_letters"] = schedule.seed % 8 == 4
    patience = {"retention_s": 86_400.0, "standby_replicas": 0, "store_step_s": min(schedule.store_step_s, 0.01)}
    return replace(schedule, **chosen, **patience)
