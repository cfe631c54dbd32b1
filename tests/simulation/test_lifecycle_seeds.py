"""Random sequences of verbs (operator commands), while operators and workers are killed.

Runs ``tests.simulation.lifecycle``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.mechanics.tiers import variants
from tests.simulation.lifecycle import Outcome, lifecycle_runner

SEEDS, SHARE = 200, 5


@pytest.fixture(scope="module")
def outcome_of() -> Iterator[Callable[[int], Outcome]]:
    """Runs a seed; the result is cached for all tests of this file."""
    with lifecycle_runner() as runner:
        yield cache(runner.run)


@pytest.mark.parametrize("first", variants(range(0, SEEDS, SHARE), tested=1))
def test_what_a_plan_says_is_what_happens_whoever_dies(outcome_of: Callable[[int], Outcome], first: int) -> None:
    for seed in range(first, first + SHARE):
        outcome = outcome_of(seed)
        assert outcome.invariant is None, f"seed {seed} broke {outcome.invariant!r}: {outcome.detail}"


@pytest.mark.slow
def test_operators_and_workers_die_and_applies_are_gone_on_with(outcome_of: Callable[[int], Outcome]) -> None:
    outcomes = [outcome_of(seed) for seed in range(SHARE)]
    assert sum(outcome.struck for outcome in outcomes) > 5
    assert any("resumed" in line for outcome in outcomes for line in outcome.told)
