"""Schedules by the clock fire each slot once, under crashes, zombies, rebalances, lost requests and clock changes."""

from __future__ import annotations

import pytest

from tests.mechanics.tiers import variants
from tests.simulation.run import runner

#: Seed 3 comes first, because several workers own a task during its run.
SEEDS = [3, *(seed for seed in range(60) if seed != 3)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", variants(SEEDS, tested=1))
def test_no_slot_is_left_out_or_doubled_under_any_schedule(seed: int) -> None:
    with runner(of="scheduled") as seeds:
        outcome = seeds.run(seed)
    assert outcome.invariant is None, outcome.text()
