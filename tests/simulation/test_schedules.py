"""Schedules beside functions of messages, under crashes, zombies, rebalances, lost requests and clocks that are set."""

from __future__ import annotations

import pytest

from tests.mechanics.tiers import variants
from tests.simulation.run import runner

#: A seed with several owners of a task comes first.
SEEDS = [3, *(seed for seed in range(60) if seed != 3)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", variants(SEEDS, tested=1))
def test_no_slot_is_left_out_or_doubled_under_any_schedule(seed: int) -> None:
    with runner(of="scheduled") as seeds:
        outcome = seeds.run(seed)
    assert outcome.invariant is None, outcome.text()
