"""Checks the fuzzed property with a few examples in each test run; `make fuzz` runs 100,000."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.fuzz.property import CASES, Case, check


@settings(max_examples=40)
@given(CASES)
def test_state_and_outputs_are_those_of_plain_python(case: Case) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=150)
@given(CASES)
def test_they_are_in_many_more_examples(case: Case) -> None:
    check(case)
