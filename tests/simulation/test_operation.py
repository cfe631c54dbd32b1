"""Runs courses: simulated sequences of operators' commands and faults, with the recovery sensor.

Also checks that the courses detect planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.mechanics.tiers import named, variants
from tests.simulation.operation import COURSES, FILES, FIRST, SHARE, OperationRunner, Outcome, operation_runner, shares
from tests.simulation.operation_steps import Ask, Both
from tests.simulation.planted import not_caught, seeds_until_caught
from tests.simulation.planted_operation import BUGS, Planted

SEEDS_MAX = 400
DOCS = Path(__file__).resolve().parents[2] / "docs" / "simulation-operation.md"


@pytest.fixture(scope="module")
def runner() -> Iterator[OperationRunner]:
    with operation_runner() as made:
        yield made


@pytest.fixture(scope="module")
def outcome_of(runner: OperationRunner) -> Callable[[int], Outcome]:
    """A function that runs the course (sequence of commands and faults) of a seed.

    It keeps the results, so that the tests of this file run each course only once.
    """
    return cache(runner.run)


@pytest.mark.slow
@pytest.mark.parametrize("first", variants(range(0, FIRST, SHARE), tested=2))
def test_after_quiet_the_world_is_the_record_or_the_named_action_makes_it_so(
    runner: OperationRunner, outcome_of: Callable[[int], Outcome], first: int
) -> None:
    for seed in range(first, first + SHARE):
        outcome = outcome_of(seed)
        if outcome.invariant is not None:
            pytest.fail(f"seed {seed} broke {outcome.invariant!r}:\n{runner.shrink(outcome).story}")


def test_the_files_of_courses_have_all_seeds_once() -> None:
    there = sorted((Path(__file__).parent / "courses").glob("test_*.py"))
    firsts = [*range(0, FIRST, SHARE), *(first for file in range(FILES) for first in shares(file))]
    assert len(there) == FILES
    assert [number for number in range(FILES) if f"shares({number})" in "".join(map(Path.read_text, there))] == list(
        range(FILES)
    )
    seeds = sorted(seed for first in firsts for seed in range(first, first + SHARE))
    assert seeds == list(range(COURSES))


@pytest.mark.slow
def test_commands_are_ended_and_named_actions_are_run(outcome_of: Callable[[int], Outcome]) -> None:
    outcomes = [outcome_of(seed) for seed in range(2 * SHARE)]
    assert sum(outcome.acted for outcome in outcomes) > 2
    assert any("interrupted" in line for outcome in outcomes for line in outcome.told)
    assert any("SIGKILL" in line for outcome in outcomes for line in outcome.told)
    assert any(isinstance(step, Both) for outcome in outcomes for step in outcome.course)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_course_is_cut_down_to_the_steps_that_it_needs(runner: OperationRunner) -> None:
    with BUGS[0].growing():
        caught = next(each for each in map(runner.run, range(SEEDS_MAX)) if each.invariant is not None)
        shrunk = runner.shrink(caught)
    assert shrunk.invariant == caught.invariant
    assert set(shrunk.course) <= set(caught.course)
    assert any(isinstance(step, Ask | Both) for step in shrunk.course)


#: Bugs that only `make test-thorough` plants: another bug breaks the same check, or a check of a sink beside it.
THOROUGH = frozenset(
    {
        "a repeated result of an older message overwrites a newer row",
        "a file is at its place before the commit of its results",
        "a repeated request has another idempotency key",
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(BUGS, thorough=THOROUGH))
def test_the_bug_is_caught(runner: OperationRunner, bug: Planted, known: bool) -> None:
    caught = seeds_until_caught(runner, bug, SEEDS_MAX, known=known)
    assert caught is not None, not_caught(bug, "tests.simulation.planted_operation")


def test_the_documentation_lists_every_planted_bug() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [bug.name for bug in BUGS if f"| {bug.name} |" not in text] == []
