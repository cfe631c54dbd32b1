"""The deployer: the port to the system that runs processors; this module alone chooses the implementation.

To add a deployer, write a class with the methods of ``LocalDeployer`` beside ``supervisord.py``, and return it from
``open_deployer``. No other product code names an implementation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from holdfast.infra.deploy.program_files import STOP_WAIT_S, ProgramSpec, ProgramStatus
from holdfast.infra.paths import Paths


class Deployer(Protocol):
    """Runs programs: a supervisor on one machine, or a cluster."""

    def start(self, timeout_s: float = ...) -> int:
        """Start the deployer itself unless it runs; returns its process id. The deployer outlives the caller."""

    def running(self) -> bool:
        """Whether the deployer itself answers; False when it does not run.

        Raises:
            holdfast.infra.deploy.program_files.SupervisorSilent: It runs, but does not answer. Its programs may run or
                have ended.
        """

    def apply(self, spec: ProgramSpec) -> bool:
        """Register a program; returns whether anything changed. A changed program is stopped, and stays stopped."""

    def differs(self, spec: ProgramSpec) -> bool:
        """Whether the registered program differs from this one, so that ``apply`` would stop it."""

    def start_program(self, name: str) -> None:
        """Start a program unless it has a process; returns at once (``programs`` has its state)."""

    def stop_program(self, name: str) -> None:
        """Stop a program with SIGTERM, and SIGKILL after 30 s; returns when its process has ended."""

    def kill_program(self, name: str) -> None:
        """Stop a program with SIGKILL; returns when its process has ended. Does nothing without a process."""

    def remove(self, name: str) -> None:
        """Stop a program and remove it; its log stays. Does nothing for an unknown program."""

    def remove_all(self, names: Collection[str]) -> None:
        """Remove programs; all of them get the stop signal before the first wait."""

    def programs(self) -> dict[str, ProgramStatus]:
        """Every registered program, by name."""

    def log_tail(self, name: str, lines: int = ...) -> tuple[str, ...]:
        """The last lines of a program's output."""


class LocalDeployer(Deployer, Protocol):
    """A deployer that is a process of this machine."""

    def pid(self) -> int | None:
        """Process id of the deployer; None when it does not run."""

    def stop(self, timeout_s: float = STOP_WAIT_S) -> bool:
        """Stop all programs and the deployer, even if the deployer does not answer; returns whether it ran."""


def open_deployer(paths: Paths) -> LocalDeployer:
    """The deployer of a home folder; this call starts nothing. Several callers may use a deployer at once."""
    from holdfast.infra.deploy.supervisord import Supervisord  # slow to import; the port is needed everywhere

    return Supervisord(paths)
