"""A run whose process died together with the code server that started it is ended, and lets go of its processor."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
import yaml
from dagster._core.events import EngineEventData
from dagster._core.launcher import WorkerStatus

from holdfast.infra.process import group_members, started_at
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration import local
from holdfast.orchestration.run_launcher import LocalRunLauncher
from tests.dagster.queued_runs import eventually, launch, location_of

JOBS = """
import pathlib, time
import dagster as dg

@dg.op
def hold():
    while not pathlib.Path({release!r}).exists():
        time.sleep(0.05)

@dg.job(executor_def=dg.in_process_executor)
def holding():
    hold()

defs = dg.Definitions(jobs=[holding])
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "jobs_of_the_test.py"


@pytest.fixture
def settings(tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A home as it is made, but that it is looked at its runs each second, and a workspace of the test's job."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    settings = load_settings()
    settings.paths.dagster.mkdir(parents=True)
    ours = yaml.safe_load((files("holdfast.infra") / "dagster" / "local.yaml").read_text())
    ours["run_monitoring"]["poll_interval_seconds"] = 1
    (settings.paths.dagster / "dagster.yaml").write_text(yaml.safe_dump(ours))
    jobs.write_text(JOBS.format(release=str(tmp_path / "release")))
    (tmp_path / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [location_of(jobs)]}))
    monkeypatch.setattr(local, "WORKSPACE", tmp_path / "workspace.yaml")
    yield settings
    (tmp_path / "release").touch()
    local.stop(settings, local.DAEMON)


def test_a_run_whose_process_died_with_all_around_it_is_ended_and_the_next_one_starts(settings, tmp_path, jobs):
    local.start_daemon(settings)
    first = launch(settings, jobs, "holding", "fleet")
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:

        def status(run):
            return instance.get_run_by_id(run).status

        def process():
            return instance.run_launcher._process_of(first)

        eventually(lambda: status(first) is dg.DagsterRunStatus.STARTED and process(), "the first run did not start")
        pid, _ = process()
        daemon = local.running(settings, local.DAEMON).pid
        # the group has the code server, the run, and the `tail` of its output: killed alone, a run that has just
        # started a `tail` leaves it behind
        assert pid in group_members(daemon)
        os.killpg(daemon, signal.SIGKILL)
        eventually(lambda: local.running(settings, local.DAEMON) is None, "the daemon outlived its end")
        assert status(first) is dg.DagsterRunStatus.STARTED
        local.start_daemon(settings)
        second = launch(settings, jobs, "holding", "fleet")
        eventually(lambda: status(first) is dg.DagsterRunStatus.FAILURE, "the dead run was not ended")
        eventually(lambda: status(second) is dg.DagsterRunStatus.STARTED, "the next run of the processor did not start")
        # it is looked at each second: one that lives stays
        (tmp_path / "release").touch()
        eventually(lambda: status(second) is dg.DagsterRunStatus.SUCCESS, "the second run did not end")
        said = [record.message for record in instance.all_logs(first) if "has ended" in (record.message or "")]
        assert said
        assert f"its process {pid} has ended" in said[0]


@pytest.fixture
def of_process():
    """What the launcher says of a run that named a process, at a moment."""

    def ask(pid: int | None, at: float) -> WorkerStatus:
        events = []
        if pid is not None:
            event = SimpleNamespace(engine_event_data=EngineEventData({"pid": dg.MetadataValue.text(str(pid))}))
            events.append(SimpleNamespace(dagster_event=event, timestamp=at))
        launcher = LocalRunLauncher()
        launcher._engine_events = lambda run_id: events
        return launcher.check_run_worker_health(SimpleNamespace(run_id="r")).status

    return ask


def test_a_process_that_lives_is_told_from_a_later_one_with_its_id(of_process):
    began = started_at(os.getpid())
    assert began is not None
    assert began <= time.time()
    assert of_process(os.getpid(), time.time()) is WorkerStatus.RUNNING
    assert of_process(os.getpid(), began - 60) is WorkerStatus.FAILED
    assert of_process(None, 0.0) is WorkerStatus.RUNNING
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert of_process(gone.pid, time.time()) is WorkerStatus.FAILED
