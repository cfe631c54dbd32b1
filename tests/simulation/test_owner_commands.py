"""Commands to task owners under crashes, zombies, lost answers and rebalances.

Each command takes effect exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.mechanics.tiers import variants
from tests.simulation.owner_world import check_all, commanded, draw_command, owner_schedule
from tests.simulation.run import runner
from tests.simulation.verifier import InvariantBroken

SEEDS = 150
SHARE = 25


def run(seed: int, folder: Path) -> int:
    """Run one seed. Returns the number of commands that had to be repeated."""
    random = Random(f"commands of {seed}")
    schedule = owner_schedule(seed, horizon_s=1.0)
    with commanded(schedule, folder, entries_max=random.choice([1, 2, 3, 10_000])) as world:
        done = 0
        for _ in range(random.randint(1, 4)):
            for partition, messages in enumerate(world.workload.messages):
                world.feed_to(partition, random.randint(world._sent[partition], len(messages)))
            world.settle()
            for partition in range(schedule.partitions):
                if random.random() < 0.7:
                    draw_command(world, random, partition)()
                    done += 1
                    world.settle()
        for partition, messages in enumerate(world.workload.messages):
            world.feed_to(partition, len(messages))
        check_all(world)
        return world.asked - done


@pytest.fixture(scope="module")
def asked_again(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], int]]:
    """A function that runs a seed, and returns the number of repeated commands. Results are cached for this file."""
    folder = tmp_path_factory.mktemp("commands")
    with runner():
        yield cache(lambda seed: run(seed, folder))


@pytest.mark.parametrize("first", variants(range(0, SEEDS, SHARE), tested=1))
def test_what_is_cleared_stays_so_and_all_else_is_as_the_input_says(
    asked_again: Callable[[int], int], first: int
) -> None:
    for seed in range(first, first + SHARE):
        try:
            asked_again(seed)
        except InvariantBroken as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


@pytest.mark.slow
def test_commands_are_broken_off_and_asked_again_in_some_schedules(asked_again: Callable[[int], int]) -> None:
    assert sum(asked_again(seed) for seed in range(SHARE)) > 5
