"""The production configuration of Dagster on a real Postgres loads, and a real daemon executes queued runs."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import dagster as dg
import pytest
import yaml

from holdfast.infra.settings import PROJECT, Settings, load_settings
from holdfast.orchestration.host import local
from holdfast.orchestration.host.dagster_config import DagsterConfigInvalid, DagsterDatabaseAway, check_dagster_config
from tests.dagster.queued_runs import eventually, launch, location_of
from tests.parts.postgres import PASSWORD, USER, PostgresServer

CONFIG = files("holdfast.infra") / "dagster" / "production.yaml"
#: A job whose run lasts until a file exists.
JOBS = """
import pathlib, time
import dagster as dg

@dg.op
def hold():
    while not pathlib.Path({release!r}).exists():
        time.sleep(0.05)

@dg.op
def pass_by():
    pass

@dg.job(executor_def=dg.in_process_executor)
def holding():
    hold()

@dg.job(executor_def=dg.in_process_executor)
def passing():
    pass_by()

defs = dg.Definitions(jobs=[holding, passing])
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "jobs_of_the_test.py"


@pytest.fixture
def settings(
    tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer
) -> Iterator[Settings]:
    """A home with the production configuration, and a workspace with Holdfast's definitions and the test's own jobs."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    for name, value in {
        "HOST": "127.0.0.1",
        "PORT": str(postgres.port),
        "DB": postgres.new_database(),
        "USER": USER,
        "PASSWORD": PASSWORD,
    }.items():
        monkeypatch.setenv(f"DAGSTER_POSTGRES_{name}", value)
    settings = load_settings()
    settings.paths.dagster.mkdir(parents=True)
    (settings.paths.dagster / "dagster.yaml").write_text(CONFIG.read_text())
    jobs.write_text(JOBS.format(release=str(tmp_path / "release")))
    workspace = yaml.safe_load((PROJECT / "workspace.yaml").read_text())
    workspace["load_from"].append(location_of(jobs))
    (tmp_path / "workspace.yaml").write_text(yaml.safe_dump(workspace))
    monkeypatch.setattr(local, "WORKSPACE", tmp_path / "workspace.yaml")
    yield settings
    (tmp_path / "release").touch()
    local.stop(settings, local.DAEMON)


@pytest.mark.thorough
def test_two_runs_of_one_processor_take_turns_and_those_of_others_pass(
    settings: Settings, tmp_path: Path, jobs: Path, postgres: PostgresServer
) -> None:
    local.start_daemon(settings)
    first = launch(settings, jobs, "holding", "fleet")
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:

        def status(run: str) -> dg.DagsterRunStatus:
            found = instance.get_run_by_id(run)
            assert found is not None
            return found.status

        eventually(lambda: status(first) is dg.DagsterRunStatus.STARTED, "the first run did not start")
        second = launch(settings, jobs, "passing", "fleet")
        other = launch(settings, jobs, "passing", "routes")
        eventually(lambda: status(other) is dg.DagsterRunStatus.SUCCESS, "another processor's run did not pass")
        assert status(second) is dg.DagsterRunStatus.QUEUED
        assert status(first) is dg.DagsterRunStatus.STARTED
        (tmp_path / "release").touch()
        eventually(lambda: status(second) is dg.DagsterRunStatus.SUCCESS, "the second run did not follow")
        assert status(first) is dg.DagsterRunStatus.SUCCESS

        def ticked() -> set[str]:
            """Return Holdfast's sensors that have ticked, according to Postgres."""
            return {
                state.instigator_name
                for state in instance.all_instigator_state()
                if instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
            }

        eventually(lambda: {"processor_recovery", "processor_telemetry"} <= ticked(), "our sensors did not tick")
    database = local.os.environ["DAGSTER_POSTGRES_DB"]
    assert postgres.query("SELECT count(*) FROM runs", database) == [(3,)]
    assert not list(settings.paths.dagster.rglob("*.db"))


def test_a_variable_that_is_missing_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_POSTGRES_HOST")
    with pytest.raises(DagsterConfigInvalid, match="DAGSTER_POSTGRES_HOST"):
        check_dagster_config(settings.paths.dagster, local.WORKSPACE)


@pytest.mark.thorough
def test_a_database_that_is_away_is_told_without_its_password(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_POSTGRES_PORT", "1")
    with pytest.raises(DagsterDatabaseAway, match="Connection refused") as seen:
        check_dagster_config(settings.paths.dagster, local.WORKSPACE)
    assert PASSWORD not in str(seen.value)


def test_both_instances_keep_the_same_rules() -> None:
    """The local and the production configuration of Dagster have the same rules for the run queue.

    They differ only in their storage and in the numbers of their limits.
    """
    ours, other = (
        yaml.safe_load((files("holdfast.infra") / "dagster" / name).read_text()) for name in ("local.yaml", CONFIG.name)
    )
    assert ours["run_coordinator"] == other["run_coordinator"]
    assert ours["concurrency"]["pools"] == other["concurrency"]["pools"]
    limits = [each["concurrency"]["runs"]["tag_concurrency_limits"] for each in (ours, other)]
    lanes = [[(each["key"], each["value"]) for each in found] for found in limits]
    assert lanes[0] == lanes[1]
    assert [each["concurrency"]["runs"]["max_concurrent_runs"] for each in (ours, other)] == [-1, -1]
    assert set(other) - set(ours) == {"storage"}
    assert set(ours) <= set(other)
    assert ours["run_launcher"] == other["run_launcher"]
