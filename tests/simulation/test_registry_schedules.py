"""Random schedules of holds (exclusive claims) on a processor, on SQLite and Postgres. There is one holder at a time.

Planted bugs must be detected.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from holdfast.infra.database.registry import Registry
from tests.mechanics.tiers import named, variants
from tests.parts.postgres import PostgresServer
from tests.registry_clock import Clock, url_with_clock
from tests.simulation.planted_registry import REGISTRY_BUGS, RegistryBug
from tests.simulation.registry_model import first_broken, parts_of_the_model

#: The number of schedules in one test case, on SQLite and on Postgres.
SHARE = 25
POSTGRES_SHARE = 15
#: Each planted bug must break an invariant within this many schedules.
FOUND_WITHIN = 300
#: Bugs that are detected late, or in the same way as another bug. They run only in `make test-thorough`.
THOROUGH = (
    "an apply is ended without its token",
    "a stage continues after a refused beat",
    "a stage is noted without the token",
    "a claim is taken from a live run",
    "recovery takes a live apply for a dead one",
    "a former holder writes through its registry",
    "the loss of a hold is not told by the registry",
    "each holder has the same token",
    "recovery takes an apply that was silent at its look",
)


@pytest.fixture(autouse=True)
def model_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with capture_logs(), parts_of_the_model(monkeypatch):
        yield


class InMemory:
    """Holdfast's registry in memory, with a clock that the model sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.registry = Registry("sqlite://", lambda: self.now_s)
        self.registry.migrate()

    def set_clock(self, now_s: float) -> None:
        self.now_s = now_s


@pytest.mark.slow
@pytest.mark.parametrize("first", variants(range(0, 5_000, SHARE), tested=1))
def test_one_holder_at_a_time_on_sqlite(first: int) -> None:
    memory = InMemory()
    assert first_broken(memory.registry, range(first, first + SHARE), memory.set_clock) is None
    memory.registry.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.mark.slow
@pytest.mark.parametrize("first", variants(range(0, 300, POSTGRES_SHARE), tested=1))
def test_one_holder_at_a_time_on_postgres(postgres: PostgresServer, first: int) -> None:
    clock = Clock()
    registry = Registry(url_with_clock(postgres, postgres.new_database(), clock))
    registry.migrate()
    found = first_broken(
        registry, range(first, first + POSTGRES_SHARE), lambda now_s: clock.advance(now_s - clock.now_s)
    )
    registry.close()
    clock.close()
    assert found is None


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(REGISTRY_BUGS, thorough=THOROUGH))
def test_a_planted_bug_is_found(bug: RegistryBug, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = InMemory()
    bug.plant(monkeypatch)
    found = first_broken(memory.registry, range(FOUND_WITHIN), memory.set_clock)
    assert found is not None, f"not found in {FOUND_WITHIN} schedules"
    assert found[1].invariant in bug.invariants, found
    memory.registry.close()
