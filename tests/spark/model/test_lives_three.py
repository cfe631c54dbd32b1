"""Random action sequences on a store with real tables, part three: after each step, the tables equal a plain model."""

from __future__ import annotations

import pytest

from tests.mechanics.tiers import variants
from tests.spark.model.life import World
from tests.spark.model.machine import CASES_OF_A_FILE, PATIENCE_S, SEQUENCES, run

pytestmark = pytest.mark.timeout(PATIENCE_S)


@pytest.mark.parametrize("number", variants(range(2 * CASES_OF_A_FILE, 3 * CASES_OF_A_FILE), tested=0))
def test_tables_are_what_the_model_says_whatever_happens(world: World, number: int) -> None:
    failures = run(world, number, SEQUENCES)
    assert not failures, "\n\n".join(failure.text() for failure in failures)
