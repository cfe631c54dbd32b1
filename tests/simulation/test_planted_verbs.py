"""Tests the simulation of operators itself: it must detect each bug that is planted in the lifecycle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mechanics.tiers import named
from tests.simulation.lifecycle import lifecycle_runner
from tests.simulation.planted import not_caught, seeds_until_caught
from tests.simulation.planted_verbs import BUGS, Planted

SEEDS_MAX = 60
#: Bugs that only few sequences detect. Each of them takes seconds, so they run only in `make test-thorough`.
RARE = frozenset(
    {
        "a changelog is created again from local state that is lost",
        "a clear of some keys clears all",
        "a rollback ignores the release that was named",
        "a stage that failed is noted as done",
        "an apply that died after its work stays open",
        "only the first of several owners is asked",
        "stores of the same inputs come back one without the other",
    }
)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "simulation-operators.md"


@pytest.mark.parametrize("bug", named(BUGS, thorough=RARE))
def test_the_bug_is_caught(bug: Planted, known: bool) -> None:
    with lifecycle_runner() as seeds:
        caught = seeds_until_caught(seeds, bug, SEEDS_MAX, known=known)
    assert caught is not None, not_caught(bug, "tests.simulation.planted_verbs")


def test_the_documentation_lists_every_planted_bug() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [bug.name for bug in BUGS if f"| {bug.name} |" not in text] == []
