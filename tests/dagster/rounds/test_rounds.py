"""Two Dagster daemons, an operator and recovery share a Postgres. One of them is killed or frozen during an apply.

An apply is the execution of an operator's command.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.dagster.rounds.draws import drawn
from tests.dagster.rounds.installation import Installation, installed
from tests.dagster.rounds.judging import described, judged
from tests.dagster.rounds.play import Round
from tests.parts.operated import Operated
from tests.parts.postgres import PASSWORD, USER, PostgresServer

#: Number of rounds per test case; each case has a separate installation.
SHARE = 5
ROUNDS = 50
#: After this many incidents the operator deploys again, because more of them would count as a crash loop.
INCIDENTS = 3


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def databases(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Databases of Holdfast's registry and of Dagster.

    This fixture is requested before ``operated``, which uses the registry's database.
    """
    registry, dagster = postgres.new_database(), postgres.new_database()
    place = f"{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{postgres.port}"
    monkeypatch.setenv("HOLDFAST_REGISTRY_URL", f"postgresql+psycopg://{place}/{registry}")
    named = {"HOST": "127.0.0.1", "PORT": str(postgres.port), "DB": dagster, "USER": USER, "PASSWORD": PASSWORD}
    for name, value in named.items():
        monkeypatch.setenv(f"DAGSTER_POSTGRES_{name}", value)
    return registry, dagster


@pytest.fixture
def here(
    databases: tuple[str, str], operated: Operated, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Installation]:
    monkeypatch.setenv("DAGSTER_HOME", str(operated.settings.paths.dagster))
    with installed(operated, postgres, *databases) as installation:
        yield installation


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(0, ROUNDS, SHARE))
def test_one_holder_at_a_time_and_each_effect_once(here: Installation, first: int) -> None:
    here.feeder.start()
    wrong: list[str] = []
    for seed in range(first, first + SHARE):
        deploy_after_incidents(here)
        began, round_ = time.monotonic(), Round(here, drawn(seed))
        try:
            round_.play()
        finally:
            print(described(round_, time.monotonic() - began, []), flush=True)
        found = [f"{round_.draw}: {each}" for each in judged(round_)]
        print(*found, sep="\n", flush=True)
        wrong += found
    assert not wrong, "\n".join(wrong)


def deploy_after_incidents(here: Installation) -> None:
    """After several incidents, deploy a new version, like an operator who has corrected the crash."""
    group = here.operated.group
    desired = here.registry.deployment(group)
    assert desired is not None
    recent = here.registry.incidents(INCIDENTS, processor=group)
    if sum(each.opened_at > desired.updated_at for each in recent) < INCIDENTS:
        return
    here.change_code()
    command = here.operated.command("apply", "deploy", group)
    output, _ = command.communicate(timeout=300)
    assert command.returncode == 0, output.decode()
