"""The instance of one machine: its databases are Dagster's own, kept open, and its runs may share a process."""

import logging.config
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage

from holdfast.infra.settings import load_settings
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.host import local
from holdfast.orchestration.host.local_instance import LocalInstance
from holdfast.orchestration.host.run_coordinator import ProcessorRunCoordinator
from holdfast.orchestration.host.run_launcher import LocalRunLauncher
from holdfast.orchestration.host.sqlite_storage import OPEN_RUNS, Engines, KeptEvents

SIDE_BY_SIDE = 4


@dg.asset(check_specs=[dg.AssetCheckSpec("whole", asset="counted")])
def counted(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Has events, logs and a check."""
    context.log.info("counted")
    return dg.MaterializeResult(metadata={"n": 1}, check_results=[dg.AssetCheckResult(passed=True, check_name="whole")])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with its ``dagster.yaml``."""
    return local.prepare(load_settings(home=tmp_path))


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The instance of the home folder."""
    with dg.DagsterInstance.from_config(str(home)) as opened:
        yield opened


def materialized(instance: dg.DagsterInstance) -> str:
    """Run the asset; returns the run's id."""
    result = dg.materialize([counted], instance=instance)
    assert result.success
    return result.run_id


def test_the_instance_of_a_home_keeps_its_databases_open(instance: dg.DagsterInstance) -> None:
    assert isinstance(instance, LocalInstance)
    assert isinstance(instance.event_log_storage, KeptEvents)


def test_runs_and_events_are_in_the_files_that_dagsters_own_storage_reads(instance: dg.DagsterInstance) -> None:
    run_id = materialized(instance)
    history = Path(instance.root_directory) / "history"
    runs, events = SqliteRunStorage.from_local(f"{history}/"), SqliteEventLogStorage(f"{history}/runs/")
    assert [each.run_id for each in runs.get_runs()] == [run_id]
    assert [each.message for each in events.get_logs_for_run(run_id)] == [
        each.message for each in instance.all_logs(run_id)
    ]
    assert events.get_latest_materialization_events([dg.AssetKey("counted")])[dg.AssetKey("counted")] is not None


def test_events_of_another_process_are_read(instance: dg.DagsterInstance, home: Path) -> None:
    first = materialized(instance)
    with dg.DagsterInstance.from_config(str(home)) as other:
        second = materialized(other)
        assert {each.run_id for each in other.get_runs()} == {first, second}
    assert instance.all_logs(second)[-1].dagster_event_type is dg.DagsterEventType.RUN_SUCCESS


def test_a_run_is_watched_while_the_connection_that_writes_its_events_stays_open(
    instance: dg.DagsterInstance, home: Path
) -> None:
    run_id, seen = "e0e0e0e0-0000-4000-8000-000000000000", list[str]()

    def told(event: dg.EventLogEntry, _: str) -> None:
        seen.append(event.message)

    with dg.DagsterInstance.from_config(str(home)) as other:
        other.report_engine_event("first", run_id=run_id, job_name="any")
        instance.watch_event_logs(run_id, None, told)
        other.report_engine_event("second", run_id=run_id, job_name="any")
        assert wait_until(lambda: "second" in seen, 60.0)
    assert seen == ["first", "second"]
    instance.end_watch_event_logs(run_id, told)


def test_a_database_whose_file_was_deleted_is_made_again(instance: dg.DagsterInstance) -> None:
    run_id = materialized(instance)
    events = instance.event_log_storage
    assert isinstance(events, KeptEvents)
    for end in ("", "-wal", "-shm"):
        Path(events.path_for_shard(run_id) + end).unlink(missing_ok=True)
    assert instance.all_logs(run_id) == []
    assert Path(events.path_for_shard(run_id)).exists()
    instance.report_engine_event("said later", run_id=run_id, job_name="any")
    assert [each.message for each in instance.all_logs(run_id)] == ["said later"]


def test_a_file_in_the_place_of_another_is_opened(tmp_path: Path) -> None:
    engines, url = Engines(OPEN_RUNS), f"sqlite:///{tmp_path}/one.db"
    with engines.of(url).begin() as connection:
        connection.execute(sa.text("CREATE TABLE old (x)"))
    replacement = tmp_path / "two.db"
    with sa.create_engine(f"sqlite:///{replacement}").begin() as connection:
        connection.execute(sa.text("CREATE TABLE new (x)"))
    (tmp_path / "one.db-wal").unlink(missing_ok=True)
    replacement.replace(tmp_path / "one.db")
    assert sa.inspect(engines.of(url)).get_table_names() == ["new"]


def test_no_more_databases_are_open_than_the_limit(tmp_path: Path) -> None:
    engines = Engines(2)
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(4)]
    kept = [engines.of(url) for url in urls]
    for engine in kept:
        with engine.begin() as connection:
            connection.execute(sa.text("SELECT 1"))
    # The first two were closed, so they are engines of their own again; the last two are the ones that are kept.
    assert [engines.of(url) is engine for url, engine in zip(urls[2:], kept[2:], strict=True)] == [True, True]
    assert engines.of(urls[0]) is not kept[0]


def test_a_commit_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    with Engines(1).of(f"sqlite:///{tmp_path}/one.db").connect() as connection:
        normal = 1
        assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == normal


def test_a_run_leaves_pythons_logging_alone(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    def configured(config: Any) -> None:
        raise AssertionError(f"A run configured logging: {config}")

    monkeypatch.setattr(logging.config, "dictConfig", configured)
    materialized(instance)


def test_handlers_of_the_configuration_get_the_logs_of_runs(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.log"
    with (home / "dagster.yaml").open("a") as configuration:
        configuration.write(
            "python_logs: {dagster_handler_config: {handlers: {file: "
            f"{{class: logging.FileHandler, level: INFO, filename: '{file}'}}}}}}}}\n"
        )
    with dg.DagsterInstance.from_config(str(home)) as instance:
        materialized(instance)
    assert "counted" in file.read_text()


def test_runs_side_by_side_in_one_process_all_end(instance: dg.DagsterInstance) -> None:
    together = threading.Barrier(SIDE_BY_SIDE)

    def run(_: int) -> str:
        together.wait(timeout=60.0)
        return materialized(instance)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        run_ids = list(threads.map(run, range(3 * SIDE_BY_SIDE)))
    assert {each.run_id for each in instance.get_runs()} == set(run_ids)
    for run_id in run_ids:
        assert [each.user_message for each in instance.all_logs(run_id)].count("counted") == 1


def test_a_configuration_with_the_names_of_a_former_version_opens(home: Path) -> None:
    """Somebody edited it, so that no start replaces it; its modules were in the folder above then."""
    config = home / "dagster.yaml"
    former = config.read_text().replace("orchestration.host.", "orchestration.").replace("workers: 4", "workers: 5")
    entry = "{custom: {module: %s.sqlite_storage, class: KeptSqliteStorage, config: {base_dir: %s}}}"
    storage = "storage: " + entry % ("holdfast.orchestration", home)
    config.write_text(former + storage + "\n")
    local.prepare(load_settings(home=home.parent))
    assert "host" not in config.read_text()
    with dg.DagsterInstance.from_config(str(home)) as opened:
        assert isinstance(opened, LocalInstance)
        assert isinstance(opened.event_log_storage, KeptEvents)
        assert isinstance(opened.run_launcher, LocalRunLauncher)
        assert isinstance(opened.run_coordinator, ProcessorRunCoordinator)
        materialized(opened)
    production = (files("holdfast.infra") / "dagster" / "production.yaml").read_text()
    for module, name in re.findall(r"module: (holdfast\.\S+)\n *class: (\w+)", production):
        assert getattr(import_module(module.replace(".host.", ".")), name) is getattr(import_module(module), name)
