"""Random topologies with an added source, under faults. Each message of the source is sent once.

All other results stay the same. The source is added after the draw, so that known seeds keep their topologies.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.combinations.added_sources import Posted
from tests.combinations.run import quiet, run_seed
from tests.mechanics.tiers import variants


@pytest.mark.parametrize("seed", variants(range(60), tested=3))
def test_a_source_beside_a_topology_loses_and_doubles_nothing(seed: int) -> None:
    with quiet() as folder:
        outcome = run_seed(seed, folder, schedules=3, also=("source",))
    assert not outcome.kind, outcome.text()


@pytest.mark.slow
@pytest.mark.parametrize("seed", variants(range(60, 70), tested=1))
@pytest.mark.parametrize("source", variants(["http_source", "file_source", "table_source"], tested=2))
def test_a_source_that_ships_loses_and_doubles_nothing(source: str, seed: int) -> None:
    with quiet() as folder:
        outcome = run_seed(seed, folder, schedules=3, also=(source,))
    assert not outcome.kind, outcome.text()


@pytest.mark.slow
@pytest.mark.parametrize("seed", variants(range(60, 90), tested=2))
def test_durable_calls_beside_a_staging_sink_lose_and_double_nothing(seed: int) -> None:
    with quiet() as folder:
        outcome = run_seed(seed, folder, schedules=3, also=("charged",))
    assert not outcome.kind, outcome.text()


@pytest.mark.slow
def test_an_http_source_that_forgets_its_keys_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    listens = Posted._listens

    def forgets(source: Any) -> bool:
        source._bodies.clear()
        source._ages.clear()
        return listens(source)

    monkeypatch.setattr(Posted, "_listens", forgets)
    with quiet() as folder:
        outcome = run_seed(60, folder, schedules=3, also=("http_source",))
    assert outcome.kind == "source", outcome.text()
