"""kill -9 at each exact step of the commit cycle: no message is lost or counted twice."""

import shutil

import pytest

from tests.kafka.faults.dying_worker import STEPS, STEPS_AT_LEAST_ONCE, count_and_name
from tests.kafka.faults.verification import finish, verify, verify_at_least_once
from tests.mechanics.tiers import variants

#: Each step is tested with its more difficult start. A kill before the commit: a cold start, which restores all state.
#: A kill after the commit: a warm start, because local state is older than the commit or half-written.
EITHER = [("cold" if place < STEPS.index("between commit and local write") else "warm") for place in range(len(STEPS))]

HARDEST = ("between offsets and commit", "between commit and local write")


def each_step() -> list[object]:
    hardest = [(step, start == "cold") for step, start in zip(STEPS, EITHER, strict=True)]
    easier = [(step, not cold) for step, cold in hardest]
    # The simulation in `make test` covers every step. On a real broker, `make test` runs only the steps that depend
    # most on Kafka or on the disk, so sort these first.
    first = sorted(hardest, key=lambda row: row[0] not in HARDEST)
    rows = [pytest.param(step, cold, id=f"{step}-{'cold' if cold else 'warm'}") for step, cold in first + easier]
    return variants(rows, tested=len(HARDEST))


@pytest.mark.parametrize(("step", "cold"), each_step())
def test_a_kill_at_a_step_of_the_commit_cycle_loses_and_doubles_nothing(on_site, die_at, waiting, step, cold):
    on_site.feed_numbers(1500)
    assert die_at(step, 4) == -9
    if cold:
        shutil.rmtree(on_site.state_dir)
    on_site.feed_numbers(300)
    finish(on_site, waiting, slot="0")
    verify(on_site, on_site.state_dir)


@pytest.mark.parametrize(
    ("step", "cold"),
    variants(
        [
            ("between offsets and commit", True),
            ("between outputs and changelogs", False),
            *((step, False) for step in STEPS_AT_LEAST_ONCE if step != "between outputs and changelogs"),
        ],
    ),
)
@pytest.mark.thorough
def test_at_least_once_a_kill_at_a_step_of_the_commit_cycle_loses_nothing(on_site, die_at, waiting, step, cold):
    on_site.feed_numbers(1500)
    assert die_at(step, 4, "at-least-once") == -9
    if cold:
        shutil.rmtree(on_site.state_dir)
    on_site.feed_numbers(300)
    finish(on_site, waiting, slot="0", processing_guarantee="at-least-once", step=count_and_name)
    verify_at_least_once(on_site, on_site.state_dir, repeated_max=200)
