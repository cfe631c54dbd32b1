"""A simulated operator. It plans and applies with production code.

It may be killed at any point, that is, before or after any call to the cluster, Holdfast's registry or the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.infra.database.errors import HoldLost
from holdfast.infra.database.lease_times import BEAT_S
from holdfast.infra.database.leases import Fence
from holdfast.processors.lifecycle.deploy.code_files import Code
from holdfast.processors.lifecycle.deploy.marking import behind, keep_mark
from holdfast.processors.lifecycle.deploy.releases import KEPT
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors, rollout_of_release
from holdfast.processors.lifecycle.plans import apply as applying
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.apply import Applied, Applier, Done, Executor, Holder, ProgressLog
from holdfast.processors.lifecycle.plans.execution import Execution
from holdfast.processors.lifecycle.plans.facts.shape import Shape, shape_of
from holdfast.processors.lifecycle.plans.holding import DEPLOYER, TOPICS, Hold, fenced
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Request
from holdfast.processors.lifecycle.plans.stages import ProveVersion, Stage
from holdfast.processors.lifecycle.ports import World as Acting
from holdfast.processors.lifecycle.rebuild.from_tables import TableStages
from holdfast.processors.lifecycle.rebuild.table_world import TableWorld
from holdfast.processors.lifecycle.recovery import incidents
from holdfast.processors.lifecycle.verbs.state.backfill import check_local
from holdfast.processors.lifecycle.verbs.table import plan_for
from holdfast.processors.lifecycle.world.dead_letters import LetterStages
from holdfast.processors.lifecycle.world.facts import WorldFacts
from holdfast.processors.lifecycle.world.local_state import LocalFolders
from holdfast.processors.lifecycle.world.running_owners import RunningOwners
from tests.simulation.erased import erasing_in_memory
from tests.simulation.lifecycle_machine import (
    NothingHangs,
    OperatorsTime,
    OperatorsTopics,
    PeekHolding,
    Pointed,
    SimulatedClient,
    SimulatedDeployer,
)
from tests.simulation.lifecycle_tables import Loading, held_by_owners
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.workload import GROUP, INPUT

if TYPE_CHECKING:
    from tests.simulation.lifecycle_world import LifecycleWorld


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of a request: its plan, and the finished apply (execution of the plan).

    ``applied`` is None if the plan was refused or had nothing to do.
    """

    plan: Plan
    applied: Applied | None
    resumed: bool


class Operator:
    """One run of an operator's program on simulated parts.

    ``orchestration.verbs.Verbs`` is its counterpart in production.
    """

    #: A function that returns the current settings of workers on the operator's machine. None: the settings never
    #: change.
    present: Callable[[], Mapping[str, str]] | None = None
    releases_kept = KEPT

    #: The maximum number of virtual seconds that a request to the broker waits for its answer.
    request_timeout_s = 20.0

    def __init__(self, world: LifecycleWorld, process: SimulatedProcess) -> None:
        self._world = world
        self.process = process
        self.topics = OperatorsTopics(world.cluster._broker, process, self.request_timeout_s)
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
        #: Called with each stage (step of a plan) after it is done, before the registry's journal records it.
        self.on_stage: Callable[[Stage], None] = lambda stage: None

    def plan(self, request: Request) -> Plan:
        """Plans a request, as ``Verbs.plan`` does."""
        decided = plan_for(request, self.facts, self._world.topology)
        self.journal.remember_plan(decided.hash, decided.processor, decided.verb, plans.encode(decided), self._now())
        return decided

    def ask(self, request: Request, shown: Callable[[Plan], None]) -> Shown:
        """Handle a request as the command line does.

        Resumes an unfinished apply (execution of a plan) of the request; without one, plans the request and applies it.
        """
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
        """Restart the dead workers of a processor that should run, as the recovery sensor and a recovery run do."""
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
        """Make the executor of stages (steps of plans), as ``Verbs._execution`` does."""
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
            prove=self.prove,
            shadows=_no_shadows,
            transactions=NothingHangs(),
            tables=TableStages(self._table_world(), _no_shadows),  # type: ignore[arg-type]
            orphans=lambda: _no_orphans,
            letters=LetterStages(self.topics, topics, self._loading, self.hold.check),  # type: ignore[arg-type]
            erasing=lambda: erasing_in_memory(self._world, self, registry, topics),
        )

        def execute(processor: str, stage: Stage, tell: ProgressLog) -> Done:
            done = execution(processor, stage, tell)
            self.on_stage(stage)
            return done

        return execute

    def prove(self, processor: str, stage: ProveVersion, tell: ProgressLog) -> Done:
        """Accept every version, because the simulation does not test the proof (trial run) of a version."""
        return Done("proven")

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
        """Whether an operator has ended. Operators on the same machine see this at once."""
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
    """An operator's hold (exclusive claim) on a processor. It is renewed in virtual time while the operator lives."""

    def __init__(self, world: LifecycleWorld, process: SimulatedProcess) -> None:
        super().__init__()
        self._world, self._process = world, process

    def take(self, fence: Fence, beat: Callable[[], bool]) -> None:
        # The clock also renews the hold at moments when the scheduler must not switch processes. So the renewal calls
        # Holdfast's registry directly. Such a call passes no points (places where the scheduler may switch processes).
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


def _no_orphans(stage: Stage) -> Done:
    raise AssertionError(f"no operator here asks for {stage.says}")


def _no_shadows(processor: str, stage: Stage, tell: ProgressLog) -> Done:
    raise AssertionError(f"no operator here asks for {stage.says}")
