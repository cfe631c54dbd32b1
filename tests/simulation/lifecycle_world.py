"""A simulated world in which an operator changes processors by plan: planning, applying and deploying as in production.

Simulated are the machine's supervisor, disk and object store, Kafka, time, and the wire between an operator and a
worker; the registry is a real one. Whatever an operator asks of any of them passes a point, where the operator, or a
worker, may die.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from holdfast.infra import waiting
from holdfast.infra.database.errors import HoldLost
from holdfast.infra.database.lease_times import BEAT_S
from holdfast.infra.database.leases import Fence
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
from holdfast.processors.engine.serving import client as serving
from holdfast.processors.lifecycle.deploy import deployment, running
from holdfast.processors.lifecycle.deploy.code_files import Code
from holdfast.processors.lifecycle.deploy.deployment import Rollout
from holdfast.processors.lifecycle.deploy.marking import behind, keep_mark
from holdfast.processors.lifecycle.deploy.releases import KEPT
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors, rollout_of_release
from holdfast.processors.lifecycle.plans import apply as applying
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.apply import Applied, Applier, Done, Executor, Holder, ProgressLog
from holdfast.processors.lifecycle.plans.execution import Execution
from holdfast.processors.lifecycle.plans.holding import DEPLOYER, TOPICS, Hold, fenced
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Request
from holdfast.processors.lifecycle.plans.shape import Shape, shape_of
from holdfast.processors.lifecycle.plans.stages import Stage
from holdfast.processors.lifecycle.ports import World as Acting
from holdfast.processors.lifecycle.rebuild.from_tables import TableStages
from holdfast.processors.lifecycle.rebuild.table_world import TableWorld
from holdfast.processors.lifecycle.recovery import incidents, recovery
from holdfast.processors.lifecycle.verbs.backfill import check_local
from holdfast.processors.lifecycle.verbs.table import plan_for
from holdfast.processors.lifecycle.world.facts import WorldFacts
from holdfast.processors.lifecycle.world.letters import LetterStages
from holdfast.processors.lifecycle.world.local_state import LocalFolders
from holdfast.processors.lifecycle.world.owners import RunningOwners
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.network import Network
from tests.simulation.disk import SimulatedDisk
from tests.simulation.lifecycle_machine import (
    NothingHangs,
    OperatorsTime,
    OperatorsTopics,
    PeekHolding,
    Pointed,
    Program,
    SimulatedClient,
    SimulatedDeployer,
)
from tests.simulation.lifecycle_tables import Loading, SimulatedTables, held_by_owners
from tests.simulation.objects import SimulatedObjects
from tests.simulation.schedule import Schedule
from tests.simulation.scheduler import SimulatedProcess, Simulation, Step
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import ANY_TIME_AHEAD, GROUP, INPUT, OUTPUT, draw_workload

#: Versions are not copied here: they are all the same.
CODE = Code("tests.simulation.workload:application", why_not="it is a part of Holdfast")
#: An operator who is not through after so long hangs.
OPERATOR_S = 3_000.0


class LifecycleWorld:
    """A machine with a supervisor, a cluster, and operators who come and go.

    Args:
        schedule: How processors run.
        folder: For lock files, exports and the registry; empty.
        template: A registry that was just made.
    """

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
        #: Decides what becomes of a process at a point; None for nothing bad.
        self.strike: Callable[[SimulatedProcess, str], bool] | None = None
        self.broken: InvariantBroken | None = None
        self.operators = self.pids = 0
        #: Whether who looks at the holder of an apply sees its end at once: all are on one machine.
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
        self.workload = drawn
        self.topology = self.application("0", Start()).topology()
        self.tables = SimulatedTables(self)
        #: Told the positions that a restore from the warehouse is about to commit.
        self.setting_positions: Callable[[Mapping[Partition, int]], None] = lambda offsets: None
        self.sent = [0] * schedule.partitions
        #: By partition, the offset of each message that was sent.
        self.offsets: list[list[int]] = [[] for _ in range(schedule.partitions)]
        self.cluster.create_topic(INPUT, schedule.partitions, ANY_TIME_AHEAD)
        self.cluster.create_topic(OUTPUT, schedule.partitions)

    # -- workers ---------------------------------------------------------------------------------------------------

    def application(self, slot: str, start: Start) -> Application:
        """The processor as ``python -m holdfast.processors`` runs it."""
        made = self.workload.application(
            state_dir=self.state_dir,
            commit_every=self.schedule.commit_every,
            commit_interval=self.schedule.commit_interval_s,
            standby_replicas=0,
        )
        made.with_run_overrides(slot=slot, auto_create_topics=False, start=start)
        return made

    def started(self, program: Program, slot: str, start: Start) -> Application:
        """The processor that a program's new process runs."""
        return self.application(slot, start)

    def check_start(self, slot: str) -> None:
        """What a worker looks at before it runs; raises what it ends with."""

    def code(self) -> Code:
        """The files of the definition."""
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
                self.simulation.note(process.name, f"exit {type(failure).__name__}: {failure}")
            finally:
                program.ended = self.clock.time()

        program.process = self.simulation.start(f"w{slot}.{program.pid}", live)

    def wake(self, program: Program) -> None:
        """Somebody wants something of a worker, which may be idle."""

    def kill(self, process: SimulatedProcess) -> None:
        """SIGKILL, of the process alone: what it wrote is there, but for bulk writing."""
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
        """More input arrives."""
        for message in self.workload.messages[partition][self.sent[partition] : upto]:
            time_ms, encoded = message.time_ms(self.clock.time()), message.encode(partition)
            offset = self.cluster.produce(INPUT, encoded, message.key, partition=partition, timestamp_ms=time_ms)
            self.offsets[partition].append(offset)
        self.sent[partition] = max(self.sent[partition], upto)

    def consumed(self, partition: int) -> int:
        """How many messages of a partition the group has committed."""
        committed = self.cluster.committed_offsets(GROUP).get(Partition(INPUT, partition), 0)
        return sum(offset < committed for offset in self.offsets[partition])

    # -- waiting ---------------------------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Let the world go on until it is so.

        Raises:
            InvariantBroken: It does not come about.
        """
        try:
            self.simulation.run_until(done, timeout_s)
        except HoldfastError as stuck:
            raise InvariantBroken("liveness", f"{what}: {stuck.message} {stuck.fields}") from stuck

    def rest(self, seconds: float) -> None:
        """Let so much time go by."""
        until = self.clock.monotonic() + seconds
        self.clock.call_at(until, lambda: None)
        self.until(lambda: self.clock.monotonic() >= until, seconds + 60.0, "time goes by")

    def is_gone(self, name: str) -> bool:
        """Whether the process of this name is seen to have ended."""
        living = {each.name for each in self.simulation.processes if not (each.ended or each.crashed)}
        return self.one_machine and name not in living

    def operate(self, work: Callable[[Operator], None]) -> SimulatedProcess:
        """Have an operator do something in a process of his own; returns it, once it has ended or died."""
        process = self.begin(work)
        self.clock.call_later(OPERATOR_S, lambda: None)
        self.until(lambda: process.ended or process.crashed, OPERATOR_S, f"{process.name} ends")
        return process

    def begin(self, work: Callable[[Operator], None]) -> SimulatedProcess:
        """Have an operator begin something in a process of his own."""
        self.operators += 1
        return self.simulation.start(f"op{self.operators}", lambda alive: work(self.operator(alive)))

    def operator(self, process: SimulatedProcess) -> Operator:
        """The operator that a process is."""
        return Operator(self, process)

    # -- the registry ----------------------------------------------------------------------------------------------

    def newest_logged(self) -> tuple[int, str] | None:
        """The newest generation that a changelog names, as ``world.changelog_meta`` reads it."""
        logs = [changelog_topic(GROUP, store) for store in self.workload.names]
        there = [log for log in logs if log in self.cluster._broker.topics]
        found = [record for log in there for _, record in self.cluster.read(log)]
        records = [record.value for record in found if record.key == META_KEY and record.value is not None]
        newest = max(map(ChangelogMeta.decode, records), key=lambda meta: meta.generation, default=None)
        return None if newest is None or not newest.generation else (newest.generation, newest.code_version)

    def copy_registry(self) -> Path:
        """A copy of the registry as it is now."""
        copy = self._registry_file.with_suffix(".copy")
        with closing(sqlite3.connect(self._registry_file)) as here, closing(sqlite3.connect(copy)) as there:
            here.backup(there)
        return copy

    def replace_registry(self, copy: Path) -> None:
        """The copy takes the registry's place, as when a backup is put back."""
        self.registry.close()
        for file in self._registry_file.parent.glob("registry.db*"):
            file.unlink()
        shutil.copy(copy, self._registry_file)
        self.registry = self._opened_registry()

    def _opened_registry(self) -> Registry:
        """The registry, whose clock is the world's."""
        return Registry(f"sqlite:///{self._registry_file}", self.clock.monotonic)

    def end(self) -> None:
        """Nothing is left behind."""
        self.simulation.end()
        self.registry.close()


@dataclass(frozen=True, slots=True)
class Shown:
    """What came of asking for a request: its plan, and the apply, unless there was nothing to do or it was refused."""

    plan: Plan
    applied: Applied | None
    resumed: bool


class Operator:
    """One run of an operator's program: what ``orchestration.verbs.Verbs`` is in production, on simulated parts."""

    #: The settings of workers where he is; None: they never change.
    present: Callable[[], Mapping[str, str]] | None = None
    releases_kept = KEPT

    def __init__(self, world: LifecycleWorld, process: SimulatedProcess) -> None:
        self._world = world
        self.process = process
        self.topics = OperatorsTopics(world.cluster._broker, process, 20.0)
        registry: Any = Pointed(world.registry, process, "registry")
        self.hold = OperatorsHold(world, process)
        self.acting = Acting(
            deployer=SimulatedDeployer(world, process),
            statuses=self._client,
            registry=registry,
            paths=world.paths,
            clock=self._now,
            logged=lambda name: world.newest_logged(),
        )
        self.journal = registry.journal
        self.owners = RunningOwners(
            self._client,
            self._slots,
            lambda name, stores: world.topology.tasks_with(stores, {INPUT: world.schedule.partitions}),
        )
        self.facts = WorldFacts(
            self.topics,
            self.acting,
            self.journal,
            self._folders,
            self.owners,
            lambda name: world.code(),
            NothingHangs(),
            world.tables,
            workers=lambda name: None if self._slots(name) else len(world.slots),
            present=self.present,
        )
        self.facts.ghosts_s = 0.0
        self.holder = Holder(process.name, self._is_gone)
        #: Told each stage that came to its end, before it is noted.
        self.on_stage: Callable[[Stage], None] = lambda stage: None

    def plan(self, request: Request) -> Plan:
        """See ``Verbs.plan``."""
        decided = plan_for(request, self.facts, self._world.topology)
        self.journal.remember_plan(decided.hash, decided.processor, decided.verb, plans.encode(decided), self._now())
        return decided

    def ask(self, request: Request, shown: Callable[[Plan], None]) -> Shown:
        """What the command line does when a verb is asked for, or asked for again."""
        for record in self.journal.applies(1, processor=request.processor, open_only=True):
            begun = plans.decode(record.plan)
            if begun.request == request and begun.after_kill == "go on" and behind(GROUP, self.acting) is None:
                return Shown(begun, self._applier().resume(record), True)
        plan = self.plan(request)
        shown(plan)
        if isinstance(plan.verdict, Refused):
            return Shown(plan, None, False)
        now = self.plan(request)
        applying.check_shown(now, plan.hash, self.journal, sure=True)
        applied = self._applier().apply(now)
        keep_mark(self.acting.registry, self._world.paths, GROUP)
        return Shown(now, applied, False)

    def recover(self) -> None:
        """What a recovery sensor and its run do: dead slots of what is meant to be up are started again."""
        found = self.acting.registry.deployment(GROUP)
        if found is None or found.desired != "deployed" or incidents.is_left_alone(GROUP, self.acting):
            return
        rollout = self._rollout(GROUP, None)
        for slot in rollout.slots:
            spec = rollout.program(slot, self.acting)
            if not self._world.programs[spec.name].alive:
                self.acting.deployer.apply(spec)
                self.acting.deployer.start_program(spec.name)

    def _applier(self) -> Applier:
        return Applier(self.execution(), self.journal, "ada", self.holder, self._tell, self._now, self.hold)

    def execution(self) -> Executor:
        """See ``Verbs._execution``."""
        registry: Any = Pointed(self._world.registry.fenced(lambda: self.hold.fence), self.process, "registry")
        acting = replace(self.acting, registry=registry, deployer=fenced(self.acting.deployer, DEPLOYER, self.hold))
        topics = fenced(self.topics, TOPICS, self.hold)
        execution = Execution(
            topics=topics,
            runner=DeployedProcessors(
                acting,
                self._rollout,
                "ada",
                lambda name: (self._world.code(), self._shape()),
                topics,
                releases_kept=self.releases_kept,
                present=self.present,
            ),
            owners=self.owners,
            local=self._folders,
            check_local=lambda name, stores: check_local(name, stores, self.facts, self._world.topology),
            prove=lambda name, stage, tell: Done("proven"),
            shadows=_no_shadows,
            transactions=NothingHangs(),
            tables=TableStages(self._table_world(), _no_shadows),  # type: ignore[arg-type]
            orphans=lambda: _no_orphans,
            letters=LetterStages(self.topics, topics, self._loading, self.hold.check),  # type: ignore[arg-type]
        )

        def execute(processor: str, stage: Stage, tell: ProgressLog) -> Done:
            done = execution(processor, stage, tell)
            self.on_stage(stage)
            return done

        return execute

    def _table_world(self) -> TableWorld:
        world = self._world
        return TableWorld(
            tables=world.tables,
            topics=self.topics,
            cluster=lambda name: Loading(world, self.process, world.setting_positions),
            topology=lambda name: world.topology,
            held=lambda name, stores: held_by_owners(world, stores),
            clock=OperatorsTime(world),
        )

    def _loading(self, processor: str) -> Loading:
        return Loading(self._world, self.process, lambda offsets: None)

    def _tell(self, text: str) -> None:
        self._world.simulation.note(self.process.name, text)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._world.clock.time(), UTC)

    def _is_gone(self, name: str) -> bool:
        """Operators on one machine see each other's end at once."""
        return self._world.is_gone(name)

    def _client(self, processor: str, slot: str) -> SimulatedClient:
        return SimulatedClient(self._world, self.process, processor, slot)

    def _slots(self, processor: str) -> tuple[str, ...]:
        found = self.acting.registry.deployment(processor)
        return () if found is None else found.slots

    def _rollout(self, processor: str, release_id: str | None) -> Rollout:
        world, book = self._world, self.acting.registry.releases
        version = world.topology.code_version
        release = book.of_version(processor, version) if release_id is None else book.find(processor, release_id)
        slots = self._slots(processor) or world.slots
        if release is not None:
            return rollout_of_release(release, self.topics, slots, {}, world.state_dir)
        return Rollout(processor, version, slots, {INPUT: world.schedule.partitions}, {}, world.state_dir)

    def _code(self, processor: str) -> tuple[Code, Shape]:
        return self._world.code(), self._shape()

    def _shape(self) -> Shape:
        return shape_of(self._world.topology, {INPUT: self._world.schedule.partitions})

    def _folders(self, processor: str) -> LocalFolders:
        tasks = self._world.topology.tasks({INPUT: self._world.schedule.partitions})
        databases = self._world.disk.attach(self.process)
        return LocalFolders(
            databases, self._world.state_dir, processor, tasks, PeekHolding(databases, self.process.sleep)
        )


class OperatorsHold(Hold):
    """An operator's hold, which is beaten in virtual time for as long as he lives."""

    def __init__(self, world: LifecycleWorld, process: SimulatedProcess) -> None:
        super().__init__()
        self._world, self._process = world, process

    def take(self, fence: Fence, beat: Callable[[], bool]) -> None:
        # Beats come from the clock, too, where no process can be switched: they pass no point.
        registry = self._world.registry
        beats = {"apply": registry.journal.beat_apply, "incident": registry.beat_incident}
        super().take(fence, lambda: beats[fence.of](fence.id, fence.token))

    @contextmanager
    def beating(self) -> Iterator[None]:
        ended = False

        def beat() -> None:
            if not (ended or self._process.ended or self._process.frozen):
                with suppress(HoldLost):
                    self.check()
                self._world.clock.call_later(BEAT_S, beat)

        self._world.clock.call_later(BEAT_S, beat)
        try:
            yield
        finally:
            ended = True


@contextmanager
def virtual_time(world: LifecycleWorld) -> Iterator[None]:
    """Who waits in the lifecycle's own modules waits in virtual time."""
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
    """The same, as far as it says how processors run: faults come from elsewhere, and deletes stay.

    One seed of eight has a dead-letter topic; the others skip what fails.
    """
    chosen: dict[str, Any] = {"exactly_once": True, "aggregated": False, "faults": ()}
    chosen["dead_letters"] = schedule.seed % 8 == 4
    patience = {"retention_s": 86_400.0, "standby_replicas": 0, "store_step_s": min(schedule.store_step_s, 0.01)}
    return replace(schedule, **chosen, **patience)


def _no_orphans(stage: Stage) -> Done:
    raise AssertionError(f"no operator here asks for {stage.says}")


def _no_shadows(processor: str, stage: Stage, tell: ProgressLog) -> Done:
    raise AssertionError(f"no operator here asks for {stage.says}")
