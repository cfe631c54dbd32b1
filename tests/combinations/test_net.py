"""Tests the combination tests themselves: topologies run as printed, seeds are repeatable, and failures are reduced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tests.combinations.changes import CHANGES, changed_by
from tests.combinations.draw import draw_topology
from tests.combinations.grammar import SOURCES, STEPS
from tests.combinations.run import quiet, run
from tests.combinations.schedules import REFERENCE, draw_schedule
from tests.combinations.shrink import shrunk
from tests.mechanics.tiers import examples

SEEDS = range(examples(600, tested=200))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with quiet() as made:
        yield made


def test_seeds_have_each_step_each_change_and_each_way_of_input() -> None:
    topologies = [draw_topology(seed) for seed in SEEDS]
    assert {step.name for step in (*STEPS, *SOURCES)} - {step for each in topologies for step in each.steps} == set()
    changed = {name for each in topologies[:150] for name in CHANGES if changed_by(each, (name,), 1) != each}
    assert changed == set(CHANGES)
    feeds = {draw_schedule(each, seed, 1).feed for seed, each in enumerate(topologies)}
    assert feeds == {"whole", "parts", "paused", "live"}


def test_each_topology_can_be_declared() -> None:
    for seed in SEEDS:
        draw_topology(seed).described()


def test_a_topology_runs_as_it_is_printed() -> None:
    shown = StringIO()
    with redirect_stdout(shown):
        exec(draw_topology(1).script(), {})
    assert "o" in shown.getvalue()


def test_a_seed_repeats_itself(folder: Path) -> None:
    topology = draw_topology(3)
    schedule = draw_schedule(topology, 3, 1)
    assert run(topology, schedule, folder) == run(topology, schedule, folder)


def test_what_fails_shrinks_to_what_it_needs() -> None:
    topology = draw_topology(7)
    schedule = replace(REFERENCE, workers=3, poll_max=1, columns=True)
    needed = topology.messages[len(topology.messages) // 2]
    small, plain = shrunk(topology, schedule, lambda other, how: needed in other.messages and how.workers == 3, 500)
    assert small.messages == (needed,)
    assert len(small.outputs) <= 1
    assert plain == replace(REFERENCE, workers=3)
