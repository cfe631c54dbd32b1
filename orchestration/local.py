"""The local Dagster: webserver and daemon as processes of their own, known by their files below the home folder.

Invariants:
    - Both outlive whoever starts them, listen on loopback only, and are ended by process id, never by name.
    - Starting what runs is no error; nor is stopping what does not.
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
#: The port that people know; the next free one is taken when it is in use.
PORT = 3000
_LOOK_EVERY_S = 0.1
_STOP_S = 20.0
_QUERY = """{ workspaceOrError { ... on Workspace { locationEntries {
  name locationOrLoadError { __typename ... on PythonError { message } } } } } }"""


class DagsterDidNotStart(HoldfastError):
    """Webserver or daemon ended, or was not ready in time."""


class DefinitionsDoNotLoad(HoldfastError):
    """The webserver runs, but the definitions can't be loaded."""


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process of the local Dagster; ``mark`` tells it from any other that had its id."""

    pid: int
    mark: str
    url: str = ""


def prepare(settings: Settings) -> Path:
    """Write the instance's dagster.yaml if there is none; the DAGSTER_HOME."""
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
    """The webserver or the daemon of this home, if it runs."""
    try:
        found = LocalProcess(**json.loads(_file(settings, name).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if is_running(found.pid, found.mark) else None


def start_daemon(settings: Settings, timeout_s: float = 90.0) -> str:
    """Start the daemon, and wait until it has told that it lives; what runs is left as it is. A sentence for people.

    Raises:
        DagsterDidNotStart: It ended or told nothing in time.
    """
    there = running(settings, DAEMON)
    if there is not None:
        return f"Dagster's daemon runs, process {there.pid}"
    log = settings.paths.logs / "dagster-daemon.log"
    mark = log.stat().st_size if log.exists() else 0
    process = _launch(settings, DAEMON, ["dagster-daemon", "run"])
    deadline = time.monotonic() + timeout_s
    while not _daemon_beats(settings, since=mark):
        _insist(settings, process, DAEMON, deadline)
        time.sleep(_LOOK_EVERY_S)
    return f"Dagster's daemon, process {process.pid}"


def start_webserver(settings: Settings, *, port: int | None = None, timeout_s: float = 90.0) -> str:
    """Start the webserver and wait until it has loaded the definitions; its address. What runs is left as it is.

    Args:
        settings: Whose home.
        port: The port; None takes 3000 or, when that is in use, any free one.
        timeout_s: How long to wait.

    Raises:
        DagsterDidNotStart: It ended or did not answer in time.
        DefinitionsDoNotLoad: It answers, without our definitions.
    """
    there = running(settings, WEBSERVER)
    if there is not None:
        return there.url
    with _choosing_a_port(settings):
        chosen = port or _free_port()
        url = f"http://127.0.0.1:{chosen}"
        process = _launch(settings, WEBSERVER, ["dagster-webserver", "-h", "127.0.0.1", "-p", str(chosen)], url)
        deadline = time.monotonic() + timeout_s
        while not _webserver_ready(url):
            _insist(settings, process, WEBSERVER, deadline)
            time.sleep(_LOOK_EVERY_S)
    return url


def stop_daemon(settings: Settings) -> bool:
    """End the daemon; whether it ran."""
    return _stop(settings, DAEMON)


def stop_webserver(settings: Settings) -> bool:
    """End the webserver; whether it ran."""
    return _stop(settings, WEBSERVER)


def check_configuration(settings: Settings) -> Path:
    """Refuse what Dagster could not be started with; DAGSTER_HOME, made where it is missing.

    Raises:
        DagsterConfigInvalid: A file of Dagster's says what Dagster does not know, and where.
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
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = LocalProcess(process.pid, start_mark(process.pid) or "", url)
    # known by its file only from here on; nobody waits for it as for a child
    process.returncode = 0
    _file(settings, name).write_text(json.dumps(asdict(found)))
    return found


def _stop(settings: Settings, name: str) -> bool:
    there = running(settings, name)
    if there is not None and not end_process(there.pid, there.mark, timeout_s=_STOP_S):
        # its code servers are in its session and would stay
        with suppress(ProcessLookupError):
            os.killpg(there.pid, signal.SIGKILL)
    _file(settings, name).unlink(missing_ok=True)
    return there is not None


def _insist(settings: Settings, process: LocalProcess, name: str, deadline: float) -> None:
    log = settings.paths.logs / f"dagster-{name}.log"
    ended = not is_running(process.pid, process.mark)
    if not ended and time.monotonic() < deadline:
        return
    _stop(settings, name)
    words = " | ".join(log.read_text(errors="replace").splitlines()[-5:])[-1000:]
    raise DagsterDidNotStart(
        f"Dagster's {name} {'ended' if ended else 'was not ready in time'}. Its log ends: {words}",
        action=f"Read {log}; what it says last is the cause.",
        process=name,
    )


def _daemon_beats(settings: Settings, since: int) -> bool:
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
                f"Dagster can't load {entry['name']}: {loaded['message'].strip()[:1500]}",
                action="Correct what it names, then reload the definitions in Dagster's UI.",
                url=url,
            )
    return True


@contextmanager
def _choosing_a_port(settings: Settings) -> Iterator[None]:
    """One installation at a time: a port counts as free until its webserver listens, and another's would answer."""
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
    raise DagsterDidNotStart("There is no free port on loopback.", action="End a program that listens on many ports.")


def _file(settings: Settings, name: str) -> Path:
    return settings.paths.dagster / f"{name}.json"
