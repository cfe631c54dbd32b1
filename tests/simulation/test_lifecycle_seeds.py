"""Random sequences of verbs under kills, from seeds: see ``tests.simulation.lifecycle``."""

from __future__ import annotations

import pytest

from tests.simulation.lifecycle import lifecycle_runner
from tests.tiers import variants

SEEDS, SHARE = 200, 10


@pytest.mark.parametrize("first", variants(range(0, SEEDS, SHARE), tested=5, quick=1))
def test_what_a_plan_says_is_what_happens_whoever_dies(first: int) -> None:
    with lifecycle_runner() as runner:
        for seed in range(first, first + SHARE):
            outcome = runner.run(seed)
            assert outcome.invariant is None, f"seed {seed} broke {outcome.invariant!r}: {outcome.detail}"


@pytest.mark.slow
def test_operators_and_workers_die_and_applies_are_gone_on_with() -> None:
    with lifecycle_runner() as runner:
        outcomes = [runner.run(seed) for seed in range(20)]
    assert sum(outcome.struck for outcome in outcomes) > 20
    assert any("resumed" in line for outcome in outcomes for line in outcome.told)
