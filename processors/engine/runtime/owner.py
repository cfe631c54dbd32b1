"""The port between owner commands and the worker's loop: the operations that a command may use on the state's owner.

The package ``commands`` imports this module and never the loop; ``loop.Worker`` and ``maintenance.Maintenance``
implement the port. The application passes its ``CommandTable`` to the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.commands import Command, Read
from holdfast.processors.engine.runtime.commit import TaskCommit
from holdfast.processors.engine.runtime.committer import Committer, Outcome
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember
from holdfast.processors.engine.runtime.reading.read_bounds import ReadBounds
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.runtime.tickets import Ticket, Work
from holdfast.processors.engine.topology import Topology


class Commits(Protocol):
    """Commits and input control for a running command; ``maintenance.Maintenance`` implements it."""

    cluster: Cluster
    #: Whether the running command waits for input, so that the loop may rest between its steps.
    waits: bool

    def hold(self) -> None:
        """Read no input until the command ends."""

    def commit(self, part: TaskCommit) -> Outcome:
        """Commit a command's writes to one task separately: DONE, or DROPPED when nothing happened."""

    def go_to(self, task: Task, positions: Mapping[str, int]) -> None:
        """Seek a task's paused inputs to these committed offsets."""


class Owner(Protocol):
    """The worker that owns the state, as commands see it; ``loop.Worker`` implements it, on its own thread."""

    topology: Topology
    options: RuntimeOptions
    assignment: Assignment
    committer: Committer
    clock: Clock
    reach: ReadBounds
    member: GroupMember | None
    paused: bool
    started_at: float

    @property
    def phase(self) -> Enum:
        """The worker's ``loop.Phase``."""

    @property
    def maintenance(self) -> Commits:
        """Commits and input control for the running command."""

    def commit_all(self, *, due: bool = False) -> bool:
        """Commit all open work; False when it was dropped and will be read again.

        A paused worker sends ``due`` windows and timers only on request.
        """

    def stop(self) -> None:
        """Ask the worker to finish."""

    def seek(self, tasks: Sequence[Task]) -> None:
        """Read the inputs of tasks from their positions."""

    def flow(self, change: Callable[[GroupMember, list[Partition]], None]) -> None:
        """Pause or resume the inputs of all running tasks."""


@dataclass(frozen=True, slots=True)
class CommandTable:
    """Maps a command to the generator that carries it out; ``commands.table`` fills it."""

    #: Checks a command and returns its work; raises CommandWrong or CommandRefused before the first step.
    work_of: Callable[[Command, Owner, Ticket], Work]
    #: The work that rewrites changelogs from local state, for assigned tasks that ``Start.reseed`` names.
    reseed: Callable[[Owner, Ticket], Work]
    #: Answers a read at once; raises CommandWrong or CommandRefused.
    read: Callable[[Read, Owner], dict[str, Any]]
