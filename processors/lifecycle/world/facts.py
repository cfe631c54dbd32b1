"""Reads facts from Kafka, supervisor, workers' statuses and state folders (implements ``plans.facts.FactSource``).

Invariants:
    - Reading changes nothing. A worker that does not answer is reported without its status, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.infra.database.applies import ApplyJournal
from holdfast.infra.database.records import Release
from holdfast.infra.kafka.records import Member
from holdfast.infra.kafka.topics.spread import spread_in
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.waiting import wait_until
from holdfast.processors.lifecycle.deploy.code_files import Code
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.keep_or_replace import look
from holdfast.processors.lifecycle.deploy.marking import behind
from holdfast.processors.lifecycle.deploy.present import pids_at_work, slots_beyond
from holdfast.processors.lifecycle.deploy.releases import release_id
from holdfast.processors.lifecycle.plans.erased_keys import ErasuresOfWorld
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.plans.facts.dead_letters import LetterFacts
from holdfast.processors.lifecycle.plans.facts.facts import (
    CodeFacts,
    Counted,
    DeploymentFacts,
    InstanceFacts,
    LocalTask,
    Rate,
    ReleaseFacts,
)
from holdfast.processors.lifecycle.plans.facts.shape import from_document
from holdfast.processors.lifecycle.plans.facts.warehouse import Tables
from holdfast.processors.lifecycle.plans.requests import Selection
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.world.changelog_meta import last_meta
from holdfast.processors.lifecycle.world.dead_letters import letter_facts
from holdfast.processors.lifecycle.world.export_files import file_facts
from holdfast.processors.lifecycle.world.hanging import HangingTransactions
from holdfast.processors.lifecycle.world.local_state import LocalFolders
from holdfast.processors.lifecycle.world.running_owners import RunningOwners

#: Maximum seconds to wait until Kafka has removed dead workers from the group. A dead member stays in the group for the
#: session timeout, by default 45 s.
GHOSTS_S = 60.0
_LOOK_EVERY_S = 0.5


class WorldFacts(ErasuresOfWorld):
    """Reads the facts of processors; implements ``FactSource``, which describes the methods.

    Args:
        topics: Access to Kafka topics and groups.
        world: Access to supervisor, workers, registry and clock.
        journal: Records of applies, from which rates are computed.
        folders: Function of a processor that returns its state folders on this machine.
        owners: Counts keys in running workers.
        code: Function of a processor that returns the files of its definition.
        transactions: Finds hanging transactions.
        tables: Access to the warehouse.
        present: Function that returns the workers' environment from the present settings; None in simulations.
        workers: Function of a processor that returns its number of workers in the settings; None if not set.
    """

    def __init__(  # tidy: allow-wide because each parameter is a separate source of facts
        self,
        topics: Topics,
        world: World,
        journal: ApplyJournal,
        folders: Callable[[str], LocalFolders],
        owners: RunningOwners,
        code: Callable[[str], Code],
        transactions: HangingTransactions,
        tables: Tables,
        workers: Callable[[str], int | None] = lambda processor: None,
        present: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        #: Maximum seconds to wait until Kafka has removed dead workers from the group; 0 in simulations.
        self.ghosts_s = GHOSTS_S
        self._topics = topics
        self._world = world
        self._journal = journal
        self._folders = folders
        self._owners = owners
        self._code = code
        self.workers = workers
        self._present = present
        # ``FactSource`` has these methods, and other objects already implement them, so this object takes them over.
        self.ping, self.describe, self.committed_offsets = topics.ping, topics.describe, topics.committed_offsets
        self.names = topics.names
        self.start_offsets, self.end_offsets = topics.start_offsets, topics.end_offsets
        self.newest_keys = topics.newest_keys
        self.store_table, self.other_table = tables.store_table, tables.other_table
        self.hanging, self.file = transactions.hanging, file_facts

    def now(self) -> float:
        return self._world.clock().timestamp()

    def deployment(self, processor: str) -> DeploymentFacts | None:
        found = self._world.registry.deployment(processor)
        if found is None:
            return None
        return DeploymentFacts(found.code_version, found.slots, found.desired, found.generation)

    def behind(self, processor: str) -> Behind | None:
        return behind(processor, self._world)

    def instances(self, processor: str, slots: Sequence[str]) -> tuple[InstanceFacts, ...]:
        if not self._world.deployer.running():
            return tuple(InstanceFacts(slot, False) for slot in slots)
        there = (*slots, *slots_beyond(processor, slots, self._world))
        return tuple(self._instance(processor, slot) for slot in there)

    def client_ids(self, processor: str) -> frozenset[str]:
        return self._folders(processor).client_ids()

    def members(self, group: str) -> tuple[Member, ...]:
        """Waits until the sessions of dead workers have timed out, and returns the members of the group."""
        found: tuple[Member, ...] = ()

        def settled() -> bool:
            nonlocal found
            found = self._topics.group_members(group)
            return not found or not self._died(group)

        wait_until(settled, self.ghosts_s, every_s=_LOOK_EVERY_S)
        return found

    def _died(self, processor: str) -> bool:
        """Whether the processor should run but has no process; the group may then still list its dead members."""
        deployment = self.deployment(processor)
        if deployment is None or deployment.desired == "stopped":
            return False
        return not any(each.alive for each in self.instances(processor, deployment.slots))

    def local_tasks(self, processor: str) -> tuple[LocalTask, ...]:
        return self._folders(processor).local_tasks()

    def count(self, processor: str, store: str, selection: Selection, partitions: tuple[int, ...]) -> Counted | None:
        """Keys and bytes of a selection, counted by the workers; if workers cannot count, read from local state."""
        counted = self._owners.count(processor, store, selection, partitions)
        return counted if counted is not None else self._folders(processor).count(store, selection, partitions)

    def rates(self, processor: str) -> dict[str, Rate]:
        found = self._journal.stage_rates(processor)
        return {stage: Rate(units, seconds) for stage, (units, seconds) in found.items()}

    def released(self, processor: str) -> ReleaseFacts | None:
        found = self._world.registry.releases.working(processor)
        return None if found is None else _release(found)

    def releases(self, processor: str) -> tuple[ReleaseFacts, ...]:
        return tuple(_release(each) for each in self._world.registry.releases.newest(processor))

    def letters(self, processor: str, topic: str, inputs: tuple[str, ...]) -> LetterFacts | None:
        return letter_facts(self._topics, processor, topic, inputs)

    def before(self, processor: str) -> ReleaseFacts | None:
        found = self._world.registry.releases.before(processor)
        return None if found is None else _release(found)

    def code(self, processor: str, code_version: str) -> CodeFacts:
        found = self._code(processor)
        name = release_id(code_version, found.digest)
        return CodeFacts(name, found.target, found.why_not, found.left, found.unseen)

    def held_inputs(self, changelog: str) -> dict[int, dict[str, int]]:
        """Partition -> input topic -> next input offset, from the meta record (record with a commit's input offsets).

        Partitions without a meta record are left out.
        """
        starts, ends = self._topics.start_offsets(changelog), self._topics.settled_end_offsets(changelog)
        found = {
            number: last_meta(self._topics, changelog, number, (starts[number], end)) for number, end in ends.items()
        }
        return {number: dict(meta.inputs) for number, meta in found.items() if meta is not None}

    def spread(self, topic: str) -> str:
        """The partitioner of a topic's writers, derived from the topic's newest keys."""
        return spread_in(self._topics, topic)

    def settings(self, processor: str) -> tuple[str, ...]:
        """Texts, one for each present setting that differs from the deployed release or from its running workers."""
        deployed = self._world.registry.deployment(processor)
        book = self._world.registry.releases
        release = None if deployed is None else book.of_version(processor, deployed.code_version)
        if release is None or self._present is None:
            return ()
        workers = pids_at_work(processor, self._world)
        return DeployedSettings(self._world.paths).changed(processor, release.release_id, self._present(), workers)

    def _instance(self, processor: str, slot: str) -> InstanceFacts:
        program, status = look(slot, processor, self._world)
        alive = program is not None and program.alive
        if not alive or status is None:
            return InstanceFacts(slot, alive)
        return InstanceFacts(
            slot,
            alive,
            phase=status.phase,
            code_version=status.code_version,
            paused=status.paused,
            tasks=tuple(task.task for task in status.tasks),
            store_bytes=sum(task.store_bytes or 0 for task in status.tasks),
        )


def _release(found: Release) -> ReleaseFacts:
    shape, worked = from_document(found.shape), found.worked_at is not None
    copied = found.folder is not None and Path(found.folder).is_dir()
    return ReleaseFacts(found.release_id, found.code_version, copied, shape, worked)
