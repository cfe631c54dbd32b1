"""Plans and applies verbs (deploy, clear, restore, …) on this machine, for jobs, commands and Python programs.

    from holdfast.infra.settings import load_settings
    from holdfast.orchestration.verbs import open_verbs
    from holdfast.processors.lifecycle.plans.requests import Clear, Keys

    with open_verbs(load_settings(), who="me") as verbs:
        plan = verbs.plan(Clear("fleet", stores=("aircraft",), selection=Keys(("N14228",))))
        print(verbs.explain(plan))
        verbs.apply(plan, confirmed=plan.hash)

Invariants:
    - Every plan is recorded, so a later refusal can name the facts that changed since the plan was shown.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.assets.rollouts import deployed_rollout, settings_of, slots_now
from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.system.holders import is_gone, new_holder
from holdfast.infra.system.privacy import private_files
from holdfast.orchestration.world import (
    ThisMachine,
    build_world,
    defined,
    environment_of,
    newest_logged,
    open_registry,
)
from holdfast.processors.application.registration import (
    ProcessorDefinition,
    ProcessorUnknown,
    find_processor,
)
from holdfast.processors.audits.stores import StoreAudit, audit_stores, checkpoint_manifests, store_partitions
from holdfast.processors.audits.tables import subject_of, tabled
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.deploy.code_files import Code, code_of
from holdfast.processors.lifecycle.deploy.deployment import DeploymentResult
from holdfast.processors.lifecycle.deploy.marking import behind, keep_mark
from holdfast.processors.lifecycle.deploy.present import slots_at_work
from holdfast.processors.lifecycle.deploy.releases import ReleaseFailed
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors, rollout_of_release
from holdfast.processors.lifecycle.plans import apply as applying
from holdfast.processors.lifecycle.plans import holding, way_on
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.apply import Applied, Applier, Holder, ProgressLog
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys
from holdfast.processors.lifecycle.plans.execution import Execution
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.orphans import OrphanFacts
from holdfast.processors.lifecycle.plans.facts.shape import Shape, from_document, shape_of, topology_of
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import OF_RELEASE, OfInstallation, Request, Selection
from holdfast.processors.lifecycle.ports import World, now_utc
from holdfast.processors.lifecycle.rebuild.beside import Rebuilding
from holdfast.processors.lifecycle.rebuild.from_tables import TableStages
from holdfast.processors.lifecycle.rebuild.shadow import Machine
from holdfast.processors.lifecycle.rebuild.table_world import TableWorld
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import what_is_left
from holdfast.processors.lifecycle.recovery.strangers import refuse_beside
from holdfast.processors.lifecycle.verbs.refusals import unknown_stores
from holdfast.processors.lifecycle.verbs.state.backfill import check_local
from holdfast.processors.lifecycle.verbs.table import plan_for, plan_of_installation
from holdfast.processors.lifecycle.world.dead_letters import LetterStages
from holdfast.processors.lifecycle.world.facts import WorldFacts
from holdfast.processors.lifecycle.world.hanging import HangingTransactions
from holdfast.processors.lifecycle.world.local_state import LocalFolders
from holdfast.processors.lifecycle.world.running_owners import Found, RunningOwners, is_complete
from holdfast.processors.lifecycle.world.warehouse import WarehouseTables
from holdfast.processors.proof.prover import PROOF, Prover

if TYPE_CHECKING:
    from holdfast.infra.warehouse.stored_tables import StoredTables
    from holdfast.processors.lifecycle.erasure.erasing import Erasing
    from holdfast.processors.lifecycle.orphans.cleaning import OrphanCleaning


class ApplyUnknown(HoldfastError):
    """No open apply has the given number."""

    exit_code = EXIT_BAD_CONFIGURATION


class Verbs:
    """Plans and applies requests for the processors of the settings.

    Args:
        settings: The settings that name the processors, Kafka and the home folder.
        registry: Holdfast's registry that records plans and applies.
        topics: The client for Kafka's topics.
        who: The user name that the registry records with each applied plan.
        clock: The current time in UTC.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        topics: Topics,
        who: str,
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._settings, self._exports = settings, settings.paths.exports
        self.registry = registry
        self._topics = topics
        self._who = who
        logged = partial(newest_logged, settings, topics)
        self._world: World = replace(build_world(settings, registry), clock=clock, logged=logged)
        self._owners = RunningOwners(self._client, self._slots, self._tasks_with)
        self._transactions = HangingTransactions(topics.bootstrap, topics.client_config)
        self._tables = WarehouseTables(partial(_stored_tables, settings))
        ports = (self._folders, self._owners, self._code, self._transactions, self._tables)
        self._facts = WorldFacts(
            topics, self._world, registry.journal, *ports, workers=settings.workers.get, present=self._present
        )
        self._holder = this_process()
        self._runner: DeployedProcessors | None = None

    def definition(self, processor: str) -> ProcessorDefinition:
        """The processor's definition in the present code, which may be newer than the deployed version.

        Raises:
            ProcessorUnknown: No processor has that name.
        """
        return find_processor(self._settings, processor)

    def orphans(self) -> OrphanFacts:
        """All resources that no registered store owns. They are read from Kafka, disk, object store and catalog now."""
        return self._orphans().orphans()

    def plan(self, request: Request) -> Plan:
        """Decide the stages of a request, and record the plan in Holdfast's registry. Changes nothing else.

        Raises:
            HoldfastError: The processor is unknown, or a fact cannot be read.
        """
        if isinstance(request, OfInstallation):
            decided = plan_of_installation(request, self._orphans())
        else:
            name = request.processor
            of_release = isinstance(request, OF_RELEASE)
            topology = self._topology(name) if of_release else self.definition(name).topology
            decided = plan_for(request, self._facts, topology)
        journal, now = self.registry.journal, self._world.clock()
        journal.remember_plan(decided.hash, decided.processor, decided.verb, plans.encode(decided), now)
        return decided

    @staticmethod
    def explain(plan: Plan) -> str:
        """The plan as text for users: the facts that it depends on, its steps and effects, and how to undo it."""
        return explain(plan)

    def apply(
        self, plan: Plan, *, confirmed: str | None = None, sure: bool = False, tell: ProgressLog = lambda text: None
    ) -> Applied:
        """Carry out a plan, unless the facts changed: a new plan of the same request must have the same hash.

        Args:
            plan: The result of ``plan``.
            confirmed: The hash of the plan that a person confirmed. A plan that deletes needs it, or ``sure``.
            sure: True confirms a plan that deletes, so that ``confirmed`` is not needed.
            tell: Function that gets each line of progress.

        Raises:
            PlanRefused, PlanStale, NotConfirmed, ApplyInProgress: The plan was not started; nothing was changed.
            HoldfastError: A stage failed; apply the same request again to resume.
        """
        now = self.plan(plan.request)
        shown = plan.hash if confirmed is None else confirmed
        applying.check_shown(now, shown, self.registry.journal, sure=sure or confirmed is not None)
        done = self._applier(tell).apply(now)
        keep_mark(self.registry, self._settings.paths, plan.processor)  # copies the deployment's record to a file
        return done

    @property
    def deployed(self) -> DeploymentResult | None:
        """The result of the newest deployment by this object; None if this object has carried out no deployment."""
        return None if self._runner is None else self._runner.result

    def begun(self, request: Request) -> ApplyRecord | None:
        """The open apply (executed plan) of an equal request, which must be resumed, not planned again; or None."""
        for record in self.registry.journal.applies(1, processor=request.processor, open_only=True):
            begun = way_on.read(record)
            if begun is not None and begun.request == request and begun.after_kill == "go on":
                return record
        return None

    def resume(self, apply_id: int, *, tell: ProgressLog = lambda text: None) -> Applied:
        """Resume an interrupted apply (execution of a plan) from its first unfinished stage.

        Raises:
            ApplyUnknown: No open apply has that number.
            ApplyInProgress: A live process holds the apply.
            HoldfastError: A stage failed; call ``resume`` again. PlanRefused: another installation runs the processor.
        """
        return self._applier(tell).resume(refuse_beside(self._open_apply(apply_id, "resumed"), self._world))

    def abandon(self, apply_id: int, *, reason: str, tell: ProgressLog = lambda text: None) -> ApplyRecord:
        """Close an open apply (execution of a plan) without undoing its stages; returns its record.

        A processor that the apply paused is resumed. Workers that it started in a paused state are stopped or resumed.
        ``tell`` gets the progress, and a warning about remaining workers of two versions or unrecorded workers.

        Raises:
            ApplyUnknown: No open apply has that number.
            ApplyInProgress: A live process holds the apply.
            HoldfastError: The processor cannot be stopped or resumed; the apply stays open.
        """
        record = self._open_apply(apply_id, "abandoned")
        self._applier(tell).abandon(record, reason)
        for line in what_is_left(record.processor, self._world, Limits(stuck_after_s=self._settings.stuck_after_s)):
            tell(line)
        return record

    def is_broken_off(self, record: ApplyRecord) -> bool:
        """Whether an apply was interrupted, so that it is open but no live process executes it."""
        return record.finished_at is None and applying.is_free(record, self._holder)

    def applies(self, processor: str | None = None, limit: int = 20) -> tuple[ApplyRecord, ...]:
        """The newest ``limit`` applies (executions of plans), newest first."""
        return self.registry.journal.applies(limit, processor=processor)

    def audit(self, processor: str, stores: tuple[str, ...], *, warehouse: bool = False) -> tuple[StoreAudit, ...]:
        """Compare each store with its changelog key by key; with ``warehouse=True`` also with its table.

        Empty ``stores`` means all. A table that is restored from its source topic is compared with that topic.

        Raises:
            PlanRefused: A store is unknown or has no changelog, or the processor does not run.
            TableUnknown: A table of the warehouse does not exist.
            HoldfastError: A worker or Kafka does not answer.
        """
        logged = (topology := self.definition(processor).topology).log_names
        if (unknown := unknown_stores(topology, stores)) is not None:
            raise applying.PlanRefused(unknown.sentence, action=unknown.action, processor=processor)
        if bare := next((store for store in stores if store not in logged), None):
            raise applying.PlanRefused(
                f"Store {bare} of {processor} has no changelog.",
                action=f"Stores with a changelog: {', '.join(logged) or 'none'}.",
                processor=processor,
            )
        if not any(each.alive for each in self._facts.instances(processor, self._slots(processor))):
            raise applying.PlanRefused(
                f"{processor} does not run; an audit asks its workers for a checkpoint.",
                action=f"Start it with `holdfast apply deploy {processor}`, then audit again.",
                processor=processor,
            )
        subjects = [
            subject_of(processor, each, logged[each], topology.source_log_of(each)) for each in stores or logged
        ]
        compared = subjects if warehouse else []
        return audit_stores(
            subjects,
            [self._client(processor, slot) for slot in self._slots(processor)],
            self._topics,
            self._topics.client_config,
            tables={each.store: tabled(self._settings, processor, each.store) for each in compared},
            kept=lambda: checkpoint_manifests(self._settings.paths.checkpoints(processor)),
        )

    def query(self, processor: str, store: str, selection: Selection, limit: int) -> Found:
        """At most ``limit`` entries of a store, from its running workers; from local state if the processor is stopped.

        Raises:
            PlanRefused: The store is unknown, or the processor is stopped and this machine lacks complete local state.
            HoldfastError: A worker or Kafka does not answer.
        """
        topology = self.definition(processor).topology
        if (unknown := unknown_stores(topology, (store,))) is not None:
            raise applying.PlanRefused(unknown.sentence, action=unknown.action, processor=processor)
        slots = self._slots(processor)
        if any(each.alive for each in self._facts.instances(processor, slots)):
            return self._owners.read(processor, store, selection, limit)
        wanted = self._tasks_with(processor, (store,))
        tasks = [sub.task(number) for sub in topology.subtopologies for name, number in wanted if name == sub.name]
        found = self._folders(processor).read(store, tasks, selection, limit)
        committed = self._topics.committed_offsets(processor)
        if found is None or not is_complete(found.places, committed):
            raise applying.PlanRefused(
                f"{processor} does not run, and this machine has no complete local state of {store}.",
                action=f"Start it with `holdfast deploy {processor}`, then query again. The last published version of "
                f"the store's table: `holdfast snapshot {processor} --store {store}`.",
                processor=processor,
                store=store,
            )
        return found

    def _orphans(self, registry: Registry | None = None, topics: Topics | None = None) -> OrphanCleaning:
        from holdfast.processors.lifecycle.orphans.cleaning import OrphanCleaning  # imported late: loads Iceberg

        ports = (registry or self.registry, topics or self._topics)
        return OrphanCleaning(self._settings, *ports, self._who, partial(defined, self._settings), self._world.clock)

    def _erasing(self, registry: Registry, topics: Topics, owners: RunningOwners, hold: holding.Hold) -> Erasing:
        from holdfast.orchestration.erasing import erasing_of  # imported late: loads Iceberg

        machine = (self._state_dir, self._slots, self._client, self._input_partitions)
        return erasing_of(self._settings, registry, topics, owners, hold, machine, self._world.clock)

    def _applier(self, tell: ProgressLog = lambda text: None) -> Applier:
        hold = holding.Hold()
        execution, journal = self._execution(hold), self.registry.journal
        return Applier(execution, journal, self._who, this_process(), tell, self._world.clock, hold)

    def _open_apply(self, apply_id: int, what: str) -> ApplyRecord:
        record = self.registry.journal.apply_of(apply_id)
        if record is None or record.finished_at is not None:
            state = "does not exist" if record is None else f"is closed ({record.outcome}); expected an open apply"
            raise ApplyUnknown(
                f"Apply {apply_id} {state}.", action="Choose an open apply from `holdfast apply list`.", apply=apply_id
            )
        old = behind(record.processor, self._world)
        if old is not None:
            raise applying.PlanRefused(
                f"Apply {apply_id} of {record.processor} can't be {what}: it may have ended. {old.sentence}",
                action=f"Run `{old.action}`.",
                processor=record.processor,
            )
        return record

    def _execution(self, hold: holding.Hold) -> Execution:
        """The objects that execute a plan. Before each change, they check that this process still may execute it."""
        registry = self.registry.fenced(lambda: hold.fence)
        world = replace(
            self._world, registry=registry, deployer=holding.fenced(self._world.deployer, holding.DEPLOYER, hold)
        )
        topics = holding.fenced(self._topics, holding.TOPICS, hold)

        def client(processor: str, slot: str) -> ProcessorClient:
            return holding.fenced(self._client(processor, slot), holding.WORKER, hold)

        kept = self._settings.upkeep.releases
        runner = DeployedProcessors(world, self._rollout, self._who, self._code_and_shape, topics, kept, self._present)
        self._runner = runner
        rebuilding = Rebuilding(
            Machine(
                world=world,
                topics=topics,
                runner=runner,
                rollout=lambda processor: self._rollout(processor, None),
                client=client,
                shadow=lambda processor, store: self.definition(processor).application.shadow(store).topology(),
                state_dir=self._state_dir,
                once=lambda: hold.step,
            )
        )
        from_tables = TableWorld(
            tables=self._tables,
            topics=topics,
            cluster=lambda processor: self.definition(processor).application.cluster(self._settings),
            topology=lambda processor: self.definition(processor).topology,
            held=self._held,
            erased=partial(ErasedKeys.of, registry, self._settings.paths),
        )
        owners = RunningOwners(client, self._slots, self._tasks_with, lambda: hold.step, exports=self._exports)
        return Execution(
            topics=topics,
            runner=runner,
            owners=owners,
            local=lambda processor: holding.fenced(self._folders(processor), holding.FOLDERS, hold),
            check_local=lambda name, stores: check_local(name, stores, self._facts, self.definition(name).topology),
            prove=Prover(
                topics=self._topics,
                client=client,
                slots=self._slots,
                stores=lambda name: tuple(spec.store for spec in self.definition(name).topology.changelogs),
                rollout=self._rollout,
                scratch=lambda name: self._settings.paths.releases(name) / PROOF,
            ),
            shadows=rebuilding,
            transactions=holding.fenced(self._transactions, holding.TRANSACTIONS, hold),
            tables=TableStages(from_tables, rebuilding),
            letters=LetterStages(self._topics, topics, from_tables.cluster, hold.check),
            orphans=lambda: self._orphans(registry, topics),
            erasing=lambda: self._erasing(registry, topics, owners, hold),
        )

    def _held(self, processor: str, stores: Sequence[str]) -> dict[str, dict[int, Fingerprint]]:
        """Store -> partition -> fingerprint (hash of the content), read from checkpoints that workers take now."""
        # Imported late, because importing this module must not load RocksDB.
        from holdfast.processors.engine.state.databases.checkpoint_reader import fingerprint_checkpoint

        told = [self._client(processor, slot).checkpoint() for slot in self._slots(processor)]
        return {
            store: {part.partition: fingerprint_checkpoint(part.path, store) for part in store_partitions(told, store)}
            for store in stores
        }

    def _state_dir(self, processor: str) -> Path:
        try:
            return self.definition(processor).application.state_dir or self._settings.paths.state
        except ProcessorUnknown:
            return self._settings.paths.state

    def _present(self) -> dict[str, str]:
        return environment_of(self._settings)

    def _rollout(self, processor: str, release_id: str | None) -> Rollout:
        machine = ThisMachine(self._settings, self._world)
        if release_id is None:
            return deployed_rollout(processor, self.definition, self._topics, machine)
        release = self.registry.releases.find(processor, release_id)
        if release is None:
            raise ReleaseFailed(
                f"Processor {processor} has no release {release_id}.",
                action=f"Make a new plan with `holdfast plan deploy {processor}`.",
                processor=processor,
                release=release_id,
            )
        slots = slots_now(processor, machine)
        environment = settings_of(processor, release_id, machine)
        return rollout_of_release(release, self._topics, slots, environment, machine.project)

    def _code(self, processor: str) -> Code:
        return code_of(self.definition(processor).target)

    def _code_and_shape(self, processor: str) -> tuple[Code, Shape]:
        definition = self.definition(processor)
        return code_of(definition.target), shape_of(definition.topology, self._input_partitions(processor))

    def _topology(self, processor: str) -> Topology:
        """The topology from the processor's code; if that can't be imported, from the last release that worked."""
        try:
            return self.definition(processor).topology
        except ProcessorUnknown:
            release = self.registry.releases.working(processor)
            if release is None:
                raise
            return topology_of(processor, from_document(release.shape))

    def _input_partitions(self, processor: str) -> dict[str, int]:
        names = [spec.name for spec in self._topology(processor).inputs]
        return {name: facts.partitions for name, facts in self._topics.describe(names).items()}

    def _client(self, processor: str, slot: str) -> ProcessorClient:
        return ProcessorClient(processor, slot, self._settings.paths)

    def _slots(self, processor: str) -> tuple[str, ...]:
        return slots_at_work(processor, self._world)

    def _tasks_with(self, processor: str, stores: Sequence[str]) -> frozenset[tuple[str, int]]:
        return self.definition(processor).topology.tasks_with(stores, self._input_partitions(processor))

    def _folders(self, processor: str) -> LocalFolders:
        tasks = self._topology(processor).tasks(self._input_partitions(processor))
        return LocalFolders(RocksDatabases(), self._state_dir(processor), processor, tasks)


@contextmanager
def open_verbs(settings: Settings, *, who: str | None = None) -> Iterator[Verbs]:
    """Open ``Verbs`` for the processors, the registry and the Kafka cluster of the settings.

    ``who`` is the user name to record with each applied plan; None records the user and the id of this process.

    Raises:
        HoldfastError: The registry cannot be opened.
    """
    with private_files(settings), closing(open_registry(settings)) as registry:
        topics = Topics(bootstrap_servers(settings), client_config(settings))
        yield Verbs(settings, registry, topics, who or this_user())


def _stored_tables(settings: Settings) -> StoredTables:
    # Imported late, because these imports take a second, and most verbs need no table.
    from holdfast.infra.warehouse.catalog import existing_catalog
    from holdfast.infra.warehouse.stored_tables import StoredTables

    return StoredTables(partial(existing_catalog, settings))


def this_user() -> str:
    """The default user name to record with an action, for example ``anna (pid 4711)``."""
    return f"{getpass.getuser()} (pid {os.getpid()})"


def this_process() -> Holder:
    """A new name under which this process executes plans. It shows other processes whether this process has ended."""
    return Holder(new_holder(), is_gone)
