"""Programs that a supervisor runs: what is asked of them, and what became of them.

Invariants:
    - The environment of a program, which may hold secrets, is written to one file of mode 0600 and nowhere else:
      not in the supervisor's configuration, its log, or a command line.
    - The files of a program are a function of its ProgramSpec: the same spec gives the same bytes.
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

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

ProgramState = Literal["RUNNING", "STARTING", "STOPPED", "STOPPING", "EXITED", "FATAL", "BACKOFF", "UNKNOWN"]

#: States in which a program has a process.
ALIVE: frozenset[ProgramState] = frozenset({"RUNNING", "STARTING", "STOPPING"})

#: How long a program may take to end after SIGTERM before it is killed, seconds.
STOP_WAIT_S = 30

_LAUNCHER = Path(__file__).resolve().parent / "launch.py"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
#: Supervisor's configuration takes what follows such a sequence for a comment, and knows no way to quote it.
_COMMENT = re.compile(r"\s[;#]|[\r\n]")


class SupervisorUnavailable(HoldfastError):
    """The supervisor isn't running, didn't start, or doesn't answer."""


class ProgramInvalid(HoldfastError):
    """A program can't be described to the supervisor as it is."""

    exit_code = EXIT_BAD_CONFIGURATION


class ProgramUnknown(HoldfastError):
    """The supervisor has no program of that name."""


class ProgramRefused(HoldfastError):
    """The supervisor would not do what was asked of a program."""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A program as it is asked for.

    Args:
        name: Letters, digits, ``.``, ``_``, ``-``.
        command: Executable and arguments; never pass secrets here, every user of the machine can read them.
        environment: Variables set on top of the supervisor's own.
        directory: Its working directory.
        stdout_path: Where stdout and stderr go (rotated).
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    stdout_path: Path

    def __repr__(self) -> str:
        """Shows the names of the environment only, never its values."""
        return f"ProgramSpec(name={self.name!r}, command={self.command!r}, environment={sorted(self.environment)})"


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """A program as the supervisor sees it.

    Args:
        exit_status: Of the last process, when it ended by itself; None while there is one, and after a signal.
        signal: The signal that ended the last process (``SIGKILL``), if one did.
        started_at: When the present or last process started.
        since: When the present process started, or the last one ended; None when there was none yet.
    """

    name: str
    state: ProgramState
    pid: int | None
    exit_status: int | None
    since: datetime | None
    signal: str | None = None
    started_at: datetime | None = None

    @property
    def alive(self) -> bool:
        """Whether it has a process."""
        return self.state in ALIVE


def as_state(name: str) -> ProgramState:
    """The state of that name; UNKNOWN for one that isn't known."""
    for state in get_args(ProgramState):
        if state == name:
            found: ProgramState = state
            return found
    return "UNKNOWN"


def launch_file(spec: ProgramSpec) -> str:
    """The text of the file that the launcher reads: command and environment."""
    document = {"command": list(spec.command), "environment": dict(spec.environment)}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def asked_for(programs: Path) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Command and environment (which may hold secrets) of each program that a supervisor was ever asked for and still
    knows, by name; what can't be read is left out.

    Args:
        programs: The folder of its programs' files.
    """
    found = {}
    for path in sorted(programs.glob("*.json")) if programs.is_dir() else ():
        try:
            document = json.loads(path.read_text())
            command = tuple(str(word) for word in document["command"])
            found[path.stem] = (command, {str(name): str(value) for name, value in document["environment"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def program_file(spec: ProgramSpec, python: str, launch_path: Path) -> str:
    """The text of the program's file in the supervisor's configuration.

    It changes whenever anything of the spec does, since it carries a hash of the launch file.

    Raises:
        ProgramInvalid: A name or path can't be written in the supervisor's configuration.
    """
    if not _NAME.match(spec.name):
        raise ProgramInvalid(
            f"A program can't be called {spec.name!r}.",
            action="Use letters, digits, '.', '_' and '-' only, 128 at most.",
            name=spec.name,
        )
    digest = hashlib.sha256(launch_file(spec).encode()).hexdigest()[:16]
    command = " ".join(_shell_word(word) for word in (python, "-I", str(_LAUNCHER), str(launch_path), digest))
    return "\n".join(
        [
            f"[program:{spec.name}]",
            f"command={config_value(command)}",
            f"directory={config_value(str(spec.directory))}",
            "autostart=false",
            "autorestart=false",
            "startsecs=1",
            "startretries=0",
            "stopsignal=TERM",
            f"stopwaitsecs={STOP_WAIT_S}",
            "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile={_log_value(str(spec.stdout_path))}",
            "stdout_logfile_maxbytes=10MB",
            "stdout_logfile_backups=3",
            "",
        ]
    )


def config_value(text: str) -> str:
    """The text as a value of the supervisor's configuration, where ``%`` starts an expansion.

    Raises:
        ProgramInvalid: The text holds what the configuration takes for a comment or a new line.
    """
    if _COMMENT.search(text):
        raise ProgramInvalid(
            f"The supervisor's configuration can't hold {text!r}: a blank followed by ';' or '#', or a line end.",
            action="Use a home folder, project folder and Python whose paths hold no such sequence.",
            text=text,
        )
    return text.replace("%", "%%")


def _log_value(path: str) -> str:
    # supervisord expands this one value twice, so that no number of signs is right in all its versions.
    if "%" in path:
        raise ProgramInvalid(
            f"The supervisor's configuration can't hold the log path {path!r}: it has a '%'.",
            action="Use a home folder whose path holds no '%'.",
            text=path,
        )
    return config_value(path)


def _shell_word(word: str) -> str:
    """Quoted by backslashes: unlike quotes, these also keep the configuration from seeing comments."""
    return re.sub(r"([^A-Za-z0-9_@%+=:,./-])", r"\\\1", word)
