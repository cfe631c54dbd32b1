"""Runs random sequences of operators' commands and failures, part 4 of 7.

There are seven files, so that `make test-thorough` runs them on several cores.
"""

from __future__ import annotations

import pytest

from tests.mechanics.tiers import variants
from tests.simulation.operation import OperationRunner, check_share, shares


@pytest.mark.parametrize("first", variants(shares(3), tested=0))
def test_after_quiet_the_world_is_the_record_or_the_named_actions_make_it_so(
    courses: OperationRunner, first: int
) -> None:
    check_share(courses, first)
