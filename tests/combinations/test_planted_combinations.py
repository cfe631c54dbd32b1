"""Tests the combination tests themselves: they must detect each planted bug within ``SEEDS_MAX`` seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.combinations.planted_bugs import BUGS, Planted, caught, known_seeds
from tests.combinations.run import quiet, run_seed
from tests.mechanics.tiers import examples, named

#: The number of seeds that are tried after a bug's known seed. If the known seed no longer detects the bug,
#: `python -m tests.combinations.planted_bugs` finds another one. A long search here would hide that it must be run.
SEEDS_MAX = examples(200, tested=10)
#: Bugs that only `make test-thorough` plants. With the first one, a task never ends and uses a run's whole time limit,
#: but a unit test always detects it. Each seed of the others takes 5 to 20 s. In `make test`, another bug breaks the
#: same check.
SLOW = frozenset(
    {
        "a task answers its own watermark with another one",
        "a task that groups again what it has grouped waits for itself",
        "an end from before a pause counts",
        "the last word of a dead worker counts as its end",
        "a value is read until it leaves its store",
        "messages to a repartition topic are sent outside of the transaction",
        "a task without stream time asks for no end of its groupings",
        "records behind a run that was cut are taken",
    }
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with quiet() as made:
        yield made


@pytest.mark.parametrize("bug", named(BUGS, thorough=SLOW))
def test_a_planted_bug_is_caught(folder: Path, bug: Planted) -> None:
    known = [known_seeds()[bug.name]] if bug.name in known_seeds() else []
    outcome = caught(bug, [*known, *range(SEEDS_MAX)], folder)
    assert outcome is not None, f"{SEEDS_MAX} seeds ran with this bug, and nothing was found; is its known seed stale?"
    assert outcome.kind in ("outputs", "state", "liveness", "exits"), outcome.text()
    assert not run_seed(outcome.seed, folder).kind, f"seed {outcome.seed} fails without the bug, too"
