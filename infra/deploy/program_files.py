"""Programs of a supervisor: their specification, their state, and the files that describe them.

Invariants:
    - The environment of a program, which may hold secrets, is written to one file of mode 0600. No configuration, log
      or command line holds it.
    - The same ProgramSpec gives the same files, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION

ProgramState = Literal["RUNNING", "STARTING", "STOPPED", "STOPPING", "EXITED", "FATAL", "BACKOFF", "UNKNOWN"]

#: States in which a program has a process.
ALIVE: frozenset[ProgramState] = frozenset({"RUNNING", "STARTING", "STOPPING"})

#: How long a program may take to end after SIGTERM before it is killed, seconds (``stopwaitsecs``).
STOP_WAIT_S = 30

_LAUNCHER = Path(__file__).resolve().parent / "launch.py"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
#: Begins a comment in supervisord's configuration, which has no quoting.
_COMMENT = re.compile(r"\s[;#]|[\r\n]")


class SupervisorUnavailable(HoldfastError):
    """The supervisor does not run, did not start, or does not answer."""


class SupervisorSilent(SupervisorUnavailable):
    """The supervisor's process runs, but does not answer; its programs may still run. Fields: folder, pid."""


class ProgramInvalid(HoldfastError):
    """The supervisor's configuration can't express this program."""

    exit_code = EXIT_BAD_CONFIGURATION


class ProgramUnknown(HoldfastError):
    """The supervisor has no program of this name."""


class ProgramRefused(HoldfastError):
    """The supervisor refused a request about a program."""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A program as specified."""

    #: Letters, digits, ``.``, ``_``, ``-``; 128 characters at most.
    name: str
    #: Never with secrets: every user of the machine can read them.
    command: tuple[str, ...]
    #: Variables added to the supervisor's own.
    environment: Mapping[str, str]
    directory: Path
    #: File for stdout and stderr, rotated at 10 MB.
    stdout_path: Path

    def __repr__(self) -> str:
        """The specification without the values of the environment."""
        return f"ProgramSpec(name={self.name!r}, command={self.command!r}, environment={sorted(self.environment)})"


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """A program as the supervisor reports it."""

    name: str
    state: ProgramState
    pid: int | None
    #: Exit code of the last process; None while a process runs, and after a signal.
    exit_status: int | None
    #: Start of the present process, or end of the last one; None before the first start.
    since: datetime | None
    #: The signal that ended the last process, as ``SIGKILL``.
    signal: str | None = None
    #: Start of the present or last process.
    started_at: datetime | None = None

    @property
    def alive(self) -> bool:
        """Whether the program has a process."""
        return self.state in ALIVE


def as_state(name: str) -> ProgramState:
    """The state with this name; ``UNKNOWN`` for other names."""
    found: ProgramState = name if name in get_args(ProgramState) else "UNKNOWN"  # type: ignore[assignment]
    return found


def launch_file(spec: ProgramSpec) -> str:
    """The content of the launch file: command and environment."""
    document = {"command": list(spec.command), "environment": dict(spec.environment)}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def asked_for(programs: Path) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Command and environment of each program in the folder ``programs``; unreadable files are left out.

    The environment may hold secrets.
    """
    paths = sorted(programs.glob("*.json")) if programs.is_dir() else ()
    read = {path.stem: asked_of(programs, path.stem) for path in paths}
    return {name: each for name, each in read.items() if each is not None}


def asked_of(programs: Path, name: str) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """Command and environment of one program; None where its file is missing or can't be read."""
    try:
        document = json.loads((programs / f"{name}.json").read_text())
        command = tuple(str(word) for word in document["command"])
        return command, {str(variable): str(value) for variable, value in document["environment"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def program_file(spec: ProgramSpec, python: str, launch_path: Path) -> str:
    """The content of the program's file in supervisord's configuration.

    It holds a hash of the launch file, so supervisord notices every change of the specification.

    Raises:
        ProgramInvalid: The configuration can't hold the name or a path.
    """
    if not _NAME.match(spec.name):
        raise ProgramInvalid(
            f"{spec.name!r} is no valid name of a program: expected letters, digits, '.', '_' and '-', 128 at most.",
            action="Rename the processor or the slot.",
            name=spec.name,
        )
    digest = hashlib.sha256(launch_file(spec).encode()).hexdigest()[:16]
    command = " ".join(_shell_word(word) for word in (python, "-I", str(_LAUNCHER), str(launch_path), digest))
    return f"""\
[program:{spec.name}]
command={config_value(command)}
directory={config_value(str(spec.directory))}
autostart=false
autorestart=false
startsecs=1
startretries=0
stopsignal=TERM
stopwaitsecs={STOP_WAIT_S}
killasgroup=true
redirect_stderr=true
stdout_logfile={_log_value(str(spec.stdout_path))}
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=3
"""


def config_value(text: str) -> str:
    """The text as a value in supervisord's configuration, where ``%`` starts an expansion.

    Raises:
        ProgramInvalid: The text contains a comment or a line end.
    """
    if _COMMENT.search(text):
        raise ProgramInvalid(
            f"The supervisor's configuration can't hold {text!r}: a space before ';' or '#', or a line end.",
            action="Move the home folder, the project and its Python to paths without such characters.",
            text=text,
        )
    return text.replace("%", "%%")


def _log_value(path: str) -> str:
    # supervisord expands this value twice in some versions, so no escaping works in all of them.
    if "%" in path:
        raise ProgramInvalid(
            f"The supervisor's configuration can't hold the log path {path!r}: it contains '%'.",
            action="Use a home folder without '%' in its path.",
            text=path,
        )
    return config_value(path)


def _shell_word(word: str) -> str:
    """The word with backslash escapes: quotes would not hide comment characters from the configuration."""
    return re.sub(r"([^A-Za-z0-9_@%+=:,./-])", r"\\\1", word)
