"""Every bug that is planted in the lifecycle is found by the simulation of operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.lifecycle import lifecycle_runner
from tests.simulation.planted import seeds_until_caught
from tests.simulation.planted_verbs import BUGS, PlantedVerb

SEEDS_MAX = 60
DOCS = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_caught(bug: PlantedVerb) -> None:
    with lifecycle_runner() as seeds:
        caught = seeds_until_caught(seeds, bug, SEEDS_MAX)
    assert caught is not None, f"{SEEDS_MAX} seeds ran with this bug, and nothing was found"


def test_the_documentation_lists_every_planted_bug() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [bug.name for bug in BUGS if f"| {bug.name} |" not in text] == []
