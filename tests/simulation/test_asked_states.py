"""Queries at random points of schedules: each is answered by the committed fold at its position, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.settings import Settings
from tests.mechanics.tiers import named, variants
from tests.simulation.faults import Faults
from tests.simulation.planted import ASKED_BUGS, Planted, not_caught, seeds_until_caught
from tests.simulation.questions import AskedWorld
from tests.simulation.run import SeedRunner, runner
from tests.simulation.schedule import asked_schedule

SEEDS_MAX = 300


@pytest.fixture(scope="module")
def asked_seeds() -> Iterator[SeedRunner]:
    with runner(of="asked") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("first", variants(range(0, 300, 5), tested=1))
def test_each_answer_is_the_committed_fold_at_its_position(asked_seeds: SeedRunner, first: int) -> None:
    for seed in range(first, first + 5):
        outcome = asked_seeds.run(seed)
        assert outcome.invariant is None, outcome.text()


@pytest.mark.slow
def test_owners_and_standbys_answer_and_refuse(asked_seeds: SeedRunner, tmp_path: Path) -> None:
    answers: Counter[str] = Counter()
    for seed in range(8, 12):
        world = AskedWorld(asked_schedule(seed), tmp_path, Settings())
        Faults(world)
        world.run()
        answers += world.asker.answers
    refusals = sum(count for said, count in answers.items() if said.startswith("refused"))
    assert answers["owner"] > 50, answers
    assert answers["standby"] > 5, answers
    assert refusals > 5, answers


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(ASKED_BUGS))
def test_a_planted_bug_in_queries_is_caught(asked_seeds: SeedRunner, bug: Planted, known: bool) -> None:
    caught = seeds_until_caught(asked_seeds, bug, SEEDS_MAX, known=known)
    assert caught is not None, not_caught(bug, "tests.simulation.planted")
    assert caught[1].invariant == "queries", caught[1].text()
