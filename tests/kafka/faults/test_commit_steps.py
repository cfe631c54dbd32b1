"""kill -9 at every step of the commit cycle, at exact points: nothing is lost, nothing is doubled."""

import shutil

import pytest

from tests.kafka.faults.dying_worker import STEPS, STEPS_AT_LEAST_ONCE, count_and_name
from tests.kafka.faults.verification import finish, verify, verify_at_least_once


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("step", STEPS)
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
    [*((step, False) for step in STEPS_AT_LEAST_ONCE), ("between offsets and commit", True)],
)
def test_at_least_once_a_kill_at_a_step_of_the_commit_cycle_loses_nothing(on_site, die_at, waiting, step, cold):
    on_site.feed_numbers(1500)
    assert die_at(step, 4, "at-least-once") == -9
    if cold:
        shutil.rmtree(on_site.state_dir)
    on_site.feed_numbers(300)
    finish(on_site, waiting, slot="0", processing_guarantee="at-least-once", step=count_and_name)
    verify_at_least_once(on_site, on_site.state_dir, repeated_max=200)
