"""Each run has one JVM, even if several of its assets use Spark.

The JVM ends with the run, even if the run is killed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.infra.system.process import end_group
from holdfast.orchestration.code_location import defs
from holdfast.orchestration.definitions import EXECUTOR

PATIENCE_S = 400.0
#: An unusual heap size, by which the tests recognise the drivers' JVMs.
HEAP_MB = 768


def start_run(tmp_path):
    """Start a run of two Spark assets in a separate process; every JVM that it starts writes a file."""
    (tmp_path / "dagster").mkdir()
    (tmp_path / "jvms").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.getcwd(),
        "HOLDFAST_HOME": str(tmp_path / "home"),
        "DAGSTER_HOME": str(tmp_path / "dagster"),
        "JAVA_TOOL_OPTIONS": f"-Xlog:gc+init:file={tmp_path}/jvms/%p",
        "HOLDFAST_SPARK__DRIVER_MEMORY_MB": str(HEAP_MB),
        "TEST_HOLD": str(tmp_path / "hold"),
        "TEST_REACHED": str(tmp_path / "reached"),
    }
    what = ["--select", "*", "-m", "tests.dagster.two_tables"]
    command = [sys.executable, "-m", "dagster", "asset", "materialize", *what]
    with (tmp_path / "run.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


@pytest.fixture
def run(tmp_path):
    process = start_run(tmp_path)
    yield process
    # kill the process group, which includes the run's JVM and the `tail` of its output
    end_group(process.pid, timeout_s=0.0)
    process.wait(60)


@pytest.fixture
def held_run(tmp_path):
    """A run that waits in its second asset."""
    (tmp_path / "hold").touch()
    process = start_run(tmp_path)
    yield process
    # kill the process group, which includes the run's JVM and the `tail` of its output
    end_group(process.pid, timeout_s=0.0)
    process.wait(60)


def drivers(tmp_path):
    """The process ids of the drivers that were started. Other JVMs only print Java's version or build command lines."""
    files = (tmp_path / "jvms").iterdir()
    return [int(path.name) for path in files if f"Heap Max Capacity: {HEAP_MB}M" in path.read_text()]


def until(condition, what, log):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for: {what}; {log.read_text()[-3000:]}"
        time.sleep(0.05)


def alive_in(home):
    """Processes that were started with this home folder, except the test's own process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment, state = (folder / "environ").read_bytes(), (folder / "stat").read_text()
            except OSError:
                continue
            if f"HOLDFAST_HOME={home}".encode() in environment and state.rpartition(")")[2].split()[0] != "Z":
                found.append(int(folder.name))
    return found


@pytest.mark.thorough
def test_a_run_of_several_spark_assets_starts_one_jvm_and_leaves_nothing(run, tmp_path):
    assert run.wait(PATIENCE_S) == 0, (tmp_path / "run.log").read_text()[-3000:]
    assert len(drivers(tmp_path)) == 1
    assert alive_in(tmp_path / "home") == []
    assert list((tmp_path / "home" / "spark" / "local").iterdir()) == []


@pytest.mark.thorough
def test_a_run_that_is_killed_takes_its_jvm_along(tmp_path, held_run):
    run = held_run
    until((tmp_path / "reached").exists, "the second asset", tmp_path / "run.log")
    assert len(drivers(tmp_path)) == 1
    run.kill()
    run.wait(60)
    until(lambda: alive_in(tmp_path / "home") == [], "the end of the JVM", tmp_path / "run.log")


@pytest.mark.thorough
def test_no_job_starts_a_process_for_each_step():
    assert EXECUTOR.name == "in_process"
    names = {job.name: job.executor_def.name for job in defs.resolve_all_job_defs()}
    assert {name: executor for name, executor in names.items() if executor != "in_process"} == {}
