"""Two daemons on one Postgres take the same run from the queue at the same moment. The run is launched only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from threading import Barrier

import dagster as dg
import pytest
from dagster import DagsterEvent
from dagster._core.events import DagsterEventType
from dagster._core.launcher import DefaultRunLauncher, LaunchRunContext
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from holdfast.orchestration.host import run_launcher
from tests.mechanics.tiers import variants
from tests.parts.postgres import PASSWORD, USER, PostgresServer

Launch = Callable[[dg.DagsterInstance, str], None]


@dg.job
def nothing() -> None:
    """A job whose runs only this test launches."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture(params=variants(["postgres", "sqlite"]))
def daemons(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[dg.DagsterInstance, dg.DagsterInstance]]:
    """Two instances of Dagster with the same storage, as two daemons would open them."""
    with ExitStack() as stack:
        if request.param == "postgres":
            server = request.getfixturevalue("postgres")
            named = {"HOST": "127.0.0.1", "PORT": str(server.port), "DB": server.new_database(), "USER": USER}
            for name, value in {**named, "PASSWORD": PASSWORD}.items():
                monkeypatch.setenv(f"DAGSTER_POSTGRES_{name}", value)
        config = "production" if request.param == "postgres" else "local"
        text = (files("holdfast.infra") / "dagster" / f"{config}.yaml").read_text()
        (tmp_path / "dagster.yaml").write_text(text)
        one, two = (stack.enter_context(dg.DagsterInstance.from_config(str(tmp_path))) for _ in range(2))
        yield one, two


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs that were passed to Dagster's own launcher. The fixture replaces this launcher."""
    found: list[str] = []
    monkeypatch.setattr(run_launcher, "NAMED_WITHIN_S", 0.0)
    monkeypatch.setattr(DefaultRunLauncher, "launch_run", lambda _, context: found.append(context.dagster_run.run_id))
    return found


def report(instance: dg.DagsterInstance, run: str, kind: DagsterEventType) -> None:
    instance.report_dagster_event(DagsterEvent(kind.value, nothing.name), run)


def take(instance: dg.DagsterInstance, run: str) -> None:
    """Launch a queued run, as Dagster's queue daemon does."""
    report(instance, run, DagsterEventType.RUN_STARTING)
    found = instance.get_run_by_id(run)
    assert found is not None
    instance.run_launcher.launch_run(LaunchRunContext(found, workspace=None))


def queued(instance: dg.DagsterInstance) -> str:
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("of_the_test"), "repository").get_job_origin("nothing")
    run: str = instance.create_run_for_job(nothing, remote_job_origin=origin).run_id
    report(instance, run, DagsterEventType.RUN_ENQUEUED)
    return run


def test_a_run_that_two_daemons_take_at_once_is_launched_once(
    daemons: tuple[dg.DagsterInstance, dg.DagsterInstance], launched: list[str]
) -> None:
    for _ in range(4):
        run, both = queued(daemons[0]), Barrier(2)

        def meet(instance: dg.DagsterInstance, run: str = run, both: Barrier = both) -> None:
            both.wait(30)
            take(instance, run)

        with ThreadPoolExecutor() as pool:
            list(pool.map(meet, daemons))
        assert launched == [run]
        # the code server was unreachable, so Dagster queues the run again
        report(daemons[0], run, DagsterEventType.RUN_ENQUEUED)
        take(daemons[1], run)
        assert launched == [run, run]
        launched.clear()


@pytest.mark.parametrize("end", variants([DagsterEventType.RUN_SUCCESS, DagsterEventType.RUN_START]))
def test_a_daemon_that_was_frozen_leaves_a_run_of_another_as_it_is(
    daemons: tuple[dg.DagsterInstance, dg.DagsterInstance], launched: list[str], end: DagsterEventType
) -> None:
    run = queued(daemons[0])
    take(daemons[0], run)
    report(daemons[0], run, DagsterEventType.RUN_START)
    report(daemons[0], run, end)
    before = daemons[0].get_run_record_by_id(run)
    take(daemons[1], run)
    assert launched == [run]
    after = daemons[0].get_run_record_by_id(run)
    assert before is not None
    assert after is not None
    assert (after.dagster_run.status, after.end_time) == (before.dagster_run.status, before.end_time)
    said = [each.message or "" for each in daemons[0].all_logs(run, of_type=DagsterEventType.ENGINE_EVENT)]
    assert any("Another daemon launched this run" in each for each in said)
