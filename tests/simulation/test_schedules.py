"""Schedules (functions called by the clock) fire each scheduled time once, despite crashes and rebalances.

Other faults are zombies, lost requests and clock changes.
"""

from __future__ import annotations

import pytest

from tests.mechanics.tiers import variants
from tests.simulation.run import runner

#: The seeds of the tests. `make test` runs only the first seed. Seed 3 is the first, because in its run a task moves
#: between several workers.
SEEDS = [3, *(seed for seed in range(60) if seed != 3)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", variants(SEEDS, tested=1))
def test_no_slot_is_left_out_or_doubled_under_any_schedule(seed: int) -> None:
    with runner(of="scheduled") as seeds:
        outcome = seeds.run(seed)
    assert outcome.invariant is None, outcome.text()
