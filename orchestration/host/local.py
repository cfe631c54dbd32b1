"""Starts and stops the webserver and the daemon of the Dagster on this machine.

Webserver and daemon are separate processes. Each has a file in the home folder with its process id.

Invariants:
    - Both processes outlive the process that starts them. The webserver runs the command `holdfast webserver`. It
      listens on loopback, unless ``HOLDFAST_WEBSERVER__HOST`` is another address. The daemon does not listen.
    - A process is ended by process id and start time, never by name. All processes that it started are ended too: code
      servers, runs, and the ``tail`` processes that copy the output of runs.
    - It is no error to start a process that already runs, or to stop a process that does not run.
    - Each home folder has at most one webserver and one daemon. A start holds a lock until the process is ready, so a
      second start waits and then finds the first process. A stop takes the same lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from holdfast.infra.database.unused_pages import give_back
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.masking import masked
from holdfast.infra.settings import IMPORT_ROOT, Settings
from holdfast.infra.system.files import locked, replace_text
from holdfast.infra.system.ports import can_bind, free_port
from holdfast.infra.system.privacy import process_umask
from holdfast.infra.system.process import (
    end_group,
    end_process,
    group_members,
    identity_beside,
    is_running,
    record_identity,
    recorded_runs,
    start_mark,
)
from holdfast.infra.tls import trusted_for
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.world import environment_of_services

#: The workspace file that webserver and daemon load, unless the project has its own Dagster definitions.
WORKSPACE = IMPORT_ROOT / "holdfast" / "workspace.yaml"
_PROJECT_WORKSPACE = """\
# `holdfast up` writes this file: the code location of the project {project}, and one that its code can't end or delay
load_from:
  - python_module:
      module_name: holdfast.orchestration.recovery_location
      location_name: recovery
  - python_module:
      module_name: {module}
      working_directory: {directory}
      location_name: holdfast
"""
WEBSERVER, DAEMON = "webserver", "daemon"
#: Default port of Dagster's UI; if the port is in use, a free port is chosen.
PORT = 3000
#: First 16 digits of the SHA-256 of every default ``dagster.yaml`` of older versions of Holdfast. A file with one of
#: these hashes was never edited, so it is replaced by the present default.
FORMER_DEFAULTS = frozenset(
    (
        "5e75ee48977587ab",
        "96a579a63de52952",
        "7911310fc302bd5e",
        "fdf7b1116fa2deb9",
        "259911a1347f796d",
        "73daf7a8e16d95da",
        "30464902e95d1f02",
        "d446e9fc5a4e6388",
        "00745fd115b570ed",
        "ee62b8c9bda244e9",
        "57af62cd30f3b11f",
        "811e8458f3a21301",
        "69a24defc1ef8b89",
        "5cb42d8453415023",
    )
)
#: Maps a pattern to its replacement in ``dagster.yaml``. An older version of Holdfast had a SQLite storage of its own,
#: which is replaced by Dagster's SQLite storage; both have the same files and tables.
_FORMER_STORAGE = (
    (re.compile(r"\bholdfast\.orchestration\.(host\.)?sqlite_storage\b"), "dagster.core.storage.sqlite_storage"),
    (re.compile(r"\bKeptSqliteStorage\b"), "DagsterSqliteStorage"),
)
_POLL_EVERY_S = 0.1
#: Maximum seconds to wait for the end of a process, and then for the end of the processes that it started.
_STOP_S = 20.0
_STOP_CHILDREN_S = 10.0
_QUERY = """{ workspaceOrError { ... on Workspace { locationEntries {
  name locationOrLoadError { __typename ... on PythonError { message } } } } } }"""


class DagsterDidNotStart(HoldfastError):
    """The webserver or the daemon ended, or was not ready in time."""


class WebserverPortTaken(HoldfastError):
    """The port that the user chose for Dagster's UI is in use. Field: port."""

    exit_code = EXIT_BAD_CONFIGURATION


class DefinitionsDoNotLoad(HoldfastError):
    """The webserver runs, but Dagster cannot load the definitions."""


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """The webserver or the daemon of this machine's Dagster.

    ``mark`` (``system.process``) distinguishes the process from a later process with the same id.
    """

    pid: int
    mark: str
    url: str = ""


def prepare(settings: Settings) -> Path:
    """Write the default ``dagster.yaml`` if the file is missing, or is the default of an older version of Holdfast.

    In an edited file, only the name of an older version's storage class is replaced. Returns DAGSTER_HOME.
    """
    home = settings.paths.dagster
    home.mkdir(parents=True, exist_ok=True)
    settings.paths.logs.mkdir(parents=True, exist_ok=True)
    config = home / "dagster.yaml"
    if not config.exists() or hashlib.sha256(config.read_bytes()).hexdigest()[:16] in FORMER_DEFAULTS:
        replace_text(config, (files("holdfast.infra") / "dagster" / "local.yaml").read_text())
    # A file that is not UTF-8 is not reported here, because ``check_dagster_config`` refuses it.
    with suppress(UnicodeDecodeError):
        text = config.read_text(encoding="utf-8")
        for former, now in _FORMER_STORAGE:
            text = former.sub(now, text)
        replace_text(config, text)
    return home


def running(settings: Settings, name: str) -> LocalProcess | None:
    """The running webserver or daemon of this home folder; None if it does not run. ``name`` is WEBSERVER or DAEMON."""
    found = _recorded(settings, name)
    return found if found is not None and _runs(settings, name, found) else None


def shrink(settings: Settings) -> None:
    """Shrink Dagster's SQLite files by their unused pages; does nothing while webserver or daemon runs."""
    with _alone(settings, WEBSERVER), _alone(settings, DAEMON):
        if all(running(settings, name) is None for name in (WEBSERVER, DAEMON)):
            give_back(settings.paths.dagster.rglob("*.db"))


def start_daemon(settings: Settings, timeout_s: float = 90.0) -> str:
    """Start the daemon unless it runs, and wait until its log shows that sensors run.

    Returns a sentence with the daemon's process id.

    Raises:
        DagsterDidNotStart: The daemon ended, or was not ready in time.
    """
    with _alone(settings, DAEMON):
        present = running(settings, DAEMON)
        if present is not None:
            return f"Dagster's daemon, process {present.pid} (was already running)"
        log = _log(settings, DAEMON)
        before = log.stat().st_size if log.exists() else 0
        process = _launch(settings, DAEMON, [sys.executable, "-m", "holdfast.orchestration.cli", DAEMON])
        _await_ready(settings, DAEMON, process, lambda: b"SensorDaemon" in log.read_bytes()[before:], timeout_s)
        return f"Dagster's daemon, process {process.pid}"


def start_webserver(settings: Settings, *, port: int | None = None, timeout_s: float = 90.0) -> str:
    """Start the webserver unless it runs, and wait until it has loaded the definitions; returns its URL.

    Without ``port``, the port is 3000, or any free port if 3000 is in use.

    Raises:
        DagsterDidNotStart: The webserver ended, or did not answer in time.
        WebserverPortTaken: Another program listens on ``port``.
        DefinitionsDoNotLoad: The webserver answers, but could not load the definitions.
    """
    with _alone(settings, WEBSERVER):
        present = running(settings, WEBSERVER)
        if present is not None:
            return present.url
        settings.cache.mkdir(parents=True, exist_ok=True)
        # The lock is held until the webserver listens. Otherwise two installations could choose the same port.
        with locked(settings.cache / "webserver-port.lock"):
            if port is not None and not can_bind(port):
                raise WebserverPortTaken(
                    f"Port {port} on 127.0.0.1 is in use by another program; `--port` names it for Dagster's UI.",
                    action="Name a free port, or leave `--port` out: a free one is chosen.",
                    port=port,
                )
            chosen = port or (PORT if can_bind(PORT) else free_port())
            host = settings.webserver.host
            url = f"http://{_reached(host)}:{chosen}{settings.webserver.path_prefix}"
            command = [sys.executable, "-m", "holdfast.orchestration.cli", WEBSERVER, "-h", host, "-p", str(chosen)]
            headers, environment = _own_token(settings)
            process = _launch(settings, WEBSERVER, command, url, environment)
            _await_ready(settings, WEBSERVER, process, lambda: _webserver_ready(url, headers), timeout_s)
        return url


def stop(settings: Settings, name: str) -> bool:
    """End the webserver or the daemon; returns whether the process was running.

    The whole process group is ended, because Dagster's code servers may still run. This happens after a kill, with an
    unfinished run, or if the database does not answer. In the last two cases, code servers ignore SIGTERM.
    """
    if not settings.paths.dagster.is_dir():
        return False  # No Dagster process was ever started from this home folder.
    with _alone(settings, name):
        return _end(settings, name)


def _end(settings: Settings, name: str) -> bool:
    found = _recorded(settings, name)
    ran = found is not None and _runs(settings, name, found)
    if found is not None:
        if ran:
            end_process(found.pid, found.mark, timeout_s=_STOP_S)
        if ran or _left_its_group(settings, found):
            end_group(found.pid, timeout_s=_STOP_CHILDREN_S)
    _file(settings, name).unlink(missing_ok=True)
    identity_beside(_file(settings, name)).unlink(missing_ok=True)
    return ran


def check_configuration(settings: Settings) -> Path:
    """Write missing configuration files of Dagster, and check all of them; returns DAGSTER_HOME.

    Raises:
        DagsterConfigInvalid: A file has an entry that Dagster refuses; the error names file and line.
        DagsterDatabaseAway: The database in ``dagster.yaml`` does not answer.
    """
    # imported late, because importing Dagster takes a second
    from holdfast.orchestration.host.dagster_config import check_dagster_config

    home = prepare(settings)
    check_dagster_config(home, workspace_of(settings))
    return home


def workspace_of(settings: Settings) -> Path:
    """Dagster's workspace file for these settings. For a project, the file is written to DAGSTER_HOME first."""
    if settings.definitions is None:
        return WORKSPACE
    directory = settings.workers_directory
    file = settings.paths.dagster / "workspace.yaml"
    replace_text(
        file,
        _PROJECT_WORKSPACE.format(
            project=directory.name, module=settings.definitions, directory=json.dumps(str(directory))
        ),
    )
    return file


def _reached(host: str) -> str:
    """The address for programs on this machine that connect to a server which listens on ``host``."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 # nosec B104: compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _own_token(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """A pair with the same new token: HTTP headers for this process, and environment variables for the webserver.

    With the headers, this process can check a webserver that requires tokens. Headers and variables are empty if the
    webserver requires no token.
    """
    if not settings.webserver.asks:
        return {}, {}
    token = secrets.token_urlsafe(24)
    tokens = {**settings.webserver.tokens, "holdfast-up": token}
    return {"Authorization": f"Bearer {token}"}, {"HOLDFAST_WEBSERVER__TOKENS": json.dumps(tokens)}


def _launch(
    settings: Settings, name: str, command: list[str], url: str = "", environment: Mapping[str, str] | None = None
) -> LocalProcess:
    home = check_configuration(settings)
    with _log(settings, name).open("ab") as log:
        process = subprocess.Popen(
            [*command, "-w", str(workspace_of(settings))],
            # Dagster imports modules from its working directory. Folders of another working directory could hide
            # packages with the same names.
            cwd=home,
            env={
                **os.environ,
                **environment_of_services(settings),
                **(environment or {}),
                "DAGSTER_HOME": str(home),
                "PYTHONUNBUFFERED": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=process_umask(),
        )
    found = LocalProcess(process.pid, start_mark(process.pid) or "", url)
    # The started process keeps running after this process ends, and a file in the home folder identifies it. Popen gets
    # a return code, because otherwise it would warn that the started process still runs.
    process.returncode = 0
    record_identity(_file(settings, name), process.pid)
    replace_text(_file(settings, name), json.dumps(asdict(found)))
    return found


@contextmanager
def _alone(settings: Settings, name: str) -> Iterator[None]:
    settings.paths.dagster.mkdir(parents=True, exist_ok=True)
    with locked(settings.paths.dagster / f"{name}.lock"):
        yield


def _runs(settings: Settings, name: str, found: LocalProcess) -> bool:
    return recorded_runs(_file(settings, name), found.pid, found.mark)


def _left_its_group(settings: Settings, ended: LocalProcess) -> bool:
    """Whether a process that ended by itself left members of its process group, such as code servers.

    Only processes with the DAGSTER_HOME of this home folder count, because another program's group may have the same
    id now.
    """
    home = f"DAGSTER_HOME={settings.paths.dagster}".encode()
    for pid in group_members(ended.pid):
        with suppress(OSError):
            if home in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return True
    return False


def _await_ready(
    settings: Settings, name: str, process: LocalProcess, ready: Callable[[], bool], timeout_s: float
) -> None:
    def settled() -> str:
        return "ready" if ready() else "" if is_running(process.pid, process.mark) else "ended"

    outcome = wait_until(settled, timeout_s, every_s=_POLL_EVERY_S)
    if outcome == "ready":
        return
    _end(settings, name)
    log = _log(settings, name)
    tail = masked(" | ".join(log.read_text(errors="replace").splitlines()[-5:]))[-1000:]
    raise DagsterDidNotStart(
        f"Dagster's {name} {outcome or 'was not ready in time'}. Its log ends: {tail}",
        action=f"Read the last lines of {log}, mend what they name, and run `holdfast up`.",
        process=name,
    )


def _webserver_ready(url: str, headers: Mapping[str, str]) -> bool:
    import httpx  # imported late, because most commands only look whether the webserver's process runs

    try:
        answer = httpx.post(
            f"{url}/graphql",
            json={"query": _QUERY},
            headers=headers,
            timeout=10.0,
            trust_env=False,
            verify=trusted_for(url),
        )
        entries = answer.json()["data"]["workspaceOrError"]["locationEntries"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
    if not entries or any(entry["locationOrLoadError"] is None for entry in entries):
        return False
    for entry in entries:
        loaded = entry["locationOrLoadError"]
        if loaded["__typename"] == "PythonError":
            raise DefinitionsDoNotLoad(
                f"Dagster cannot load {entry['name']}: {masked(loaded['message']).strip()[:1500]}",
                action="Correct the code that the message names, then reload the definitions in Dagster's UI.",
                url=url,
            )
    return True


def _recorded(settings: Settings, name: str) -> LocalProcess | None:
    """The process that the last start wrote to its file; it may have ended. None without a readable file."""
    try:
        return LocalProcess(**json.loads(_file(settings, name).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _file(settings: Settings, name: str) -> Path:
    return settings.paths.dagster / f"{name}.json"


def _log(settings: Settings, name: str) -> Path:
    return settings.paths.logs / f"dagster-{name}.log"
