"""Texts about deployments: how programs ended, and which partitions are missing."""

from __future__ import annotations

from holdfast.infra.deploy.deployer import Deployer
from holdfast.infra.deploy.program_files import ProgramStatus, ProgramUnknown

#: Lines of a log that an error has.
LOG_LINES = 15


def how_it_ended(program: ProgramStatus) -> str:
    """How a program's last process ended, in words."""
    if program.signal is not None:
        return f"killed by {program.signal}"
    if program.exit_status is not None:
        return f"exit status {program.exit_status}"
    return "exit status unknown" if program.since is not None else "never started"


def last_lines(lines: tuple[str, ...]) -> str:
    """The last lines of a log, below a sentence; empty without any."""
    return "" if not lines else "\nIts last lines:\n  " + "\n  ".join(lines) + "\n"


def listed(pairs: tuple[tuple[str, int], ...], shown: int = 6) -> str:
    """Partitions (topic, number) as a list that names the first ones."""
    names = ", ".join(f"{topic}[{partition}]" for topic, partition in pairs[:shown])
    return names if len(pairs) <= shown else f"{names} and {len(pairs) - shown} more"


def log_tail(name: str, deployer: Deployer) -> tuple[str, ...]:
    """The last lines of a program's log; empty for a program that the supervisor does not know."""
    try:
        return deployer.log_tail(name, LOG_LINES)
    except ProgramUnknown:
        return ()
