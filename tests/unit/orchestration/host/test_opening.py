"""The Dagster instance of one machine: it uses Dagster's own storage, and runs of the demo may share a process."""

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

from holdfast.infra.settings import load_settings
from holdfast.orchestration.host import local
from holdfast.orchestration.host.opening import LocalInstance, open_quiet
from holdfast.orchestration.host.run_coordinator import ProcessorRunCoordinator
from holdfast.orchestration.host.run_launcher import LocalRunLauncher
from tests.mechanics.tiers import variants

SIDE_BY_SIDE = 4


@dg.asset(check_specs=[dg.AssetCheckSpec("whole", asset="counted")])
def counted(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """An asset that writes events, logs and a check."""
    context.log.info("counted")
    return dg.MaterializeResult(metadata={"n": 1}, check_results=[dg.AssetCheckResult(passed=True, check_name="whole")])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The Dagster folder of a new home, with its ``dagster.yaml``."""
    return local.prepare(load_settings(home=tmp_path))


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The instance of the home folder. Its runs share the test's process."""
    with open_quiet(home) as opened:
        yield opened


def materialized(instance: dg.DagsterInstance) -> str:
    """Run the asset and return the id of the run."""
    result = dg.materialize([counted], instance=instance)
    assert result.success
    return result.run_id


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
    with open_quiet(home) as instance:
        materialized(instance)
    assert "counted" in file.read_text()


@pytest.mark.thorough
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


def test_other_processes_of_the_home_see_the_runs_of_this_one(instance: dg.DagsterInstance, home: Path) -> None:
    run_id = materialized(instance)
    with dg.DagsterInstance.from_config(str(home)) as other:
        assert type(other.event_log_storage) is type(instance.event_log_storage)
        assert [each.message for each in other.all_logs(run_id)] == [each.message for each in instance.all_logs(run_id)]


def test_a_quiet_run_leaves_the_output_alone(instance: dg.DagsterInstance, home: Path) -> None:
    run_id = materialized(instance)
    assert not [each for each in (home / "storage" / run_id).rglob("*") if each.is_file()]


FORMER_PLACES = ("holdfast.orchestration", "holdfast.orchestration.host")


@pytest.mark.parametrize("place", variants(FORMER_PLACES))
def test_a_configuration_with_the_names_of_a_former_version_opens(home: Path, place: str) -> None:
    """A start does not replace a dagster.yaml that a user has edited.

    So the file may still name a storage class of Holdfast that an older version of Holdfast had.
    """
    config = home / "dagster.yaml"
    former = config.read_text().replace("holdfast.orchestration.host", place).replace("workers: 4", "workers: 5")
    instance = f"instance_class: {{module: {place}.local_instance, class: LocalInstance}}"
    storage = f"{{module: {place}.sqlite_storage, class: KeptSqliteStorage, config: {{base_dir: {home}}}}}"
    config.write_text(f"{former}{instance}\nstorage:\n  # ours\n  custom: {storage}\n")
    local.prepare(load_settings(home=home.parent))
    edited = config.read_text()
    assert "workers: 5" in edited
    assert "# ours" in edited
    with dg.DagsterInstance.from_config(str(home)) as opened:
        assert isinstance(opened, LocalInstance)
        assert isinstance(opened.run_launcher, LocalRunLauncher)
        assert isinstance(opened.run_coordinator, ProcessorRunCoordinator)
        run_id = materialized(opened)
    config.unlink()
    local.prepare(load_settings(home=home.parent))
    with dg.DagsterInstance.from_config(str(home)) as unnamed:
        assert unnamed.has_run(run_id), "Dagster's own storage has the same files"


def test_a_configuration_that_is_no_text_is_left_to_its_check(home: Path) -> None:
    (home / "dagster.yaml").write_bytes(b"\xff")
    local.prepare(load_settings(home=home.parent))
    assert (home / "dagster.yaml").read_bytes() == b"\xff"


def test_the_names_of_a_former_version_are_those_of_today() -> None:
    production = (files("holdfast.infra") / "dagster" / "production.yaml").read_text()
    for module, name in re.findall(r"module: (holdfast\.\S+)\n *class: (\w+)", production):
        assert getattr(import_module(module.replace(".host.", ".")), name) is getattr(import_module(module), name)
