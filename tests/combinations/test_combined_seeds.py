"""Random topologies give the same result under all schedules; `make test-combinations` runs thousands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.combinations.run import quiet, run_seed
from tests.mechanics.tiers import variants

SEEDS, SHARE = 5_000, 20
#: The number of schedules per seed in `make test`: one without faults and one with faults.
SCHEDULES = 2


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with quiet() as made:
        yield made


@pytest.mark.parametrize("first", variants(range(0, SEEDS, SHARE), tested=3, quick=1))
def test_the_same_input_gives_the_same_results_under_every_schedule(folder: Path, first: int) -> None:
    for seed in range(first, first + SHARE):
        outcome = run_seed(seed, folder, SCHEDULES)
        assert not outcome.kind, f"{outcome.text()}\nreproduce: python -m tests.combinations.run --seed {seed}"
