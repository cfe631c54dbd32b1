"""One installation on one Postgres: two Dagster daemons, a supervised processor with input, and an operator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import dagster as dg
import yaml

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.system.process import group_members, is_running, start_mark
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.host.local import WORKSPACE
from holdfast.orchestration.host.run_launcher import LocalRunLauncher
from holdfast.orchestration.world import environment_of, open_registry
from tests.dagster.rounds.effects import Feeder, Outputs
from tests.dagster.rounds.history import History
from tests.parts.operated import Operated
from tests.parts.postgres import PostgresServer

#: Maximum time until the sensors of a started daemon run, in seconds.
START_S = 180.0
#: The daemons check their runs at this interval, in seconds. Production's minute would lengthen each round with a dead
#: run by a minute.
LOOK_EVERY_S = 3
DEFINITION = """
from holdfast import Application

application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2,
    consumer_extra_config={{"session.timeout.ms": 6000}},
)

def count(value, state):
    state.set("n", state.get("n", 0) + 1)
    return state.get("n") if {version} else 0

frame = application.dataframe(application.topic("{group}-in"))
frame = frame.apply(count, stateful=True, store="counts")
frame.to_topic(application.topic("{group}-out"))
"""


class Daemon:
    """One ``holdfast daemon`` and its process group: the code server, and the runs that it starts."""

    def __init__(self, name: str, operated: Operated, log: Path) -> None:
        self.name, self._operated, self.log = name, operated, log
        self.pid = 0
        self._mark = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        home = self._operated.settings.paths.dagster
        before = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "holdfast.orchestration.cli", "daemon", "-w", str(WORKSPACE)]
        environment = {**os.environ, **environment_of(self._operated.settings), "DAGSTER_HOME": str(home)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._mark = start_mark(self.pid) or ""
        ready = wait_until(lambda: b"SensorDaemon" in self.log.read_bytes()[before:] or not self.lives, START_S)
        assert ready, f"{self.name} was not ready in {START_S:g} s"
        assert self.lives, self.log.read_text()[-2000:]

    @property
    def lives(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None and is_running(self.pid, self._mark)

    def signal(self, number: int, *, whole: bool) -> None:
        """Send a signal to the daemon, or to all processes in its group if ``whole``."""
        for pid in (self.pid, *(group_members(self.pid) if whole else ())):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """Kill the daemon and all processes in its group."""
        self.signal(signal.SIGKILL, whole=True)
        if self._process is not None:
            self._process.wait(30)
        wait_until(lambda: not list(group_members(self.pid)), 30.0)


@dataclass
class Installation:
    """All parts of the installation, and the records by which a round is judged."""

    operated: Operated
    daemons: tuple[Daemon, Daemon]
    registry: Registry
    instance: dg.DagsterInstance
    history: History
    feeder: Feeder
    outputs: Outputs
    definition: Path
    version: int = 1

    @property
    def supervisor_log(self) -> Path:
        return self.operated.settings.paths.supervisor / "supervisord.log"

    def worker(self) -> int | None:
        """The process id of the worker; None while no worker runs."""
        programs = Supervisord(self.operated.settings.paths).programs().values()
        return next((each.pid for each in programs if each.alive and each.pid), None)

    def process_of(self, run: str) -> int | None:
        """The process id of a run; None while it is not recorded."""
        launcher = self.instance.run_launcher
        assert isinstance(launcher, LocalRunLauncher)
        identity = launcher.recorded(run)
        return None if identity is None else identity.pid

    def change_code(self) -> None:
        """Write a new version of the definition, which counts as before."""
        self.version += 1
        self.definition.write_text(DEFINITION.format(group=self.operated.group, version=self.version))


@contextmanager
def installed(operated: Operated, server: PostgresServer, registry: str, dagster: str) -> Iterator[Installation]:
    """Start the installation for this block, and stop it afterwards."""
    settings, folder = operated.settings, operated.settings.paths.dagster.parent.parent
    folder.mkdir(parents=True, exist_ok=True)
    settings.paths.dagster.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load((files("holdfast.infra") / "dagster" / "production.yaml").read_text())
    config["run_monitoring"]["poll_interval_seconds"] = LOOK_EVERY_S
    config["run_monitoring"]["free_slots_after_run_end_seconds"] = LOOK_EVERY_S
    (settings.paths.dagster / "dagster.yaml").write_text(yaml.safe_dump(config))
    module = next(iter(settings.processors)).partition(":")[0]
    definition = folder / f"{module}.py"
    definition.write_text(DEFINITION.format(group=operated.group, version=1))
    feeder = Feeder(operated.topics.bootstrap, f"{operated.group}-in")
    daemons = (Daemon("daemon 1", operated, folder / "one.log"), Daemon("daemon 2", operated, folder / "two.log"))
    operated.bring_up()
    opened = open_registry(settings)
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:
        history = History(server, registry, dagster)
        outputs = Outputs(operated.topics, f"{operated.group}-out")
        try:
            for daemon in daemons:
                daemon.start()
            yield Installation(operated, daemons, opened, instance, history, feeder, outputs, definition)
        finally:
            feeder.stop()
            for daemon in daemons:
                if daemon.pid:
                    daemon.end()
            history.close()
            opened.close()
