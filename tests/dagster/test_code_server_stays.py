"""Dagster's daemon keeps its code server running: a real daemon and real code servers, with short intervals."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from holdfast.infra.settings import load_settings
from holdfast.infra.system.process import end_group, group_members
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.host import local
from holdfast.orchestration.world import environment_of
from tests.dagster.queued_runs import location_of

#: A sensor that writes its process id and its code version at each tick.
SENSOR = """
import os, pathlib, time
import dagster as dg

VERSION = {version}

@dg.job
def nothing():
    pass

@dg.sensor(job=nothing, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def saying():
    with pathlib.Path({ticks!r}).open("a") as file:
        file.write(f"{{os.getpid()}} {{VERSION}}\\n")

def slow(number):
    @dg.sensor(job=nothing, name=f"slow_{{number}}", default_status=dg.DefaultSensorStatus.RUNNING)
    def sleeping():
        time.sleep({slow_s})
        with pathlib.Path({ticks!r}).open("a") as file:
            file.write(f"{{os.getpid()}} {{-number}}\\n")
    return sleeping

defs = dg.Definitions(jobs=[nothing], sensors=[saying, *map(slow, range(1, {slow} + 1))])
"""
#: The daemon of `holdfast up`, with checks 25 times as often.
DAEMON = """
from dagster._daemon import controller
from holdfast.orchestration import cli
from holdfast.orchestration.host.daemon import code_servers
from holdfast.orchestration.host.daemon import serving

controller.THREAD_CHECK_INTERVAL = 0.2
{more}
cli.main()
"""
#: The same daemon, with refreshes sixty times as often.
QUICK = "controller.RELOAD_WORKSPACE_INTERVAL = code_servers.AGE_MIN_S = code_servers.EDITED_MIN_S = 1.0"
#: The same daemon, which never replaces a running code server.
PATIENT = "controller.RELOAD_WORKSPACE_INTERVAL = code_servers.AGE_MIN_S = code_servers.EDITED_MIN_S = 3600.0"
#: The same daemon, whose code servers exit after ten seconds without a heartbeat.
SHORT_OF_BREATH = f"{PATIENT}; serving.HEARTBEAT_TTL_S = 10"
#: The same daemon, with a shorter timeout for the start of a code server.
HASTY = (
    f"{QUICK}; from dagster import DagsterInstance; "
    "DagsterInstance.code_server_process_startup_timeout = property(lambda instance: 45)"
)
SLOW_SENSORS, SLOW_S = 10, 25.0
WITHIN_S = 240.0


class Ticks:
    """The ticks that the sensor has written."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self) -> list[tuple[int, int]]:
        """The process id and code version of each tick."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [(int(pid), int(version)) for pid, version in (line.split() for line in lines)]

    def since(self, former: int, right: Callable[[int, int], bool], number: int = 1) -> list[tuple[int, int]]:
        """Wait for ``number`` ticks that satisfy ``right``, after the first ``former`` ticks."""
        found: list[tuple[int, int]] = []

        def enough() -> bool:
            found[:] = [tick for tick in self()[former:] if right(*tick)]
            return len(found) >= number

        assert wait_until(enough, WITHIN_S), f"no such ticks among {self()[former:]}"
        return found


@pytest.fixture
def ticks(tmp_path: Path) -> Ticks:
    return Ticks(tmp_path / "ticks")


@pytest.fixture
def slow() -> int:
    """The number of additional slow sensors."""
    return 0


@pytest.fixture
def code(tmp_path: Path, slow: int) -> Callable[[int], None]:
    def write(version: int) -> None:
        text = SENSOR.format(version=version, ticks=str(tmp_path / "ticks"), slow=slow, slow_s=SLOW_S)
        # replace the file at once: a half-written file would count as a separate edit
        written = tmp_path / "saying.new"
        written.write_text(text)
        written.replace(tmp_path / "saying.py")

    return write


@pytest.fixture
def daemon(
    tmp_path: Path, code: Callable[[int], None], request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[bytes]]:
    settings = load_settings(home=tmp_path / "home")
    home = local.prepare(settings)
    code(1)
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(yaml.safe_dump({"load_from": [location_of(tmp_path / "saying.py")]}))
    with (tmp_path / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DAEMON.format(more=request.param), "daemon", "-w", str(workspace)],
            cwd=home,
            env={**os.environ, **environment_of(settings), "DAGSTER_HOME": str(home)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    yield process
    process.kill()
    process.wait(30)
    end_group(process.pid, timeout_s=10.0)


@pytest.mark.thorough  # slow, because it waits for Dagster's intervals; unit tests cover the decisions
@pytest.mark.parametrize("daemon", [QUICK], indirect=True)
def test_the_code_server_stays_until_its_code_changes_or_it_ends(
    daemon: subprocess.Popen[bytes], ticks: Ticks, code: Callable[[int], None], tmp_path: Path
) -> None:
    # five ticks, one second apart, so the sensor ran for four seconds
    stayed = ticks.since(0, lambda _, version: version == 1, number=5)
    assert len({pid for pid, _ in stayed}) == 1, "a second code server was started"
    first = stayed[0][0]
    code(2)
    edited = ticks.since(len(ticks()), lambda _, version: version == 2, number=5)
    assert {version for _, version in edited} == {2}
    assert len({pid for pid, _ in edited}) == 1
    second = edited[0][0]
    assert second != first
    (tmp_path / "saying.py").write_text("this is no Python\n")
    log = tmp_path / "daemon.log"
    assert wait_until(lambda: b"SyntaxError" in log.read_bytes(), WITHIN_S)
    code(3)
    third = ticks.since(len(ticks()), lambda _, version: version == 3)[0][0]
    os.kill(third, signal.SIGKILL)
    healed = ticks.since(len(ticks()), lambda pid, version: version == 3 and pid != third)
    assert healed
    assert daemon.poll() is None, "one daemon did all of this"
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(WITHIN_S)
    assert wait_until(lambda: not list(group_members(daemon.pid)), WITHIN_S), "a code server was left behind"


@pytest.mark.thorough  # only in thorough runs, because unit tests cover the daemon's decisions
@pytest.mark.parametrize("daemon", [PATIENT], indirect=True)
def test_one_that_ends_soon_after_its_start_is_started_again_at_once(
    daemon: subprocess.Popen[bytes], ticks: Ticks, tmp_path: Path
) -> None:
    first = ticks.since(0, lambda _, version: version == 1)[0][0]
    os.kill(first, signal.SIGKILL)
    assert ticks.since(len(ticks()), lambda pid, _: pid != first)
    assert b"killed by SIGKILL" in (tmp_path / "daemon.log").read_bytes()
    assert daemon.poll() is None


@pytest.mark.thorough  # only in thorough runs, because slow sensors make the test slow
@pytest.mark.parametrize(("daemon", "slow"), [(SHORT_OF_BREATH, SLOW_SENSORS)], indirect=["daemon"])
def test_slow_sensors_keep_no_heartbeat_from_their_code_server(
    daemon: subprocess.Popen[bytes], ticks: Ticks, slow: int, tmp_path: Path
) -> None:
    ended = ticks.since(0, lambda _, number: number < 0, number=slow)
    assert len({pid for pid, _ in ended}) == 1, (tmp_path / "daemon.log").read_text()
    assert b"No heartbeat received" not in (tmp_path / "daemon.log").read_bytes()
    assert daemon.poll() is None


@pytest.mark.thorough  # only in thorough runs, because the test waits for a timeout of Dagster
@pytest.mark.parametrize("daemon", [HASTY], indirect=True)
def test_one_that_does_not_start_replaces_none(
    daemon: subprocess.Popen[bytes], ticks: Ticks, code: Callable[[int], None], tmp_path: Path
) -> None:
    first = ticks.since(0, lambda _, version: version == 1)[0][0]
    (tmp_path / "saying.py").write_text("import time\ntime.sleep(3600)\n")
    log = tmp_path / "daemon.log"
    for times in (1, 2):
        assert wait_until(lambda: log.read_bytes().count(b"code_server.not_started") >= times, WITHIN_S)  # noqa: B023
        assert ticks.since(len(ticks()), lambda pid, _: pid == first), "no sensor ticks"
    code(2)
    assert ticks.since(len(ticks()), lambda _, version: version == 2)
    assert daemon.poll() is None
