"""Schedules beside functions of messages, under crashes, zombies, rebalances, lost requests and clocks that are set."""

from __future__ import annotations

import pytest

from tests.mechanics.tiers import variants
from tests.simulation.run import runner


@pytest.mark.slow
@pytest.mark.parametrize("first", variants(range(0, 200, 5), tested=1))
def test_no_slot_is_left_out_or_doubled_under_any_schedule(first: int) -> None:
    with runner(of="scheduled") as seeds:
        for seed in range(first, first + 5):
            outcome = seeds.run(seed)
            assert outcome.invariant is None, outcome.text()
