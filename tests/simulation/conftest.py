"""How much the simulation's tests search in each tier."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def known(pytestconfig: pytest.Config) -> bool:
    """Whether a planted bug's known seed comes first. `make test-thorough` searches from the first seed."""
    return bool(pytestconfig.getoption("--tier") != "thorough")
