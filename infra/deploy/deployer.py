"""The interface of deployers, which start and stop the workers of processors; supervisord implements the interface.

To add a deployer, write a class with the methods of ``LocalDeployer`` next to ``supervisord.py``, and return it from
``open_deployer``. No other product code names an implementation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from holdfast.infra.deploy.program_files import STOP_WAIT_S, ProgramSpec, ProgramStatus
from holdfast.infra.paths import Paths


class Deployer(Protocol):
    """A service that runs programs (workers), for example a supervisor on one machine, or a cluster."""

    def start(self, timeout_s: float = ...) -> int:
        """Start the deployer if it does not run yet; returns its process id. The deployer outlives the caller."""

    def running(self) -> bool:
        """Whether the deployer runs and answers; False if it does not run.

        Raises:
            holdfast.infra.deploy.program_files.SupervisorSilent: The deployer runs, but does not answer, so the state
                of its programs is unknown.
        """

    def apply(self, spec: ProgramSpec) -> bool:
        """Register a program, or change its registration; returns whether the registration changed.

        If the registration of a running program changes, the program is stopped, and is not started again.
        """

    def differs(self, spec: ProgramSpec) -> bool:
        """Whether the program is registered with a specification other than ``spec``; ``apply`` would then stop it."""

    def start_program(self, name: str) -> None:
        """Start a program if it does not run yet, without waiting for the start; ``programs`` reports its state."""

    def stop_program(self, name: str) -> None:
        """Stop a program by SIGTERM, and by SIGKILL after 30 s; returns when the program's process has ended."""

    def kill_program(self, name: str) -> None:
        """Stop a program by SIGKILL; returns when its process has ended. Does nothing if the program does not run."""

    def remove(self, name: str) -> None:
        """Stop a program and remove its registration; the log file is kept. Ignores an unknown program."""

    def remove_all(self, names: Collection[str]) -> None:
        """Remove several programs. All programs get the stop signal first, so that they end in parallel."""

    def programs(self) -> dict[str, ProgramStatus]:
        """Program name -> status, for every registered program."""

    def log_tail(self, name: str, lines: int = ...) -> tuple[str, ...]:
        """The last ``lines`` lines of the output of a program."""


class LocalDeployer(Deployer, Protocol):
    """A deployer that runs as a process on this machine."""

    def pid(self) -> int | None:
        """Process id of the deployer; None if it does not run or does not answer."""

    def stop(self, timeout_s: float = STOP_WAIT_S) -> bool:
        """Stop all programs and the deployer, even without an answer; returns whether the deployer was running."""


def open_deployer(paths: Paths) -> LocalDeployer:
    """The deployer of a home folder. This call starts nothing; several processes may use the deployer at once."""
    from holdfast.infra.deploy.supervisord import Supervisord  # imported late, because it is slow to import

    return Supervisord(paths)
