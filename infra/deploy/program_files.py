"""Data classes for the programs of a supervisor (specification and status), and the content of the programs' files.

Invariants:
    - The environment of a program may contain secrets. It is written only to one file with mode 0600, never to the
      supervisor's configuration, a log or a command line.
    - Equal specifications give equal files, byte for byte.
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

#: States in which a program has a running process.
ALIVE: frozenset[ProgramState] = frozenset({"RUNNING", "STARTING", "STOPPING"})

#: Maximum seconds that a program may take to end after SIGTERM before it is killed (``stopwaitsecs``).
STOP_WAIT_S = 30

_LAUNCHER = Path(__file__).resolve().parent / "launch.py"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
#: Matches text that would begin a comment or a new line in supervisord's configuration, which cannot quote text.
_COMMENT = re.compile(r"\s[;#]|[\r\n]")


class SupervisorUnavailable(HoldfastError):
    """The supervisor does not run, did not start, or does not answer."""


class SupervisorSilent(SupervisorUnavailable):
    """The supervisor runs, but does not answer, so the state of its programs is unknown. Fields: folder, pid."""


class ProgramInvalid(HoldfastError):
    """A name or path of the program can't be written to the supervisor's configuration."""

    exit_code = EXIT_BAD_CONFIGURATION


class ProgramUnknown(HoldfastError):
    """The supervisor has no program with this name."""


class ProgramRefused(HoldfastError):
    """The supervisor refused to start or stop a program."""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """The specification of a program that the supervisor runs."""

    #: Letters, digits, ``.``, ``_``, ``-``; at most 128 characters.
    name: str
    #: The command must not contain secrets, because every user of the machine can read command lines.
    command: tuple[str, ...]
    #: Environment variables, in addition to the supervisor's variables.
    environment: Mapping[str, str]
    directory: Path
    #: File for stdout and stderr, rotated at 10 MB.
    stdout_path: Path

    def __repr__(self) -> str:
        """The specification as text, without the values of the environment, which may be secrets."""
        return f"ProgramSpec(name={self.name!r}, command={self.command!r}, environment={sorted(self.environment)})"


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """The status of a program, as the supervisor reports it."""

    name: str
    state: ProgramState
    pid: int | None
    #: Exit code of the last process; None while a process runs, or if a signal ended the last process.
    exit_status: int | None
    #: Start time of the running process. If none runs, end time of the last process; None before the first start.
    since: datetime | None
    #: The signal that ended the last process, for example ``SIGKILL``; None if no signal ended it.
    signal: str | None = None
    #: Start time of the running process. If none runs, start time of the last process.
    started_at: datetime | None = None

    @property
    def alive(self) -> bool:
        """Whether the program has a running process."""
        return self.state in ALIVE


def as_state(name: str) -> ProgramState:
    """Converts a name to a ``ProgramState``; returns ``UNKNOWN`` for an unknown name."""
    found: ProgramState = name if name in get_args(ProgramState) else "UNKNOWN"  # type: ignore[assignment]
    return found


def launch_file(spec: ProgramSpec) -> str:
    """The content of a program's launch file: JSON with command and environment (``launch.py`` reads it)."""
    document = {"command": list(spec.command), "environment": dict(spec.environment)}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def asked_for(programs: Path) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Program name -> (command, environment), from the launch files in the folder ``programs``.

    Unreadable files are left out. An environment may contain secrets.
    """
    paths = sorted(programs.glob("*.json")) if programs.is_dir() else ()
    read = {path.stem: asked_of(programs, path.stem) for path in paths}
    return {name: each for name, each in read.items() if each is not None}


def asked_of(programs: Path, name: str) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """Command and environment that the launch file of one program contains; None if it is missing or unreadable."""
    try:
        document = json.loads((programs / f"{name}.json").read_text())
        command = tuple(str(word) for word in document["command"])
        return command, {str(variable): str(value) for variable, value in document["environment"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def program_file(spec: ProgramSpec, python: str, launch_path: Path) -> str:
    """The content of a program's ``.ini`` file in supervisord's configuration.

    The content includes a hash of the launch file, so that supervisord notices every change of the specification.

    Raises:
        ProgramInvalid: The name or a path has characters that the configuration does not allow.
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
    """The text as a value for supervisord's configuration: ``%`` is doubled, because it starts an expansion.

    Raises:
        ProgramInvalid: The text contains a line end, or a space before ``;`` or ``#``, which starts a comment.
    """
    if _COMMENT.search(text):
        raise ProgramInvalid(
            f"The supervisor's configuration can't hold {text!r}: a space before ';' or '#', or a line end.",
            action="Move the home folder, the project and its Python to paths without such characters.",
            text=text,
        )
    return text.replace("%", "%%")


def _log_value(path: str) -> str:
    # Some versions of supervisord expand ``%`` in the path of a log file twice, so no escape works in all versions.
    if "%" in path:
        raise ProgramInvalid(
            f"The supervisor's configuration can't hold the log path {path!r}: it contains '%'.",
            action="Use a home folder without '%' in its path.",
            text=path,
        )
    return config_value(path)


def _shell_word(word: str) -> str:
    """Escapes a word by backslashes, for a command in supervisord's configuration.

    Quotes would not work, because the configuration finds comment characters even inside quotes.
    """
    return re.sub(r"([^A-Za-z0-9_@%+=:,./-])", r"\\\1", word)
