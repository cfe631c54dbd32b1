"""Random lives of stores on real tables: after each step the tables are what a plain model says."""

from __future__ import annotations

import os

import pytest

from tests.spark.model import machine
from tests.spark.model.life import World
from tests.tiers import variants

SEQUENCES = 50
CASES = 40


@pytest.mark.parametrize("number", variants(range(CASES)))
def test_tables_are_what_the_model_says_whatever_happens(world: World, number: int) -> None:
    machine.run(world, number, int(os.environ.get("SEQ", SEQUENCES)))
