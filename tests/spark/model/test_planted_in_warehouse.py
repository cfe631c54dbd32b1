"""The model finds real bugs: each former bug of the warehouse is planted again and must break a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mechanics.tiers import named
from tests.spark.model.life import World
from tests.spark.model.machine import PATIENCE_S, run
from tests.spark.model.warehouse_bugs import BUGS, SEED, SEQUENCES_MAX, PlantedInWarehouse

pytestmark = pytest.mark.timeout(PATIENCE_S)

#: The number of action sequences of each course that are run without a bug.
SEQUENCES_SOUND = 3
DOCS = Path(__file__).resolve().parents[3] / "docs" / "simulation-warehouse.md"


@pytest.mark.parametrize("bug", named(BUGS, thorough={bug.name for bug in BUGS}))
def test_a_bug_in_the_warehouse_is_found(world: World, bug: PlantedInWarehouse) -> None:
    lives = world.lives
    found = bug.failures(world)
    assert found, f"{SEQUENCES_MAX} lives with this bug, and nothing was found"
    print(f"{bug.name}: {found[0].promise!r} in life {found[0].sequence - lives}; {found[0].detail[:200]}")


@pytest.mark.thorough
def test_what_finds_the_bugs_finds_nothing_without_them(world: World) -> None:
    courses = list({(bug.course.actions, *map(str, bug.course.given.items())): bug.course for bug in BUGS}.values())
    found = [failure for course in courses for failure in run(world, SEED, SEQUENCES_SOUND, course=course)]
    assert not found, "\n\n".join(failure.text() for failure in found)


def test_the_documentation_lists_every_bug_of_the_warehouse() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [bug.name for bug in BUGS if f"| {bug.name} |" not in text] == []
