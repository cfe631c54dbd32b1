"""If a run's process dies together with its code server, the run is marked as failed.

Then other runs may change its processor again.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import dagster as dg
import grpc
import pytest
import yaml
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import EngineEventData
from dagster._core.launcher import DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._grpc.client import DagsterGrpcClient

from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.process import (
    ProcessIdentity,
    end_process,
    group_members,
    identity_of,
    own_identity,
    start_mark,
)
from holdfast.orchestration.host import local, run_launcher
from holdfast.orchestration.host.run_launcher import (
    NEVER_REACHED,
    PROCESS_ENTRY,
    LaunchUnclear,
    LocalRunLauncher,
)
from holdfast.orchestration.host.run_time_limits import overdue_words
from holdfast.orchestration.recovery_location import build_recovery
from holdfast.orchestration.sensors.recovery import RECOVERY_SENSOR
from holdfast.orchestration.world import open_registry
from tests.dagster.queued_runs import eventually, fill_the_queue, launch, location_of

JOBS = """
import ctypes, pathlib, signal, subprocess, sys, time
import dagster as dg

@dg.op
def hold():
    while not pathlib.Path({release!r}).exists():
        time.sleep(0.05)

@dg.job(executor_def=dg.in_process_executor)
def holding():
    hold()

@dg.op(pool="deploys")
def hang():
    asleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    below, beside = subprocess.Popen(asleep), subprocess.Popen(asleep, start_new_session=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    pathlib.Path({release!r}).with_name("started").write_text(f"{{below.pid}} {{beside.pid}}")
    ctypes.CDLL(None).sleep(600)

@dg.op(pool="deploys")
def pass_by():
    pass

@dg.job(executor_def=dg.in_process_executor)
def hanging():
    hang()

@dg.job(executor_def=dg.in_process_executor)
def passing():
    pass_by()

@dg.op
def roll_out():
    from datetime import UTC, datetime

    from holdfast.infra.settings import load_settings
    from holdfast.infra.system.holders import new_holder
    from holdfast.orchestration.world import open_registry
    from holdfast.processors.lifecycle.plans.apply import Applier, Holder
    from holdfast.processors.lifecycle.plans.plan import Plan, Ready
    from holdfast.processors.lifecycle.plans.requests import Deploy
    from holdfast.processors.lifecycle.plans.stages import RunProcessor

    registry = open_registry(load_settings())

    def execute(processor, stage, tell):
        registry.record_deployment(processor, "v1", ["0"], datetime.now(UTC), desired="deploying")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        pathlib.Path({release!r}).with_name("started").write_text("in the stage")
        ctypes.CDLL(None).sleep(600)

    plan = Plan(request=Deploy("fleet"), verdict=Ready("."), stages=(RunProcessor("run", "v1", slots=("0",)),))
    Applier(execute, registry.journal, "ada", Holder(new_holder())).apply(plan)

@dg.job(executor_def=dg.in_process_executor)
def deploying():
    roll_out()

@dg.op(config_schema={{"processor": str, "dry_run": bool}})
def act():
    pass

def verb(name):
    @dg.job(name=name, executor_def=dg.in_process_executor, tags={{"holdfast/kind": "lifecycle"}})
    def made():
        act()
    return made

urgent = [verb(name) for name in ("stop_processor", "rollback_processor", "backfill_store")]
defs = dg.Definitions(jobs=[holding, hanging, passing, deploying, *urgent])
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "jobs_of_the_test.py"


@pytest.fixture
def settings(tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A new home whose daemon checks its runs every second, and a workspace with the test's jobs."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    settings = load_settings()
    settings.paths.dagster.mkdir(parents=True)
    look_at_runs_each(1, settings)
    jobs.write_text(JOBS.format(release=str(tmp_path / "release")))
    (tmp_path / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [location_of(jobs)]}))
    monkeypatch.setattr(local, "WORKSPACE", tmp_path / "workspace.yaml")
    yield settings
    (tmp_path / "release").touch()
    local.stop(settings, local.DAEMON)


def look_at_runs_each(seconds: int, settings: Settings) -> None:
    ours = yaml.safe_load((files("holdfast.infra") / "dagster" / "local.yaml").read_text())
    ours["run_monitoring"]["poll_interval_seconds"] = seconds
    ours["run_launcher"]["config"]["grace_seconds"] = 1
    (settings.paths.dagster / "dagster.yaml").write_text(yaml.safe_dump(ours))


def daemons_of(settings: Settings) -> list[int]:
    """The process ids of all running daemons of this home, recorded or not."""
    home = f"DAGSTER_HOME={settings.paths.dagster}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = home in (process / "environ").read_bytes().split(b"\0")
            if ours and (process / "cmdline").read_bytes().split(b"\0")[3:4] == [b"daemon"]:
                found.append(int(process.name))
    return found


@pytest.mark.thorough
def test_a_run_whose_process_died_with_all_around_it_is_ended_and_the_next_one_starts(settings, tmp_path, jobs):
    look_at_runs_each(3600, settings)
    # two concurrent commands start one daemon, and both name it
    with ThreadPoolExecutor() as pool:
        said = set(pool.map(lambda _: local.start_daemon(settings).removesuffix(" (was already running)"), range(2)))
    assert said == {f"Dagster's daemon, process {local.running(settings, local.DAEMON).pid}"}
    assert daemons_of(settings) == [local.running(settings, local.DAEMON).pid]
    first = launch(settings, jobs, "holding", "fleet")
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:

        def status(run):
            return instance.get_run_by_id(run).status

        def process():
            return instance.run_launcher._process_of(first)

        eventually(lambda: status(first) is dg.DagsterRunStatus.STARTED and process(), "the first run did not start")
        pid = process()
        # The process is recorded when the run names it, not by the daemon's check of runs: the next check is an hour
        # away.
        eventually(lambda: instance.run_launcher.recorded(first), "the first run's process was not recorded")
        assert instance.run_launcher.recorded(first) == identity_of(pid)
        daemon = local.running(settings, local.DAEMON).pid
        # Kill the whole process group: code server, run, and the `tail` processes of its output. If only the run were
        # killed, a `tail` that it has just started would survive.
        assert pid in group_members(daemon)
        os.killpg(daemon, signal.SIGKILL)
        eventually(lambda: local.running(settings, local.DAEMON) is None, "the daemon outlived its end")
        assert status(first) is dg.DagsterRunStatus.STARTED
        look_at_runs_each(1, settings)
        local.start_daemon(settings)
        second = launch(settings, jobs, "holding", "fleet")
        eventually(lambda: status(first) is dg.DagsterRunStatus.FAILURE, "the dead run was not ended")
        eventually(lambda: status(second) is dg.DagsterRunStatus.STARTED, "the next run of the processor did not start")
        # the daemon checks the run every second; a live run must stay
        (tmp_path / "release").touch()
        eventually(lambda: status(second) is dg.DagsterRunStatus.SUCCESS, "the second run did not end")
        said = [record.message for record in instance.all_logs(first) if "has ended" in (record.message or "")]
        assert said
        assert f"its process {pid} has ended" in said[0]


@pytest.mark.thorough
def test_a_run_that_hangs_in_c_is_ended_with_its_process_and_its_pool_is_free(
    settings, tmp_path, jobs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_RUNS__OTHER_MAX_S", "5")
    local.start_daemon(load_settings())
    first = launch(settings, jobs, "hanging", "fleet")
    started = tmp_path / "started"
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:

        def status(run):
            return instance.get_run_by_id(run).status

        eventually(lambda: started.exists() and started.read_text(), "the first run did not start")
        pid = instance.run_launcher._process_of(first)
        below, beside = map(int, started.read_text().split())
        mark = start_mark(beside)
        try:
            # this run is of another processor, so nothing but the pool can make it wait
            second = launch(settings, jobs, "passing", "routes")
            eventually(lambda: status(first) is dg.DagsterRunStatus.FAILURE, "the run that hangs was not ended")
            assert start_mark(pid) is None
            assert start_mark(below) is None
            assert start_mark(beside) == mark
            eventually(lambda: status(second) is dg.DagsterRunStatus.SUCCESS, "the pool of the ended run is not free")
        finally:
            end_process(beside, mark, timeout_s=5)
        told = [record.user_message or record.message for record in instance.all_logs(first)]
        tags = instance.get_run_by_id(first).tags
    assert (tags["holdfast/run-kind"], tags["dagster/max_runtime"]) == ("other", "5")
    assert [each for each in told if "raise `HOLDFAST_RUNS__OTHER_MAX_S`" in each and first in each]
    assert [each for each in told if "was killed" in each]
    assert "HOLDFAST_RUNS__OTHER_MAX_S" in overdue_words(first, "hanging", tags)


@pytest.mark.thorough
def test_a_rollout_that_reached_its_limit_is_recovered(settings, tmp_path, jobs, monkeypatch: pytest.MonkeyPatch):
    """A rollout that exceeds its time limit is killed by the daemon and then recovered.

    Its run is killed in the middle of a stage (step of a plan). Holdfast's registry still says "deploying", and no
    process changes this.
    """
    monkeypatch.setenv("HOLDFAST_RUNS__OTHER_MAX_S", "5")
    local.start_daemon(load_settings())
    run = launch(settings, jobs, "deploying", "fleet")
    with (
        dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance,
        closing(open_registry(settings)) as registry,
    ):
        eventually((tmp_path / "started").exists, "the rollout did not begin")
        eventually(lambda: instance.get_run_by_id(run).is_finished, "the run that hangs was not ended")
        assert registry.deployment("fleet").desired == "deploying"
        definitions = build_recovery(settings)
        with dg.build_sensor_context(
            instance=instance, resources=definitions.resources, definitions=definitions
        ) as context:
            data = definitions.resolve_sensor_def(RECOVERY_SENSOR).evaluate_tick(context)
        assert [each.tags["processor"] for each in data.run_requests or []] == ["fleet"]
        (told,) = data.asset_events
        assert "What to do: holdfast apply deploy fleet" in told.description


@pytest.mark.thorough
def test_stop_rollback_and_dry_runs_pass_a_full_queue(settings, jobs):
    local.start_daemon(settings)
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:
        endless = fill_the_queue(instance, pools=("deploys", "spark"))
        held = launch(settings, jobs, "backfill_store", "", {"processor": "fleet", "dry_run": False})
        acts = {"processor": "fleet", "dry_run": False}
        asked = [("stop_processor", acts), ("rollback_processor", acts), ("backfill_store", {**acts, "dry_run": True})]
        for job, config in asked:
            run = launch(settings, jobs, job, "", config)
            eventually(lambda run=run: instance.get_run_by_id(run).is_finished, f"{job} waits in the queue")
            assert instance.get_run_by_id(run).is_success
        assert instance.get_run_by_id(held).status is dg.DagsterRunStatus.QUEUED
        for each in endless:
            instance.delete_run(each)
        eventually(lambda: instance.get_run_by_id(held).is_success, "the long run does not follow")


class Launched:
    """A run in a real Dagster instance.

    ``named`` reports its process id, as Dagster's run worker does at the start of a run.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.launcher = LocalRunLauncher()
        self.launcher.register_instance(instance)
        self.id = instance.create_run_for_job(holding, status=dg.DagsterRunStatus.STARTED).run_id

    def named(self, pid: int) -> "Launched":
        self.instance.report_engine_event("Started.", self.run, EngineEventData.in_process(pid))
        return self

    def recorded_as(self, process: ProcessIdentity) -> None:
        entry = EngineEventData(metadata={PROCESS_ENTRY: dg.MetadataValue.text(str(process))})
        self.instance.report_engine_event("Recorded.", self.run, entry)

    @property
    def run(self) -> dg.DagsterRun:
        return self.instance.get_run_by_id(self.id)

    @property
    def health(self) -> WorkerStatus:
        return self.launcher.check_run_worker_health(self.run).status


@dg.job
def holding():
    pass


@pytest.fixture
def launched():
    with dg.DagsterInstance.ephemeral() as instance:
        yield Launched(instance)


def test_a_run_is_judged_by_its_process_and_by_no_clock(launched, monkeypatch):
    assert launched.health is WorkerStatus.RUNNING
    # the run named its process while the clock was one hour behind; a change of the clock must not end the run
    behind = time.time() - 3600
    with monkeypatch.context() as stepped:
        stepped.setattr(time, "time", lambda: behind)
        launched.named(os.getpid())
    assert launched.instance.all_logs(launched.id)[0].timestamp == pytest.approx(behind, abs=1.0)
    assert launched.health is WorkerStatus.RUNNING
    assert launched.launcher.recorded(launched.id) == own_identity()
    assert launched.health is WorkerStatus.RUNNING


def test_a_run_whose_process_ended_is_ended_also_when_another_process_has_its_id(launched):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    assert launched.named(child.pid).health is WorkerStatus.RUNNING
    child.communicate(b"\n")
    assert launched.health is WorkerStatus.FAILED
    # Simulate that another process has got the recorded id. Here the test's own process has it.
    ours = own_identity()
    earlier = replace(ours, mark=str(int(ours.mark) - 1))
    launched.recorded_as(earlier)
    assert launched.health is WorkerStatus.FAILED
    # simulate that the machine was rebooted after the process was recorded
    other_boot = replace(ours, boot="another")
    launched.recorded_as(other_boot)
    assert launched.health is WorkerStatus.FAILED


def test_a_process_is_recorded_while_the_run_writes_itself_back(launched, monkeypatch):
    """The process of a run is recorded while the run changes its own record.

    A run reads its record and writes it back with another status. The process that was recorded in between must stay.
    """
    storage, run = launched.instance.run_storage, launched.run
    read = storage._get_run_by_id

    def recorded_meanwhile(run_id):
        found = read(run_id)
        monkeypatch.setattr(storage, "_get_run_by_id", read)
        assert launched.named(os.getpid()).health is WorkerStatus.RUNNING
        return found

    monkeypatch.setattr(storage, "_get_run_by_id", recorded_meanwhile)
    launched.instance.report_run_canceling(run)
    assert launched.launcher.recorded(launched.id) == own_identity()


def test_the_process_of_another_home_is_no_process_of_a_run(launched, monkeypatch):
    look = run_launcher._dagster_home
    monkeypatch.setattr(run_launcher, "_dagster_home", lambda of: "/ours" if of == "self" else look(of))
    environment = {**os.environ, "DAGSTER_HOME": "/another"}
    stranger = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1, env=environment
    )
    stranger.stdout.readline()
    try:
        assert launched.named(stranger.pid).health is WorkerStatus.FAILED
    finally:
        stranger.communicate(b"\n")


def test_a_program_that_executes_a_run_itself_is_no_stranger_without_a_home_in_its_first_environment(
    launched, monkeypatch
):
    monkeypatch.setattr(run_launcher, "_dagster_home", lambda of: "/ours" if of == "self" else "")
    assert launched.named(os.getpid()).health is WorkerStatus.FAILED, "a process without a home can be anybody's"
    run_launcher.record_own_process(launched.instance, launched.id, "job")
    assert launched.health is WorkerStatus.RUNNING


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        (f"UNAVAILABLE: {NEVER_REACHED}; connection refused", DagsterUserCodeUnreachableError),
        ("UNAVAILABLE: Socket closed", LaunchUnclear),
    ],
)
def test_only_a_launch_that_reached_nobody_is_tried_again(launched, monkeypatch, said, raised):
    """Dagster queues a run again only if the launch did not reach the code server. Any other error fails the run."""

    def lost(self, context):
        raise DagsterUserCodeUnreachableError(said)

    monkeypatch.setattr(DefaultRunLauncher, "launch_run", lost)
    with pytest.raises(raised):
        launched.launcher.launch_run(LaunchRunContext(dagster_run=launched.run, workspace=None))


def test_a_run_whose_code_server_answers_late_is_waited_for(launched, monkeypatch):
    """A launch whose answer times out does not fail the run, because the run may have started.

    The test raises the error of Dagster's own client for a timeout.
    """

    class Late(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.DEADLINE_EXCEEDED

    def late(self, context):
        DagsterGrpcClient(port=1)._raise_grpc_exception(Late(), timeout=60)

    monkeypatch.setattr(DefaultRunLauncher, "launch_run", late)
    launched.launcher.launch_run(LaunchRunContext(dagster_run=launched.run, workspace=None))
    assert not launched.instance.get_run_by_id(launched.id).is_finished
    messages = [each.message for each in launched.instance.all_logs(launched.id)]
    assert any("taking longer than 60 seconds" in each and "waited for" in each for each in messages)
