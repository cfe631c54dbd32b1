"""Random topologies with a source beside them: under faults, each of its messages comes once, and all else is the same.

The source is no draw of the seeds, so that known seeds keep their runs.
"""

from __future__ import annotations

import pytest

from tests.combinations.run import quiet, run_seed
from tests.mechanics.tiers import variants


@pytest.mark.parametrize("seed", variants(range(60), tested=3))
def test_a_source_beside_a_topology_loses_and_doubles_nothing(seed: int) -> None:
    with quiet() as folder:
        outcome = run_seed(seed, folder, schedules=3, also=("source",))
    assert not outcome.kind, outcome.text()
