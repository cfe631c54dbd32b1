"""Fixture: the runner of courses (simulated sequences of commands and faults) that all test cases of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.operation import OperationRunner, operation_runner


@pytest.fixture(scope="module")
def courses() -> Iterator[OperationRunner]:
    with operation_runner() as made:
        yield made
