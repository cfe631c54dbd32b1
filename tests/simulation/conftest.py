"""How many seeds the simulation's tests search in each tier."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def known(pytestconfig: pytest.Config) -> bool:
    """Whether the search for a planted bug starts with its known seed.

    `make test-thorough` starts with the first seed.
    """
    return bool(pytestconfig.getoption("--tier") != "thorough")
