"""Each worker is asked only for its own partitions, even if subtopologies have different numbers of partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.processors.engine.runtime.owner_commands.commands import CommandRefused
from holdfast.processors.engine.serving.status import TaskStatus
from holdfast.processors.engine.serving.worker_client import ProcessorSilent
from holdfast.processors.lifecycle.plans.facts.facts import InstanceFacts
from holdfast.processors.lifecycle.plans.requests import Compact, Everything, Keys
from holdfast.processors.lifecycle.plans.stages import ClearKeys, CompactStores
from holdfast.processors.lifecycle.verbs.table import decide
from holdfast.processors.lifecycle.world.running_owners import NobodyOwns, RunningOwners
from tests.unit.processors.lifecycle.worlds import orders_topology, two_widths_topology, world_of

TOPOLOGY = two_widths_topology()
NARROW, WIDE = (sub.name for sub in TOPOLOGY.subtopologies)
#: By slot (a worker's place) and subtopology, the owned partitions. Partition 1 of the two subtopologies has different
#: owners.
OWNED = {"0": {NARROW: (0,), WIDE: (0, 1, 2)}, "1": {NARROW: (1,), WIDE: (3, 4)}}


@dataclass
class Worker:
    """A worker that refuses partitions that it does not own, like ``commands.checks``."""

    slot: str
    owned: dict[str, tuple[int, ...]]
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    named: str | None = None

    def status(self) -> Any:
        tasks = [
            TaskStatus(f"{sub}-{number}", sub, number, "running", {})
            for sub, numbers in self.owned.items()
            for number in numbers
        ]
        return SimpleNamespace(tasks=tasks)

    def clear(self, stores: Any, *, partitions: Any, positions: Any = None, **named: Any) -> dict[str, Any]:
        (sub,) = (sub for sub in TOPOLOGY.subtopologies if set(stores) <= set(sub.stores))
        mine = self.owned.get(sub.name, ())
        placed = {number for each in (positions or {}).values() for number in each}
        if not {*partitions, *placed} <= set(mine):
            raise CommandRefused(f"owns {mine}, asked for {partitions} and {placed}", action="-")
        self.asked.append((stores, partitions, positions))
        self.named = named.get("once")
        files = [{"path": f"/exports/{self.slot}.jsonl"}] if named.get("export") else []
        return {"keys": len(partitions), "bytes": 0, "files": files}

    def count(self, store: str, **which: Any) -> dict[str, Any]:
        return self.clear((store,), **which)

    def compact(self) -> dict[str, Any]:
        self.asked.append(("compact",))
        return {"bytes_before": 2, "bytes_after": 1}


@dataclass
class Starting(Worker):
    """A worker that has just started. Its status has no partitions at the first two checks."""

    looks: int = 2

    def status(self) -> Any:
        self.looks -= 1
        return super().status() if self.looks < 0 else SimpleNamespace(tasks=[])


def owners_of(owned: dict[str, dict[str, tuple[int, ...]]], once: str = "") -> tuple[RunningOwners, dict[str, Worker]]:
    workers = {slot: Worker(slot, each) for slot, each in owned.items()}
    client: Any = lambda processor, slot: workers[slot]  # noqa: E731
    counts = {"few": 2, "many": 5}
    owners = RunningOwners(
        client, lambda name: tuple(workers), lambda name, stores: TOPOLOGY.tasks_with(stores, counts), lambda: once, 0.0
    )
    return owners, workers


def clearing(store: str, partitions: tuple[int, ...], **positions: dict[int, int]) -> ClearKeys:
    return ClearKeys("-", (store,), Everything(), partitions, positions)


def test_a_clear_has_the_name_of_its_stage() -> None:
    owners, workers = owners_of(OWNED, "apply 7, stage 2")
    owners.clear("orders", clearing("narrow", ()), print)
    assert [workers[slot].named for slot in "01"] == ["apply 7, stage 2"] * 2


def test_each_worker_is_asked_for_its_own_tasks_of_the_store() -> None:
    owners, workers = owners_of(OWNED)
    assert owners.clear("orders", clearing("narrow", (), few={0: 0, 1: 7}), print) == (2, ())
    assert owners.clear("orders", clearing("wide", (1, 3)), print) == (2, ())
    exporting = replace(clearing("narrow", (1,)), export=True)
    assert owners.clear("orders", exporting, print) == (1, ("/exports/1.jsonl",))
    assert workers["0"].asked == [(("narrow",), (0,), {"few": {0: 0}}), (("wide",), (1,), None)]
    assert workers["1"].asked == [
        (("narrow",), (1,), {"few": {1: 7}}),
        (("wide",), (3,), None),
        (("narrow",), (1,), None),
    ]
    counted = owners.count("orders", "narrow", Keys(("a",)), (1, 4))
    assert counted is not None
    assert counted.keys == 1


@dataclass
class Silent(Worker):
    """A worker that does not answer, for example because its process is frozen."""

    def status(self) -> Any:
        return None


def test_a_silent_worker_is_left_out_if_others_own_all_tasks() -> None:
    owners, workers = owners_of({**OWNED, "2": {}})
    workers["2"] = Silent("2", {})
    assert owners.clear("orders", clearing("narrow", ()), print) == (2, ())
    counted = owners.count("orders", "narrow", Keys(("a",)), ())
    assert counted is not None
    assert counted.keys == 2


@pytest.mark.parametrize("slot", ["0", "1"])
def test_a_silent_worker_whose_tasks_nobody_else_owns_is_named(slot: str) -> None:
    owners, workers = owners_of(OWNED)
    workers[slot] = Silent(slot, {})
    with pytest.raises(ProcessorSilent, match=rf"slot {slot}\) does not answer"):
        owners.clear("orders", clearing("narrow", ()), print)
    assert owners.count("orders", "narrow", Keys(("a",)), ()) is None


def test_a_change_waits_for_the_owner_of_each_task() -> None:
    """A clear waits until each task has an owner.

    After a worker has started, the group assigns all partitions again, so for a while no worker owns any.
    """
    starting = {slot: Starting(slot, each) for slot, each in OWNED.items()}
    client: Any = lambda processor, slot: starting[slot]  # noqa: E731
    counts = {"few": 2, "many": 5}
    owners = RunningOwners(client, lambda name: tuple(starting), lambda name, of: TOPOLOGY.tasks_with(of, counts))
    assert owners.clear("orders", clearing("narrow", ()), print) == (2, ())
    assert [each.asked for each in starting.values()] == [[(("narrow",), (0,), None)], [(("narrow",), (1,), None)]]


def test_the_slots_of_the_plan_are_compacted_and_no_other_one() -> None:
    owners, workers = owners_of(OWNED)
    topology = orders_topology()
    version = topology.code_version
    gone = InstanceFacts("0", False, None, version), InstanceFacts("1", True, "running", version)
    (stage,) = decide(Compact("orders"), world_of(topology, instances=gone), topology).stages
    assert isinstance(stage, CompactStores)
    assert owners.compact("orders", stage, print) == (2, 1)
    assert [each.asked for each in workers.values()] == [[], [("compact",)]]
    assert owners.compact("orders", CompactStores("-"), print) == (4, 2), "a plan of a former version names no slots"


def test_a_task_without_owner_is_told_although_its_number_has_one() -> None:
    """Slot 1 owns partition 3 of subtopology ``few``.

    Still, partitions 3 and 4 of ``many`` are reported as without owner.
    """
    owners, _ = owners_of({**OWNED, "1": {NARROW: (1, 3)}})
    with pytest.raises(NobodyOwns, match=r"owns partition 3, 4 of wide"):
        owners.clear("orders", clearing("wide", ()), print)
    assert owners.count("orders", "wide", Keys(("a",)), ()) is None
