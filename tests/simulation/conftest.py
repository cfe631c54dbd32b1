"""Sets how many seeds the simulation's tests run in each tier."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def known(pytestconfig: pytest.Config) -> bool:
    """Whether the search for a planted bug starts with a seed that is known to find it.

    `make test-thorough` starts with the first seed.
    """
    return bool(pytestconfig.getoption("--tier") != "thorough")
