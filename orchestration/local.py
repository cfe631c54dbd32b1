"""Starts and stops the local Dagster: its webserver and its daemon.

Each is a process of its own with a file below the home folder that names it.

Invariants:
    - Both processes outlive the process that starts them, and listen on loopback only.
    - Both are ended by process id and start time, never by name.
    - Starting a running process is no error, and neither is stopping one that does not run.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import httpx

from holdfast.infra.errors import HoldfastError
from holdfast.infra.process import end_process, is_running, start_mark
from holdfast.infra.settings import PROJECT, Settings
from holdfast.orchestration.dagster_config import check_dagster_config
from holdfast.orchestration.world import environment_of

WEBSERVER, DAEMON = "webserver", "daemon"
#: Dagster's usual port; a free port is used when it is taken.
PORT = 3000
_POLL_EVERY_S = 0.1
_STOP_S = 20.0
_QUERY = """{ workspaceOrError { ... on Workspace { locationEntries {
  name locationOrLoadError { __typename ... on PythonError { message } } } } } }"""


class DagsterDidNotStart(HoldfastError):
    """The webserver or the daemon ended, or was not ready in time."""


class DefinitionsDoNotLoad(HoldfastError):
    """The webserver runs, but Dagster cannot load the definitions."""


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process of the local Dagster; ``mark`` is its start time, because process ids are used again."""

    pid: int
    mark: str
    url: str = ""


def prepare(settings: Settings) -> Path:
    """Write the default ``dagster.yaml`` if none exists; returns DAGSTER_HOME."""
    home = settings.paths.dagster
    home.mkdir(parents=True, exist_ok=True)
    settings.paths.logs.mkdir(parents=True, exist_ok=True)
    config = home / "dagster.yaml"
    if not config.exists():
        temporary = home / f"dagster.yaml.{os.getpid()}"
        temporary.write_text((files("holdfast.infra") / "dagster" / "local.yaml").read_text())
        temporary.replace(config)
    return home


def running(settings: Settings, name: str) -> LocalProcess | None:
    """The webserver or the daemon of this home folder; None when it does not run."""
    try:
        found = LocalProcess(**json.loads(_file(settings, name).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if is_running(found.pid, found.mark) else None


def start_daemon(settings: Settings, timeout_s: float = 90.0) -> str:
    """Start the daemon unless it runs, and wait until its log shows its sensors; returns a sentence with its process.

    Raises:
        DagsterDidNotStart: The daemon ended, or was not ready in time.
    """
    present = running(settings, DAEMON)
    if present is not None:
        return f"Dagster's daemon, process {present.pid} (was already running)"
    log = settings.paths.logs / "dagster-daemon.log"
    mark = log.stat().st_size if log.exists() else 0
    process = _launch(settings, DAEMON, ["dagster-daemon", "run"])
    deadline = time.monotonic() + timeout_s
    while not _daemon_ready(settings, since=mark):
        _check_started(settings, process, DAEMON, deadline)
        time.sleep(_POLL_EVERY_S)
    return f"Dagster's daemon, process {process.pid}"


def start_webserver(settings: Settings, *, port: int | None = None, timeout_s: float = 90.0) -> str:
    """Start the webserver unless it runs, and wait until it has loaded the definitions; returns its URL.

    Args:
        settings: The home folder in them gets the process's file and log.
        port: The port; None: 3000, or a free port when 3000 is taken.
        timeout_s: How long to wait, seconds.

    Raises:
        DagsterDidNotStart: The webserver ended, or did not answer in time.
        DefinitionsDoNotLoad: The webserver answers, but could not load the definitions.
    """
    present = running(settings, WEBSERVER)
    if present is not None:
        return present.url
    with _choosing_a_port(settings):
        chosen = port or _free_port()
        url = f"http://127.0.0.1:{chosen}"
        process = _launch(settings, WEBSERVER, ["dagster-webserver", "-h", "127.0.0.1", "-p", str(chosen)], url)
        deadline = time.monotonic() + timeout_s
        while not _webserver_ready(url):
            _check_started(settings, process, WEBSERVER, deadline)
            time.sleep(_POLL_EVERY_S)
    return url


def stop_daemon(settings: Settings) -> bool:
    """End the daemon; returns whether it was running."""
    return _stop(settings, DAEMON)


def stop_webserver(settings: Settings) -> bool:
    """End the webserver; returns whether it was running."""
    return _stop(settings, WEBSERVER)


def check_configuration(settings: Settings) -> Path:
    """Check Dagster's configuration files, and write missing ones; returns DAGSTER_HOME.

    Raises:
        DagsterConfigInvalid: A file has an entry that Dagster refuses; names file and line.
        DagsterDatabaseAway: The database in ``dagster.yaml`` does not answer.
    """
    home = prepare(settings)
    check_dagster_config(home, PROJECT / "workspace.yaml")
    return home


def _launch(settings: Settings, name: str, command: list[str], url: str = "") -> LocalProcess:
    home = check_configuration(settings)
    executable = Path(sys.executable).parent / command[0]
    arguments = [str(executable), *command[1:], "-w", str(PROJECT / "workspace.yaml")]
    environment = {**os.environ, **environment_of(settings), "DAGSTER_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    with (settings.paths.logs / f"dagster-{name}.log").open("ab") as log:
        process = subprocess.Popen(
            arguments,
            cwd=home,  # Dagster imports from its working directory: our folders must not hide packages of a user
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = LocalProcess(process.pid, start_mark(process.pid) or "", url)
    # the process is known by its file from here on; without a return code, Popen would warn that nobody waited for it
    process.returncode = 0
    _file(settings, name).write_text(json.dumps(asdict(found)))
    return found


def _stop(settings: Settings, name: str) -> bool:
    present = running(settings, name)
    if present is not None and not end_process(present.pid, present.mark, timeout_s=_STOP_S):
        # a killed process leaves its code servers behind; they are in its session
        with suppress(ProcessLookupError):
            os.killpg(present.pid, signal.SIGKILL)
    _file(settings, name).unlink(missing_ok=True)
    return present is not None


def _check_started(settings: Settings, process: LocalProcess, name: str, deadline: float) -> None:
    log = settings.paths.logs / f"dagster-{name}.log"
    ended = not is_running(process.pid, process.mark)
    if not ended and time.monotonic() < deadline:
        return
    _stop(settings, name)
    tail = " | ".join(log.read_text(errors="replace").splitlines()[-5:])[-1000:]
    raise DagsterDidNotStart(
        f"Dagster's {name} {'ended' if ended else 'was not ready in time'}. Its log ends: {tail}",
        action=f"Read the last lines of {log}, mend what they name, and run `holdfast up`.",
        process=name,
    )


def _daemon_ready(settings: Settings, since: int) -> bool:
    log = settings.paths.logs / "dagster-daemon.log"
    try:
        with log.open("rb") as file:
            file.seek(since)
            return b"SensorDaemon" in file.read()
    except OSError:
        return False


def _webserver_ready(url: str) -> bool:
    try:
        answer = httpx.post(f"{url}/graphql", json={"query": _QUERY}, timeout=10.0, trust_env=False)
        entries = answer.json()["data"]["workspaceOrError"]["locationEntries"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
    if not entries or any(entry["locationOrLoadError"] is None for entry in entries):
        return False
    for entry in entries:
        loaded = entry["locationOrLoadError"]
        if loaded["__typename"] == "PythonError":
            raise DefinitionsDoNotLoad(
                f"Dagster cannot load {entry['name']}: {loaded['message'].strip()[:1500]}",
                action="Correct the code that the message names, then reload the definitions in Dagster's UI.",
                url=url,
            )
    return True


@contextmanager
def _choosing_a_port(settings: Settings) -> Iterator[None]:
    """Hold a lock while a port is chosen and until its webserver listens, so two installations never share one."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(settings.cache / "webserver-port.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _free_port() -> int:
    for wanted in (PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DagsterDidNotStart("No port on loopback is free.", action="End a program that listens on many ports.")


def _file(settings: Settings, name: str) -> Path:
    return settings.paths.dagster / f"{name}.json"
