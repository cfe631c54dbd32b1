"""Some hundred schedules of crashes, zombies, broken disks and lost requests; `make test-simulation` runs thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.run import SeedRunner, runner
from tests.simulation.schedule import Kind
from tests.tiers import variants

PROJECT = Path(__file__).resolve().parent.parent.parent
SEEDS = 300
SHARE = 25


@pytest.fixture(scope="module")
def seeds() -> Iterator[SeedRunner]:
    with runner() as running:
        yield running


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """How often each fault struck, over all seeds of this run."""
    return Counter()


@pytest.mark.parametrize("first", variants(range(0, SEEDS, SHARE), tested=8, quick=2))
def test_state_changelog_and_outputs_are_right_under_every_schedule(
    seeds: SeedRunner, seen: Counter[str], first: int
) -> None:
    for seed in range(first, first + SHARE):
        outcome = seeds.run(seed)
        seen.update(outcome.struck)
        assert outcome.invariant is None, outcome.text()


@pytest.mark.slow
def test_every_kind_of_fault_strikes_in_some_of_a_hundred_schedules(seeds: SeedRunner, seen: Counter[str]) -> None:
    if {kind.value for kind in Kind} != set(seen):  # run without the other tests of this file, or with few of them
        for seed in range(100):
            seen.update(seeds.run(seed).struck)
    assert {kind.value for kind in Kind} == set(seen)


@pytest.mark.slow
def test_a_seed_reproduces_in_another_interpreter_too() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.run", "--seed", "5"],
            cwd=PROJECT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        for hash_seed in ("1", "2")
    ]
    assert [run.returncode for run in printed] == [0, 0], printed[0].stdout + printed[0].stderr
    assert "trace" in printed[0].stdout
    assert printed[0].stdout == printed[1].stdout


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_reproduces_its_trace_event_for_event(seeds: SeedRunner, seed: int) -> None:
    first, second = seeds.run(seed, hashed=True), seeds.run(seed, hashed=True)
    assert first == second
    assert first.points > 50
