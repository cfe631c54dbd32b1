"""Texts about deployments: how a program's process ended, log lines, and lists of partitions."""

from __future__ import annotations

from holdfast.infra.deploy.deployer import Deployer
from holdfast.infra.deploy.program_files import ProgramStatus, ProgramUnknown

#: Number of log lines that an error quotes.
LOG_LINES = 15


def how_it_ended(program: ProgramStatus) -> str:
    """Describes how the last process of a program ended, for example ``exit status 1``."""
    if program.signal is not None:
        return f"killed by {program.signal}"
    if program.exit_status is not None:
        return f"exit status {program.exit_status}"
    return "exit status unknown" if program.since is not None else "never started"


def last_lines(lines: tuple[str, ...]) -> str:
    """Log lines as an indented block that can follow a sentence; an empty text if there are no lines."""
    return "" if not lines else "\nIts last lines:\n  " + "\n  ".join(lines) + "\n"


def listed(pairs: tuple[tuple[str, int], ...], shown: int = 6) -> str:
    """Partitions as text, for example ``orders[0], orders[3] and 12 more``."""
    names = ", ".join(f"{topic}[{partition}]" for topic, partition in pairs[:shown])
    return names if len(pairs) <= shown else f"{names} and {len(pairs) - shown} more"


def log_tail(name: str, deployer: Deployer) -> tuple[str, ...]:
    """The last lines of a program's log; empty for a program that the supervisor does not know."""
    try:
        return deployer.log_tail(name, LOG_LINES)
    except ProgramUnknown:
        return ()
