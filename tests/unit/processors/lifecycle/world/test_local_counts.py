"""Counts of keys in local state, from the most advanced copy of each task. No count is given if no copy is complete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import META_KEY, encode_value, key_prefix
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.lifecycle.plans.facts.facts import Counted, read_facts
from holdfast.processors.lifecycle.plans.requests import Everything
from holdfast.processors.lifecycle.world.local_state import LocalFolders
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import InlineProcess
from tests.simulation.disk import SimulatedDisk
from tests.simulation.lifecycle_machine import PeekHolding
from tests.unit.processors.lifecycle.worlds import orders_topology

TOPOLOGY = orders_topology()
TASKS = TOPOLOGY.tasks({"placed": 2})


class Machine:
    """A disk with the state folders of several slots (workers' places), which no worker uses.

    Also has the facts about topics and groups that a count needs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.databases = SimulatedDisk().attach(InlineProcess(VirtualClock()))
        self.committed = {Partition("placed", number): 10 for number in range(2)}

    def has(self, slot: str, task: str, keys: list[bytes], *, offset: int, read: int = 10) -> None:
        path = self.folder / "orders" / slot / task
        path.parent.mkdir(parents=True, exist_ok=True)
        database = self.databases.open(path)
        prefix = store_prefix("totals")
        database.write([(prefix + key_prefix(key) + b"n", encode_value(1, 0)) for key in keys])
        at = StoreOffset("orders-totals-changelog", "id", offset)
        meta = TaskMeta(stores={"totals": at}, inputs={"placed": read})
        database.write([(META_KEY, meta.encode())])
        database.close()

    def __getattr__(self, name: str) -> Any:
        """All other facts are empty: nothing is deployed, and no topic exists."""
        return lambda *_, **__: {"now": 0.0, "members": (), "deployment": None, "behind": None}.get(name, {})

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        return self.committed

    def local_tasks(self, processor: str) -> Any:
        return LocalFolders(self.databases, self.folder, processor, TASKS, PeekHolding(self.databases)).local_tasks()

    def count(self, processor: str, store: str, selection: Any, partitions: tuple[int, ...]) -> Counted | None:
        return LocalFolders(self.databases, self.folder, processor, TASKS, PeekHolding(self.databases)).count(
            store, selection, partitions
        )

    def counted(self, *partitions: int) -> int | None:
        found = read_facts(TOPOLOGY, self, count=(("totals",), Everything(), partitions)).counted.get("totals")
        return None if found is None else found.keys


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_key_of_two_partitions_is_two_keys(machine: Machine) -> None:
    machine.has("0", TASKS[0], [b"a", b"b"], offset=5)
    machine.has("0", TASKS[1], [b"a"], offset=5)
    assert machine.counted() == 3
    assert machine.counted(1) == 1


def test_of_several_copies_the_furthest_counts(machine: Machine) -> None:
    machine.has("0", TASKS[0], [b"a", b"b", b"gone"], offset=5, read=8)
    machine.has("1", TASKS[0], [b"a"], offset=9)
    machine.has("1", TASKS[1], [], offset=5)
    assert machine.counted() == 1


def test_state_that_lacks_something_counts_for_nothing(machine: Machine) -> None:
    machine.has("0", TASKS[0], [b"a"], offset=5)
    assert machine.counted() is None
    assert machine.counted(0) == 1
    machine.has("0", TASKS[1], [b"a"], offset=5, read=9)
    assert machine.counted() is None
