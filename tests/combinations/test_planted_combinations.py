"""The net is worth what it finds: each planted bug has to show within some seeds, the known one first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.combinations.planted_bugs import BUGS, Planted, caught, known_seeds
from tests.combinations.run import quiet, run_seed
from tests.mechanics.tiers import named

#: The known seed first, then so many.
SEEDS_MAX = 200
#: A task that stands still takes all of the time that a trial may take; a unit test shows this one in every tier.
SLOW = frozenset({"a task answers its own watermark with another one"})


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with quiet() as made:
        yield made


@pytest.mark.parametrize("bug", named(BUGS, thorough=SLOW))
def test_a_planted_bug_is_caught(folder: Path, bug: Planted) -> None:
    known = [known_seeds()[bug.name]] if bug.name in known_seeds() else []
    outcome = caught(bug, [*known, *range(SEEDS_MAX)], folder)
    assert outcome is not None, f"{SEEDS_MAX} seeds ran with this bug, and nothing was found"
    assert outcome.kind in ("outputs", "state", "liveness", "exits"), outcome.text()
    assert not run_seed(outcome.seed, folder).kind, f"seed {outcome.seed} fails without the bug, too"
