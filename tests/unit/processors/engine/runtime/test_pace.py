"""How often to commit: at short intervals while the worker keeps up, at long ones while it is behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Application
from holdfast.processors.engine.runtime.commit_pace import Bounds, Pace, Seen, commit_interval

BOUNDS = Bounds(0.1, 1.0)


def test_a_worker_that_keeps_up_commits_at_the_shortest_interval():
    assert commit_interval(0.1, Seen(polls=9, full=0, commit_s=0.005), BOUNDS) == 0.1


def test_a_worker_that_is_behind_commits_at_the_longest_at_once():
    assert commit_interval(0.1, Seen(polls=3, full=2), BOUNDS) == 1.0


def test_one_full_poll_among_others_is_a_burst_and_no_backlog():
    assert commit_interval(0.1, Seen(polls=2, full=1), BOUNDS) == 0.1


def test_it_comes_back_to_the_shortest_by_halves():
    pace, seen = Pace(BOUNDS), []
    pace.polled(2_000, 2_000)
    for _ in range(6):
        seen.append(pace.interval_s)
        pace.committed(0.001)
        pace.polled(10, 2_000)
    assert seen == [1.0, 0.5, 0.25, 0.125, 0.1, 0.1]


def test_commits_that_take_long_are_made_less_often():
    assert commit_interval(0.1, Seen(polls=5, commit_s=0.04), BOUNDS) == pytest.approx(0.4)
    assert commit_interval(0.1, Seen(polls=5, commit_s=3.0), BOUNDS) == 1.0


def test_polls_that_bring_nothing_tell_nothing():
    pace = Pace(BOUNDS)
    pace.polled(0, 2_000)
    pace.polled(1, 1)
    assert pace.interval_s == 1.0


@given(
    last=st.floats(0, 100),
    polls=st.integers(0, 100),
    full=st.integers(0, 100),
    took=st.none() | st.floats(0, 100),
    bounds=st.tuples(st.floats(0, 10), st.floats(0, 10)).map(lambda pair: Bounds(min(pair), max(pair))),
)
def test_it_stays_within_the_bounds_whatever_is_seen(last, polls, full, took, bounds):
    found = commit_interval(last, Seen(polls, min(full, polls), took), bounds)
    assert bounds.shortest_s <= found <= bounds.longest_s


@given(polls=st.integers(0, 100), full=st.integers(0, 100), last=st.floats(0, 10), took=st.floats(0, 10))
def test_one_interval_that_was_asked_for_is_kept_whatever_is_seen(polls, full, last, took):
    assert commit_interval(last, Seen(polls, full, took), Bounds(0.7, 0.7)) == 0.7


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, Bounds(0.1, 1.0)),
        ({"commit_interval": 2.5}, Bounds(2.5, 2.5)),
        ({"commit_interval": 2.5, "commit_interval_min": 0.3}, Bounds(0.3, 2.5)),
        ({"commit_interval_min": 0.0}, Bounds(0.0, 1.0)),
    ],
)
def test_what_was_asked_for_is_what_the_worker_gets(given, bounds):
    assert Application(consumer_group="p", **given)._options().commits == bounds
