"""Random sequences of verbs under kills, from seeds: see ``tests.simulation.lifecycle``."""

from __future__ import annotations

import pytest

from tests.simulation.lifecycle import lifecycle_runner

SEEDS, MORE_SEEDS, SHARE = 125, 200, 25
SHARES = [
    *range(0, SEEDS, SHARE),
    *(pytest.param(first, marks=pytest.mark.thorough) for first in range(SEEDS, MORE_SEEDS, SHARE)),
]


@pytest.mark.parametrize("first", SHARES)
def test_what_a_plan_says_is_what_happens_whoever_dies(first: int) -> None:
    with lifecycle_runner() as runner:
        for seed in range(first, first + SHARE):
            outcome = runner.run(seed)
            assert outcome.invariant is None, f"seed {seed} broke {outcome.invariant!r}: {outcome.detail}"


def test_operators_and_workers_die_and_applies_are_gone_on_with() -> None:
    with lifecycle_runner() as runner:
        outcomes = [runner.run(seed) for seed in range(20)]
    assert sum(outcome.struck for outcome in outcomes) > 20
    assert any("resumed" in line for outcome in outcomes for line in outcome.told)
