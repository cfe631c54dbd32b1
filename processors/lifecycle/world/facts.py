"""Reads facts from Kafka, the deployer, the workers' status and the state folders (``plans.facts.FactSource``).

Invariants:
    - Read only. A worker that does not answer is reported without status, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.infra.kafka.partitioners import spread_in
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.waiting import wait_until
from holdfast.processors.lifecycle.deploy.deployment import look
from holdfast.processors.lifecycle.deploy.releases import Code, release_id
from holdfast.processors.lifecycle.plans.facts import (
    CodeFacts,
    Counted,
    DeploymentFacts,
    HangingTransaction,
    InstanceFacts,
    LocalTask,
    Rate,
    ReleaseFacts,
)
from holdfast.processors.lifecycle.plans.requests import Selection
from holdfast.processors.lifecycle.plans.shape import from_document
from holdfast.processors.lifecycle.plans.warehouse_facts import OtherTable, StoreTable, Tables
from holdfast.processors.lifecycle.ports import Journal, World
from holdfast.processors.lifecycle.world.changelog_ends import held_inputs
from holdfast.processors.lifecycle.world.hanging import HangingTransactions
from holdfast.processors.lifecycle.world.local_state import LocalFolders

#: Longest wait for members whose process died, seconds; they stay in the group for the session timeout (45 by default).
GHOSTS_S = 60.0
_LOOK_EVERY_S = 0.5


class Counting(Protocol):
    """Asks workers for the number of their keys."""

    def count(self, processor: str, store: str, selection: Selection, partitions: tuple[int, ...]) -> Counted | None:
        """Keys and bytes of a selection; None when a worker does not answer."""
        ...


class WorldFacts:
    """Reads the facts of processors.

    Args:
        topics: Kafka.
        world: Deployer, workers, registry, clock.
        journal: Records of applies, for measured rates.
        folders: Processor -> its state folders on this machine.
        owners: Counts keys in running workers.
        code: Processor -> the files of its definition.
        transactions: Finds hanging transactions.
        tables: The warehouse.
    """

    def __init__(  # tidy: allow-wide because facts come from so many places
        self,
        topics: Topics,
        world: World,
        journal: Journal,
        folders: Callable[[str], LocalFolders],
        owners: Counting,
        code: Callable[[str], Code],
        transactions: HangingTransactions,
        tables: Tables,
    ) -> None:
        #: Longest wait for members of the group whose process died, seconds; 0 in simulations.
        self.ghosts_s = GHOSTS_S
        self._tables = tables
        self._topics = topics
        self._world = world
        self._journal = journal
        self._folders = folders
        self._owners = owners
        self._code = code
        self._transactions = transactions

    def now(self) -> float:
        """See ``FactSource.now``."""
        return self._world.clock().timestamp()

    def deployment(self, processor: str) -> DeploymentFacts | None:
        """See ``FactSource.deployment``."""
        found = self._world.registry.deployment(processor)
        if found is None:
            return None
        return DeploymentFacts(found.code_version, found.slots, found.desired, found.generation)

    def instances(self, processor: str, slots: Sequence[str]) -> tuple[InstanceFacts, ...]:
        """See ``FactSource.instances``."""
        if not self._world.deployer.running():
            return tuple(InstanceFacts(slot, False) for slot in slots)
        return tuple(self._instance(processor, slot) for slot in slots)

    def members(self, group: str) -> int:
        """Number of members in the group, after the sessions of dead workers have timed out."""
        found = 0

        def settled() -> bool:
            nonlocal found
            found = self._topics.members(group)
            return not found or not self._died(group)

        wait_until(settled, self.ghosts_s, every_s=_LOOK_EVERY_S)
        return found

    def _died(self, processor: str) -> bool:
        """Whether it is meant to run and has no process: its members then remain until their session timeout."""
        deployment = self.deployment(processor)
        if deployment is None or deployment.desired != "deployed":
            return False
        return not any(each.alive for each in self.instances(processor, deployment.slots))

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        """See ``FactSource.committed_offsets``."""
        return self._topics.committed_offsets(group)

    def ping(self) -> int:
        """See ``FactSource.ping``."""
        return self._topics.ping()

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """See ``FactSource.describe``."""
        return self._topics.describe(names)

    def start_offsets(self, topic: str) -> dict[int, int]:
        """See ``FactSource.start_offsets``."""
        return self._topics.start_offsets(topic)

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """See ``FactSource.end_offsets``."""
        return self._topics.end_offsets(topic, committed=committed)

    def local_tasks(self, processor: str) -> tuple[LocalTask, ...]:
        """See ``FactSource.local_tasks``."""
        return self._folders(processor).local_tasks()

    def count(self, processor: str, store: str, selection: Selection, partitions: tuple[int, ...]) -> Counted | None:
        """See ``FactSource.count``: asks the workers, else reads local state."""
        counted = self._owners.count(processor, store, selection, partitions)
        return counted if counted is not None else self._folders(processor).count(store, selection, partitions)

    def hanging(self, partitions: Mapping[str, int]) -> tuple[HangingTransaction, ...]:
        """See ``FactSource.hanging``."""
        return self._transactions.hanging(partitions)

    def rates(self, processor: str) -> dict[str, Rate]:
        """See ``FactSource.rates``."""
        found = self._journal.stage_rates(processor)
        return {stage: Rate(units, seconds) for stage, (units, seconds) in found.items()}

    def released(self, processor: str) -> ReleaseFacts | None:
        """See ``FactSource.released``."""
        found = self._world.registry.releases.working(processor)
        if found is None:
            return None
        return ReleaseFacts(found.release_id, found.code_version, found.folder is not None, from_document(found.shape))

    def code(self, processor: str, code_version: str) -> CodeFacts:
        """See ``FactSource.code``."""
        found = self._code(processor)
        return CodeFacts(release_id(code_version, found.digest), found.target, found.why_not)

    def store_table(self, processor: str, store: str) -> StoreTable:
        """See ``FactSource.store_table``."""
        return self._tables.store_table(processor, store)

    def other_table(self, name: str) -> OtherTable:
        """See ``FactSource.other_table``."""
        return self._tables.other_table(name)

    def held_inputs(self, changelog: str) -> dict[int, dict[str, int]]:
        """See ``FactSource.held_inputs``."""
        return held_inputs(self._topics, changelog)

    def spread(self, topic: str) -> str:
        """See ``FactSource.spread``: found from the newest keys of the topic."""
        return spread_in(self._topics, topic)

    def _instance(self, processor: str, slot: str) -> InstanceFacts:
        program, status = look(slot, processor, self._world)
        alive = program is not None and program.alive
        if not alive or status is None:
            return InstanceFacts(slot, alive)
        sizes = [getattr(task, "store_bytes", None) for task in status.tasks]
        return InstanceFacts(
            slot,
            alive,
            phase=status.phase,
            code_version=status.code_version,
            paused=status.paused,
            tasks=tuple(str(getattr(task, "task", task.partition)) for task in status.tasks),
            store_bytes=sum(size for size in sizes if size is not None),
        )
