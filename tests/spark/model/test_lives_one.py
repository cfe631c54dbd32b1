"""Random action sequences on a store with real tables, part one. After each step, the tables equal a plain model."""

from __future__ import annotations

import pytest

from tests.mechanics.tiers import variants
from tests.spark.model.life import World
from tests.spark.model.machine import CASES_OF_A_FILE, PATIENCE_S, SEQUENCES, SHORT, run
from tests.spark.model.warehouse_bugs import BUGS

pytestmark = pytest.mark.timeout(PATIENCE_S)


@pytest.mark.parametrize(("number", "lives"), variants([(0, SHORT), *((n, SEQUENCES) for n in range(CASES_OF_A_FILE))]))
def test_tables_are_what_the_model_says_whatever_happens(world: World, number: int, lives: int) -> None:
    failures = run(world, number, lives)
    assert not failures, "\n\n".join(failure.text() for failure in failures)


@pytest.mark.thorough
def test_lives_find_a_planted_bug(world: World) -> None:
    """The model finds a planted bug. This one is found quickly, so the test can run in this file's JVM.

    `test_planted_in_warehouse.py` plants all bugs.
    """
    bug = next(each for each in BUGS if each.name == "9: any event time is made a timestamp")
    assert bug.failures(world)
