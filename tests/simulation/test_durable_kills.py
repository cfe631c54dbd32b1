"""Durable calls under schedules of crashes: no call with a committed answer is repeated.

The service logs its calls. All shares of ``make test-thorough`` together have more than 1,000 kills.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from holdfast.infra.settings import Settings
from tests.mechanics.tiers import named, variants
from tests.simulation.called import CalledWorkload
from tests.simulation.faults import Faults
from tests.simulation.planted import CALLED_BUGS, Planted, not_caught, seeds_until_caught
from tests.simulation.run import SeedRunner, runner
from tests.simulation.schedule import Fault, Kind, Schedule, called_schedule
from tests.simulation.world import World

#: Kills of each share.
KILLS = 105
SHARES = 10
SEEDS_MAX = 300
#: The steps of a commit at which a process is killed. Calls precede each of these commits.
AIMS = (
    *("produce:before", "flush:before", "flush:half", "flush:after", "send_offsets:before", "send_offsets:after"),
    *("commit:before", "commit:sent", "commit:after", "disk:write:before", "disk:write:after"),
)


@dataclass(slots=True)
class Count:
    """What happened over several schedules."""

    kills: int = 0
    repeated: int = 0
    unanswered: int = 0
    allowed: int = 0


def kills_only(seed: int) -> Schedule:
    """A schedule of one process that is killed again and again at steps of its commits, and of no other fault."""
    drawn, random = called_schedule(seed), Random(f"kills only of {seed}")
    return replace(
        drawn,
        processes=1,
        standby_replicas=0,
        partitions=min(drawn.partitions, 3),
        horizon_s=400.0,
        retention_s=86_400.0,
        client_raises_at_s=(),
        store_step_s=0.0,
        faults=tuple(Fault(Kind.CRASH, random.randint(0, 40), random.choice(AIMS)) for _ in range(60)),
    )


def add_run(count: Count, seed: int, folder: Path) -> None:
    """Run a schedule of kills with all checks of the simulation, and add what the service logged."""
    schedule = kills_only(seed)
    world = World(schedule, folder, Settings())
    faults = Faults(world)
    world.run()
    workload = world.workload
    assert isinstance(workload, CalledWorkload)
    assert workload.service.zombies == 0
    count.kills += faults.struck[Kind.CRASH]
    count.repeated += workload.service.repeated
    count.unanswered += workload.service.unanswered
    count.allowed += faults.struck[Kind.CRASH] * workload.at_once * schedule.partitions


@pytest.fixture(scope="module")
def called_seeds() -> Iterator[SeedRunner]:
    with runner(of="called") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("share", variants(range(SHARES), tested=1))
def test_kills_repeat_no_more_calls_than_had_no_committed_answer(
    called_seeds: SeedRunner, share: int, tmp_path: Path
) -> None:
    count, seed = Count(), share * 1_000
    while count.kills < KILLS:
        add_run(count, seed, tmp_path)
        seed += 1
    assert 0 < count.repeated <= count.unanswered <= count.allowed


@pytest.mark.slow
@pytest.mark.parametrize("first", variants(range(0, 100, 5), tested=1))
def test_calls_outputs_and_state_are_right_under_every_schedule(called_seeds: SeedRunner, first: int) -> None:
    for seed in range(first, first + 5):
        outcome = called_seeds.run(seed)
        assert outcome.invariant is None, outcome.text()


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(CALLED_BUGS))
def test_a_planted_bug_in_durable_calls_is_caught(called_seeds: SeedRunner, bug: Planted, known: bool) -> None:
    caught = seeds_until_caught(called_seeds, bug, SEEDS_MAX, known=known)
    assert caught is not None, not_caught(bug, "tests.simulation.planted")
