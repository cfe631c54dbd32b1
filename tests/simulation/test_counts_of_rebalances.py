"""A worker counts the messages that fail. The counts move with their task when a worker joins or leaves the group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.settings import Settings
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from tests.simulation.schedule import plain_schedule
from tests.simulation.scheduler import signals_kept
from tests.simulation.small_portions import tuned
from tests.simulation.workload import GROUP, expect
from tests.simulation.world import Machine, World

PATIENCE_S = 120.0
#: With this seed, messages of both partitions fail, before and after the middle of the input.
SEED = 8


def counts(machine: Machine) -> dict[str, int]:
    """Return the number of failed messages that a machine's worker has counted, by running task."""
    worker = machine.app._worker if machine.app is not None else None
    tasks = [] if worker is None else worker.assignment.tasks
    return {each.name: each.arrivals.counts().total for each in tasks if each.phase is TaskPhase.RUNNING}


@pytest.mark.parametrize("dead_letters", [True, False])
def test_counts_survive_a_rebalance_between_two_workers(tmp_path: Path, dead_letters: bool) -> None:
    plain = replace(plain_schedule(SEED), exactly_once=True, dead_letters=dead_letters, partitions=2, stores=1)
    rest: dict[str, Any] = {"pieces": 0, "switching": 0.0, "retention_s": 86_400.0, "faults": (), "assignor": "range"}
    schedule = replace(plain, processes=2, commit_every=1, standby_replicas=0, **rest)
    world = World(schedule, tmp_path, Settings())
    first, second = world.machines[:2]
    dead = expect(world.workload).dead
    sent = [0, 0]

    def committed() -> bool:
        offsets = world.cluster.committed_offsets(GROUP)
        return all((offsets.get(place) or 0) >= end for place, end in world._ends.items())

    def until_counted(owners: tuple[Machine, ...], tasks: int, part: float) -> dict[str, int]:
        for number, messages in enumerate(world.workload.messages):
            sent[number] = int(len(messages) * part)
            world.feed(number, sent[number])

        def done() -> bool:
            return committed() and all(len(counts(each)) == tasks for each in owners)

        world.simulation.run_until(done, PATIENCE_S)
        assert world.broken is None
        return {name: count for each in owners for name, count in counts(each).items()}

    def failed() -> dict[str, int]:
        found = {f"{name}-{at}": 0 for name in world.workload.inputs[:1] for at in (0, 1)}
        for partition, number in dead:
            if number < sent[partition]:
                found[f"{world.workload.inputs[0]}-{partition}"] += 1
        return found

    try:
        with signals_kept(), tuned(schedule):
            first.wanted = True
            first.start()
            assert until_counted((first,), 2, 0.5) == failed()
            assert min(failed().values()) > 0, "else nothing has to survive"
            second.wanted = True
            second.start()
            assert until_counted((first, second), 1, 0.5) == failed(), "a task came with its counts"
            assert until_counted((first, second), 1, 0.8) == failed()
            first.wanted = False
            first.stop()
            assert until_counted((second,), 2, 1.0) == failed(), "the other task came, too"
    finally:
        world.simulation.end()
