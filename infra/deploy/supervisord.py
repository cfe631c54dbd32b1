"""A real supervisord, driven over its XML-RPC interface on a private unix socket.

It is the one long-lived parent of processors on one machine: runs, sensors and commands come and go, it stays.

Layout below ``Paths.supervisor`` (mode 0700): ``supervisord.conf``, ``supervisord.log`` (rotated),
``supervisord.pid``, ``supervisor.sock``, ``programs/<name>.ini`` and ``programs/<name>.json`` (mode 0600),
``lock``; ``socket.path`` names the socket's folder when the usual place is too long for a socket's name.

Invariants:
    - One supervisord per home: starting is serialised by a lock, and a second start finds the first.
    - A program never restarts by itself; recovery decides.
    - What is running belongs to a program file; applying the same spec again changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import structlog
from supervisor.xmlrpc import Faults, SupervisorTransport, UnixStreamHTTPConnection

from holdfast.infra.deploy.programs import (
    STOP_WAIT_S,
    ProgramRefused,
    ProgramSpec,
    ProgramState,
    ProgramStatus,
    ProgramUnknown,
    SupervisorUnavailable,
    as_state,
    config_value,
    launch_file,
    program_file,
)
from holdfast.infra.paths import Paths

log = structlog.get_logger(__name__)

#: A unix socket's name has room for 103 bytes on every system we know; supervisord needs no more than the name.
SOCKET_PATH_MAX = 100
#: How long one answer of supervisord may take, seconds.
ANSWER_TIMEOUT_S = 15.0
#: How often a condition is looked at while it is waited for, seconds.
POLL_S = 0.05

_LOG_TAIL_BYTES = 64 * 1024
#: The environment of whoever happens to start supervisord must not decide what programs see.
_NOT_INHERITED = ("HOLDFAST_", "DAGSTER_", "SUPERVISOR_")


class _Connection(UnixStreamHTTPConnection):  # type: ignore[misc]
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_TIMEOUT_S)
        self.sock.connect(self.socketfile)


class _Transport(SupervisorTransport):  # type: ignore[misc]
    def __init__(self, path: Path) -> None:
        super().__init__(serverurl=f"unix://{path}")

        def connect() -> _Connection:
            connection = _Connection("localhost")
            connection.socketfile = str(path)
            return connection

        self._get_connection = connect


class Supervisord:
    """The supervisor of one home folder. Holds no connection: any number of these may be used at once.

    Methods that need it running raise SupervisorUnavailable when it isn't or doesn't answer.

    Args:
        paths: Names below the home folder.
    """

    def __init__(self, paths: Paths) -> None:
        self._folder = paths.supervisor
        self._programs = paths.supervisor / "programs"

    # --- the supervisor itself -----------------------------------------------------------------------------

    def start(self, timeout_s: float = 30.0) -> int:
        """Start supervisord unless it runs already; its process id is returned. It outlives its starter.

        Raises:
            SupervisorUnavailable: It didn't answer within the time; carries what it said.
        """
        with self._lock():
            # One that is there but silent (stopping, or frozen) would be robbed of its socket by a second.
            _wait_until(lambda: self.pid() is not None or self._silent_pid() is None, timeout_s)
            pid = self.pid()
            if pid is not None:
                return pid
            if self._silent_pid() is not None:
                raise self._unavailable(f"supervisord (pid {self._silent_pid()}) runs but doesn't answer")
            self._programs.mkdir(parents=True, exist_ok=True)
            config = self._write_config()
            command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)]
            environment = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
            # supervisord forks itself into the background; this child only reports whether that worked.
            child = subprocess.run(
                command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=timeout_s,
                check=False,
            )
            if child.returncode != 0:
                said = child.stdout.decode(errors="replace").strip()
                raise self._unavailable(f"supervisord ended with status {child.returncode}: {said}")
            _wait_until(lambda: self.pid() is not None, timeout_s)
            pid = self.pid()
            if pid is None:
                raise self._unavailable(f"supervisord was started but didn't answer within {timeout_s:.0f} s")
        log.info("supervisor.started", pid=pid, folder=str(self._folder))
        return pid

    def stop(self, timeout_s: float = STOP_WAIT_S + 15.0) -> None:
        """Stop all programs (SIGTERM, then SIGKILL) and supervisord itself; returns when it is gone.

        Raises:
            SupervisorUnavailable: It was still there after the time.
        """
        with self._lock():
            pid = self.pid()
            if pid is not None:
                self._call("shutdown")
                if not _wait_until(lambda: not process_alive(pid), timeout_s):
                    raise self._unavailable(f"supervisord (pid {pid}) didn't stop within {timeout_s:.0f} s")
                log.info("supervisor.stopped", pid=pid)
            self._drop_private_socket()

    def running(self) -> bool:
        """Whether supervisord answers."""
        return self.pid() is not None

    def pid(self) -> int | None:
        """The process id of supervisord, if it answers."""
        try:
            return int(self._call("getPID"))
        except SupervisorUnavailable:
            return None

    def _silent_pid(self) -> int | None:
        """The process id in supervisord's pid file, if that process is a supervisord."""
        try:
            pid = int((self._folder / "supervisord.pid").read_text())
        except (OSError, ValueError):
            return None
        if not process_alive(pid):
            return None
        with contextlib.suppress(OSError):
            return pid if b"supervisord" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        return pid

    # --- programs ------------------------------------------------------------------------------------------

    def apply(self, spec: ProgramSpec) -> bool:
        """Make the program known as specified; whether that changed anything.

        A program that changed is stopped first and left stopped; nothing is started.

        Raises:
            ProgramInvalid: The spec can't be written in supervisord's configuration.
        """
        launch_path = self._launch_path(spec.name)
        texts = {
            launch_path: launch_file(spec),
            self._program_path(spec.name): program_file(spec, sys.executable, launch_path),
        }
        with self._lock():
            self._programs.mkdir(parents=True, exist_ok=True)
            spec.stdout_path.parent.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                _write_private(path, text)
            changed = self._reread(spec.name)
        if changed:
            log.info("program.applied", program=spec.name, command=list(spec.command))
        return changed

    def start_program(self, name: str) -> None:
        """Start the program unless it has a process; returns at once (``programs`` shows what became of it).

        Raises:
            ProgramUnknown: It was never applied.
            ProgramRefused: Its process could not be made.
        """
        # Between two processes supervisord takes the program for started; that passes by itself.
        _wait_until(lambda: self._state(name) not in ("BACKOFF", "STOPPING"), STOP_WAIT_S + 10.0)
        self._ask(name, "startProcess", name, False, unless=Faults.ALREADY_STARTED)
        log.info("program.started", program=name)

    def stop_program(self, name: str) -> None:
        """Stop the program (SIGTERM, SIGKILL after 30 s); returns when it is gone. Stopping twice is fine.

        Raises:
            ProgramUnknown: It was never applied.
            ProgramRefused: It was still there after all.
        """
        self._ask(name, "stopProcess", name, False, unless=Faults.NOT_RUNNING)
        self._wait_gone(name, STOP_WAIT_S + 10.0)
        log.info("program.stopped", program=name)

    def kill_program(self, name: str) -> None:
        """Kill the program's process at once (SIGKILL); returns when it is gone. Without one, nothing happens.

        Raises:
            ProgramUnknown: It was never applied.
            ProgramRefused: It was still there after all.
        """
        self._ask(name, "signalProcess", name, "KILL", unless=Faults.NOT_RUNNING)
        self._wait_gone(name, 15.0)
        log.info("program.killed", program=name)

    def remove(self, name: str) -> None:
        """Stop the program and forget it. Its log stays. Removing twice is fine."""
        with contextlib.suppress(ProgramUnknown):
            self.stop_program(name)
        with self._lock():
            self._program_path(name).unlink(missing_ok=True)
            self._launch_path(name).unlink(missing_ok=True)
            self._reread(name)

    def programs(self) -> dict[str, ProgramStatus]:
        """Every known program and what became of it, by name."""
        infos: list[dict[str, Any]] = self._call("getAllProcessInfo")
        ended = "" if all(as_state(info["statename"]) == "RUNNING" for info in infos) else self._own_log()
        return {info["name"]: _status(info, ended) for info in infos}

    def log_tail(self, name: str, lines: int = 20) -> tuple[str, ...]:
        """The last lines of the program's output; empty when there are none.

        Raises:
            ProgramUnknown: It was never applied.
        """
        info: dict[str, Any] = self._ask(name, "getProcessInfo", name)
        return tuple(_tail(Path(info["stdout_logfile"])).splitlines()[-lines:])

    # --- inside --------------------------------------------------------------------------------------------

    def _reread(self, name: str) -> bool:
        """Let supervisord read its files again, and swap one program if it changed (never another's)."""
        ((added, changed, removed),) = self._ask(name, "reloadConfig")
        if name in changed or name in removed:
            with contextlib.suppress(ProgramUnknown):
                self._ask(name, "stopProcess", name, False, unless=Faults.NOT_RUNNING)
                self._wait_gone(name, STOP_WAIT_S + 10.0)
            self._ask(name, "removeProcessGroup", name)
        if name in changed or name in added:
            self._ask(name, "addProcessGroup", name, unless=Faults.ALREADY_ADDED)
        return name in (*added, *changed, *removed)

    def _state(self, name: str) -> ProgramState | None:
        status = self.programs().get(name)
        return None if status is None else status.state

    def _wait_gone(self, name: str, timeout_s: float) -> None:
        settled = ("STOPPED", "EXITED", "FATAL", None)
        if not _wait_until(lambda: self._state(name) in settled, timeout_s):
            raise ProgramRefused(
                f"Program {name!r} still has a process after {timeout_s:.0f} s.",
                action="Look for a process in uninterruptible sleep (a hung disk); it ends when the disk answers.",
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
                action=f"Read {self._folder / 'supervisord.log'} and the program's log.",
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
            raise self._unavailable(f"the supervisor doesn't answer {method}: {failed!r}") from failed
        finally:
            transport.close()

    def _unavailable(self, message: str) -> SupervisorUnavailable:
        return SupervisorUnavailable(
            f"In {self._folder}: {message}.",
            action=f"Start the supervisor; if it doesn't stay up, read {self._folder / 'supervisord.log'}.",
            folder=str(self._folder),
        )

    def _program_path(self, name: str) -> Path:
        return self._programs / f"{name}.ini"

    def _launch_path(self, name: str) -> Path:
        return self._programs / f"{name}.json"

    def _own_log(self) -> str:
        return _tail(self._folder / "supervisord.log")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        with open(self._folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write_config(self) -> Path:
        folder = config_value(str(self._folder))
        path = self._folder / "supervisord.conf"
        _write_private(
            path,
            "\n".join(
                [
                    "[unix_http_server]",
                    f"file={config_value(str(self._make_socket_folder()))}",
                    "chmod=0600",
                    "",
                    "[supervisord]",
                    "nodaemon=false",
                    f"directory={folder}",
                    f"logfile={folder}/supervisord.log",
                    "logfile_maxbytes=10MB",
                    "logfile_backups=3",
                    "loglevel=info",
                    f"pidfile={folder}/supervisord.pid",
                    f"childlogdir={folder}",
                    "identifier=holdfast",
                    "",
                    "[rpcinterface:supervisor]",
                    "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
                    "",
                    "[include]",
                    "files=programs/*.ini",
                    "",
                ]
            ),
        )
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
        _write_private(self._folder / "socket.path", private)
        return Path(private) / "supervisor.sock"

    def _drop_private_socket(self) -> None:
        record = self._folder / "socket.path"
        with contextlib.suppress(FileNotFoundError):
            private = Path(record.read_text(encoding="utf-8"))
            if _is_private(private):
                (private / "supervisor.sock").unlink(missing_ok=True)
                private.rmdir()
            record.unlink()


def process_alive(pid: int) -> bool:
    """Whether a process of that id runs; one that ended but was not collected by its parent doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


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
    """Exit status and signal. supervisord tells neither signals nor the status of what ended in its first
    second (it says 0), but it writes both to its log.
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


def _write_private(path: Path, text: str) -> None:
    """Write the file, readable by its owner only, all at once; untouched when it has that text already."""
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, path)


def _is_private(folder: Path) -> bool:
    try:
        facts = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
