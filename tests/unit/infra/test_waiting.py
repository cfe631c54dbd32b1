"""Helpers that wait for a condition or retry a call: when they return, and when they raise."""

from __future__ import annotations

import pytest

from holdfast.infra.waiting import Deadline, retry, wait_until


def test_the_first_true_answer_ends_the_wait():
    answers = iter([[], [], ["ready"], ["later"]])
    assert wait_until(lambda: next(answers), 60.0, every_s=0) == ["ready"]


def test_a_condition_is_checked_once_even_after_the_deadline():
    checks = []
    assert wait_until(lambda: checks.append(1) or "yes", 0.0) == "yes"
    assert wait_until(lambda: "", Deadline(0.0)) == ""
    assert len(checks) == 1


def test_a_deadline_has_no_time_left_once_it_passed():
    assert Deadline(0.0).passed
    assert Deadline(0.0).left_s == 0.0
    assert 50 < Deadline(60.0).left_s <= 60
    assert not Deadline(60.0).passed


def test_a_call_is_retried_after_errors_that_pass():
    outcomes = iter([ConnectionError("1"), ConnectionError("2"), "done"])

    def call():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert retry(call, lambda failure: isinstance(failure, ConnectionError), 60.0, every_s=0) == "done"


def test_other_errors_and_the_last_one_at_the_deadline_are_raised():
    calls = []

    def call():
        calls.append(1)
        raise ConnectionError(len(calls))

    with pytest.raises(ConnectionError, match="1"):
        retry(call, lambda failure: isinstance(failure, KeyError), 60.0)
    with pytest.raises(ConnectionError, match="2"):
        retry(call, lambda failure: True, 0.0)
