"""The deployer for one machine: supervisord, controlled by XML-RPC over a private unix socket.

supervisord is the parent process of all workers. It outlives Dagster runs, sensors and commands.

Files in the folder ``Paths.supervisor`` (mode 0700): ``supervisord.conf``, ``supervisord.log`` (rotated),
``supervisord.pid``, ``supervisor.sock``, ``programs/<name>.ini`` and ``programs/<name>.json`` (mode 0600), ``lock``. If
the path of ``supervisor.sock`` is too long for a unix socket, ``socket.path`` names another folder for the socket.

Invariants:
    - Each home folder has at most one supervisord. A lock serialises starts, and a second start finds the supervisord
      of the first start.
    - supervisord never restarts a program by itself; only recovery does.
    - Every running program has a program file. Applying an equal specification again changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import sys
import tempfile
import xmlrpc.client  # nosec B411: used only for answers of our own supervisord, over a private socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from holdfast.infra.deploy.program_files import (
    STOP_WAIT_S,
    ProgramRefused,
    ProgramSpec,
    ProgramState,
    ProgramStatus,
    ProgramUnknown,
    SupervisorSilent,
    SupervisorUnavailable,
    as_state,
    config_value,
    launch_file,
    program_file,
)
from holdfast.infra.log import get_logger
from holdfast.infra.paths import Paths
from holdfast.infra.system.files import locked, write_private
from holdfast.infra.system.privacy import process_umask
from holdfast.infra.system.process import completed, end_process, start_mark
from holdfast.infra.waiting import wait_until

log = get_logger(__name__)

#: Maximum length, in bytes, of a unix socket's path. Longer paths are replaced; all systems allow at least 103 bytes.
SOCKET_PATH_MAX = 100
#: Timeout of a request to supervisord, seconds.
ANSWER_TIMEOUT_S = 15.0
#: Maximum seconds for which a live supervisord has no socket, while it starts or ends.
BETWEEN_S = 2.0
#: Maximum seconds to wait for the end of a supervisord that does not answer: first without signal, then after SIGTERM.
SILENT_STOP_S = 5.0
#: Maximum seconds that the start of supervisord may take.
START_WITHIN_S = 30.0
#: Maximum seconds until the process of a killed program has ended.
KILLED_WITHIN_S = 15.0
#: Seconds in addition to ``STOP_WAIT_S`` that supervisord itself may need to stop a program.
STOP_SLACK_S = 10.0

_CONFIG = """\
[unix_http_server]
file={socket}
chmod=0600

[supervisord]
nodaemon=false
directory={folder}
logfile={folder}/supervisord.log
logfile_maxbytes=10MB
logfile_backups=3
loglevel=info
umask={umask:03o}
pidfile={folder}/supervisord.pid
childlogdir={folder}
identifier=holdfast

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[include]
files=programs/*.ini
"""

_LOG_TAIL_BYTES = 64 * 1024
#: Prefixes of variables that programs do not inherit from the process that starts supervisord.
_NOT_INHERITED = ("HOLDFAST_", "DAGSTER_", "SUPERVISOR_")


class Faults:
    """Codes of supervisord's answers that refuse a request; ``supervisor.xmlrpc.Faults`` has all of them."""

    SHUTDOWN_STATE, BAD_NAME, ALREADY_STARTED, NOT_RUNNING, ALREADY_ADDED = 6, 10, 60, 70, 90


class _Transport(xmlrpc.client.Transport):
    """XML-RPC over supervisord's unix socket.

    ``supervisor.xmlrpc`` has such a class, too. But to import that module takes 40 ms of CPU, because it loads
    supervisord's server.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> HTTPConnection:
        """A connection to the socket; ``host`` is only the name in the request."""
        connection = self._connection[1]
        if connection is None:
            connection = HTTPConnection("localhost", timeout=ANSWER_TIMEOUT_S)
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(ANSWER_TIMEOUT_S)
            connection.sock.connect(str(self._path))
            self._connection = host, connection
        return connection

    def request(self, host: Any, handler: str, request_body: Any, verbose: bool = False) -> Any:
        """Send a request once. The base class would repeat a failed request, which supervisord may have executed."""
        return self.single_request(host, handler, request_body, verbose)


class Supervisord:
    """The supervisord of one home folder; implements ``LocalDeployer``. Each call opens a new connection.

    Methods raise SupervisorUnavailable if supervisord does not run or does not start. They raise SupervisorSilent if it
    runs but does not answer within ``ANSWER_TIMEOUT_S``. Methods with a program's name raise ProgramUnknown if the
    program was never applied, and ProgramRefused if supervisord can't start or end its process. ``apply`` raises
    ProgramInvalid if the specification can't be written to supervisord's configuration.
    """

    def __init__(self, paths: Paths) -> None:
        self._folder = paths.supervisor
        self._programs = paths.supervisor / "programs"

    # --- the supervisor itself -----------------------------------------------------------------------------

    def start(self, timeout_s: float = START_WITHIN_S) -> int:
        with self._lock():
            # Wait while a supervisord runs but does not answer, because a second supervisord would take its socket.
            wait_until(lambda: self.pid() is not None or self._silent_pid() is None, timeout_s)
            pid = self.pid()
            if pid is not None:
                return pid
            if (silent := self._silent_pid()) is not None:
                raise self._silent(silent, f"it runs, but does not answer for {timeout_s:.0f} s")
            self._programs.mkdir(parents=True, exist_ok=True)
            config = self._write_config()
            command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)]
            environment = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
            # supervisord forks into the background, so the exit code of this child process shows only whether the fork
            # worked.
            child = completed(command, timeout_s, folder=self._folder, environment=environment)
            if child.returncode != 0:
                output = (child.stdout + child.stderr).strip()
                raise self._unavailable(f"supervisord ended with exit code {child.returncode}: {output}")
            wait_until(lambda: self.pid() is not None, timeout_s)
            pid = self.pid()
            if pid is None:
                raise self._unavailable(f"supervisord was started, but did not answer within {timeout_s:.0f} s")
        log.info("supervisor.started", pid=pid, folder=str(self._folder))
        return pid

    def stop(self, timeout_s: float = STOP_WAIT_S + 15.0) -> bool:
        with self._lock():
            pid = self.pid()
            silent = self._silent_pid() if pid is None else None
            if pid is not None:
                self._call("shutdown")
                if not wait_until(lambda: start_mark(pid) is None, timeout_s):
                    raise self._silent(pid, f"it did not stop within {timeout_s:.0f} s")
                log.info("supervisor.stopped", pid=pid)
            elif silent is not None and (mark := start_mark(silent)) is not None:
                # supervisord may be stopping already, so wait before it is ended. On Linux, its programs end with it.
                if not wait_until(lambda: start_mark(silent) is None, SILENT_STOP_S):
                    end_process(silent, mark, timeout_s=SILENT_STOP_S)
                log.warning("supervisor.killed", pid=silent)
            self._drop_private_socket()
        return pid is not None or silent is not None

    def running(self) -> bool:
        silent: list[SupervisorSilent] = []

        def known() -> str:
            try:
                self._call("getPID")
            except SupervisorSilent as hangs:
                silent.append(hangs)
                return ""
            except SupervisorUnavailable:
                return "down"
            return "up"

        # A supervisord that is starting or ending has no socket for a moment, so wait for an answer.
        answer = wait_until(known, BETWEEN_S)
        if not answer:
            raise silent[-1]
        return answer == "up"

    def pid(self) -> int | None:
        try:
            return int(self._call("getPID"))
        except SupervisorUnavailable:
            return None

    def _silent_pid(self) -> int | None:
        """The process id in the pid file, if this process is the supervisord of this folder; otherwise None."""
        try:
            pid = int((self._folder / "supervisord.pid").read_text())
        except (OSError, ValueError):
            return None
        if start_mark(pid) is None:
            return None
        ours = os.fsencode(self._folder / "supervisord.conf")
        with contextlib.suppress(OSError):
            return pid if ours in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") else None
        return pid

    # --- programs ------------------------------------------------------------------------------------------

    def differs(self, spec: ProgramSpec) -> bool:
        for path, text in self._texts(spec).items():
            try:
                if path.read_text() != text:
                    return True
            except OSError:
                continue
        return False

    def _texts(self, spec: ProgramSpec) -> dict[Path, str]:
        """Path -> text, for the two files that describe a program: its launch file and its ``.ini`` file."""
        path = self._launch_path(spec.name)
        return {path: launch_file(spec), self._program_path(spec.name): program_file(spec, sys.executable, path)}

    def apply(self, spec: ProgramSpec) -> bool:
        texts = self._texts(spec)
        with self._lock():
            self._programs.mkdir(parents=True, exist_ok=True)
            spec.stdout_path.parent.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                write_private(path, text)
            changed = self._reread(spec.name)
        if changed:
            log.info("program.applied", program=spec.name, command=list(spec.command))
        return changed

    def start_program(self, name: str) -> None:
        # Wait while the program has no stable state. In that time, supervisord would answer "already started", but
        # start nothing.
        wait_until(lambda: self._state(name) not in ("BACKOFF", "STOPPING"), STOP_WAIT_S + STOP_SLACK_S)
        self._ask(name, "startProcess", name, False, unless=Faults.ALREADY_STARTED)
        log.info("program.started", program=name)

    def stop_program(self, name: str) -> None:
        self._ask(name, "stopProcess", name, False, unless=Faults.NOT_RUNNING)
        self._wait_gone(name, STOP_WAIT_S + STOP_SLACK_S)
        log.info("program.stopped", program=name)

    def kill_program(self, name: str) -> None:
        self._ask(name, "signalProcess", name, "KILL", unless=Faults.NOT_RUNNING)
        self._wait_gone(name, KILLED_WITHIN_S)
        log.info("program.killed", program=name)

    def remove(self, name: str) -> None:
        with contextlib.suppress(ProgramUnknown):
            self.stop_program(name)
        with self._lock():
            self._program_path(name).unlink(missing_ok=True)
            self._launch_path(name).unlink(missing_ok=True)
            self._reread(name)

    def remove_all(self, names: Collection[str]) -> None:
        for name in names:
            with contextlib.suppress(ProgramUnknown):
                self._ask(name, "stopProcess", name, False, unless=Faults.NOT_RUNNING)
        for name in names:
            self.remove(name)

    def programs(self) -> dict[str, ProgramStatus]:
        infos: list[dict[str, Any]] = self._call("getAllProcessInfo")
        all_run = all(as_state(info["statename"]) == "RUNNING" for info in infos)
        own_log = "" if all_run else _tail(self._folder / "supervisord.log")
        return {info["name"]: _status(info, own_log) for info in infos}

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        info: dict[str, Any] = self._ask(name, "getProcessInfo", name)
        return tuple(_tail(Path(info["stdout_logfile"])).splitlines()[-lines:])

    # --- private methods -----------------------------------------------------------------------------------

    def _reread(self, name: str) -> bool:
        """Make supervisord read its files again; returns whether this program was added, changed or removed.

        A changed program is stopped, and its registration is replaced.
        """
        ((added, changed, removed),) = self._ask(name, "reloadConfig")
        if name in changed or name in removed:
            with contextlib.suppress(ProgramUnknown):
                self._ask(name, "stopProcess", name, False, unless=Faults.NOT_RUNNING)
                self._wait_gone(name, STOP_WAIT_S + STOP_SLACK_S)
            self._ask(name, "removeProcessGroup", name)
        if name in changed or name in added:
            self._ask(name, "addProcessGroup", name, unless=Faults.ALREADY_ADDED)
        return name in (*added, *changed, *removed)

    def _state(self, name: str) -> ProgramState | None:
        status = self.programs().get(name)
        return None if status is None else status.state

    def _wait_gone(self, name: str, timeout_s: float) -> None:
        settled = ("STOPPED", "EXITED", "FATAL", None)
        if not wait_until(lambda: self._state(name) in settled, timeout_s):
            raise ProgramRefused(
                f"Program {name!r} still has a process after {timeout_s:.0f} s.",
                action="Look for a process in uninterruptible sleep (`ps -o state,pid,cmd`): a hanging disk holds it.",
                program=name,
            )

    def _ask(self, program: str, method: str, *arguments: Any, unless: int | None = None) -> Any:
        try:
            return self._call(method, *arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == unless:
                return None
            if fault.faultCode == Faults.BAD_NAME:
                raise ProgramUnknown(
                    f"The supervisor has no program {program!r}.",
                    action="Deploy the processor first.",
                    program=program,
                ) from fault
            raise ProgramRefused(
                f"The supervisor refused {method} of program {program!r}: {fault.faultString}.",
                action=f"Read `{self._folder / 'supervisord.log'}` and the program's log.",
                program=program,
                fault=fault.faultString,
            ) from fault

    def _call(self, method: str, *arguments: Any) -> Any:
        transport = _Transport(self._socket())
        try:
            proxy = xmlrpc.client.ServerProxy("http://localhost", transport=transport, allow_none=True)
            return getattr(proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == Faults.SHUTDOWN_STATE:
                raise self._unavailable("the supervisor is stopping") from fault
            raise
        except (OSError, HTTPException, xmlrpc.client.ProtocolError) as failed:
            if (silent := self._silent_pid()) is not None:
                raise self._silent(silent, f"it does not answer {method}: {failed!r}") from failed
            raise self._unavailable(f"the supervisor does not answer {method}: {failed!r}") from failed
        finally:
            transport.close()

    def _unavailable(self, message: str) -> SupervisorUnavailable:
        return SupervisorUnavailable(
            f"In {self._folder}: {message}.",
            action=f"Start it with `holdfast up`. If it ends again, read `{self._folder / 'supervisord.log'}`.",
            folder=str(self._folder),
        )

    def _silent(self, pid: int, message: str) -> SupervisorSilent:
        return SupervisorSilent(
            f"The supervisor in {self._folder} (pid {pid}) hangs: {message}. Its programs may work.",
            action="End it and start another one: `holdfast down`, then `holdfast up`. Recovery starts the processors.",
            folder=str(self._folder),
            pid=pid,
        )

    def _program_path(self, name: str) -> Path:
        return self._programs / f"{name}.ini"

    def _launch_path(self, name: str) -> Path:
        return self._programs / f"{name}.json"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        with locked(self._folder / "lock"):
            yield

    def _write_config(self) -> Path:
        folder = config_value(str(self._folder))
        path, socket = self._folder / "supervisord.conf", config_value(str(self._make_socket_folder()))
        # The umask is in the configuration, because supervisord sets its own umask, which its programs inherit.
        write_private(path, _CONFIG.format(folder=folder, socket=socket, umask=process_umask()))
        return path

    # --- the socket's place --------------------------------------------------------------------------------

    def _socket(self) -> Path:
        with contextlib.suppress(FileNotFoundError):
            recorded = Path((self._folder / "socket.path").read_text(encoding="utf-8"))
            if _is_private(recorded):
                return recorded / "supervisor.sock"
        return self._folder / "supervisor.sock"

    def _make_socket_folder(self) -> Path:
        usual = self._folder / "supervisor.sock"
        if len(os.fsencode(usual)) <= SOCKET_PATH_MAX:
            return usual
        self._drop_private_socket()
        private = tempfile.mkdtemp(prefix="holdfast-")
        write_private(self._folder / "socket.path", private)
        return Path(private) / "supervisor.sock"

    def _drop_private_socket(self) -> None:
        record = self._folder / "socket.path"
        with contextlib.suppress(FileNotFoundError):
            private = Path(record.read_text(encoding="utf-8"))
            if _is_private(private):
                (private / "supervisor.sock").unlink(missing_ok=True)
                private.rmdir()
            record.unlink()


def _status(info: dict[str, Any], own_log: str) -> ProgramStatus:
    state = as_state(info["statename"])
    alive = info["pid"] != 0
    started_at, stopped_at = (
        datetime.fromtimestamp(info[moment], UTC) if info[moment] else None for moment in ("start", "stop")
    )
    exit_status, signal = (None, None) if alive or not info["stop"] else _how_it_ended(info, own_log)
    return ProgramStatus(
        name=info["name"],
        state=state,
        pid=info["pid"] or None,
        exit_status=exit_status,
        since=started_at if alive else stopped_at,
        signal=signal,
        started_at=started_at,
    )


def _how_it_ended(info: dict[str, Any], own_log: str) -> tuple[int | None, str | None]:
    """Exit code and signal with which a program's last process ended, read from supervisord's log.

    The log is needed because supervisord's answers contain no signals, and report exit code 0 for every process that
    ended within its first second.
    """
    pattern = rf"(?:exited|stopped): {re.escape(info['name'])} \((?:exit status (\d+)|terminated by (\w+))"
    ends = re.findall(pattern, own_log)
    if ends:
        status, signal = ends[-1]
        return (int(status), None) if status else (None, signal)
    exit_status = int(info["exitstatus"])
    return (None, None) if exit_status < 0 or info["statename"] in ("FATAL", "BACKOFF") else (exit_status, None)


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _is_private(folder: Path) -> bool:
    try:
        facts = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
