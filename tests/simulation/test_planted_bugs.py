"""The simulation is worth what it finds: each planted bug has to break an invariant within some hundred seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, Planted, seeds_until_caught
from tests.simulation.run import SeedRunner, runner
from tests.tiers import named

SEEDS_MAX = 500
#: Few schedules find these: each takes seconds.
RARE = frozenset(
    {
        "a checkpoint of another changelog is restored",
        "a refused commit counts as done",
        "an unknown outcome counts as failure",
        "an unknown outcome counts as success",
        "any end of partition completes a restore",
        "cached reads survive an abort",
        "checksums of a checkpoint are not verified",
        "committed offsets are read without waiting for pending ones",
        "damaged data reads as absent",
        "files are collected that another upload is about to name",
        "state of any age is replayed on",
        "the group's generation does not fence",
        "the overlay survives an abort",
        "the producer is kept after an unknown outcome",
        "the restore target is the last stable offset",
        "work continues with revoked partitions",
    }
)
DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "simulation.md"


@pytest.fixture(scope="module")
def seeds() -> Iterator[SeedRunner]:
    with runner() as running:
        yield running


@pytest.mark.parametrize("bug", named(BUGS, thorough=RARE))
def test_a_planted_bug_is_caught(seeds: SeedRunner, bug: Planted) -> None:
    caught = seeds_until_caught(seeds, bug, SEEDS_MAX)
    assert caught is not None, f"{SEEDS_MAX} seeds ran with this bug, and nothing was found"
    needed, outcome = caught
    print(f"{bug.name}: caught by {outcome.invariant!r} in seed {outcome.seed}, the {needed}th")


def test_the_documentation_lists_every_planted_bug() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [bug.name for bug in BUGS if f"| {bug.name} |" not in text] == []
