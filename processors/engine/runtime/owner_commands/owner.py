"""The interface of the worker for owner commands (clear, export, ...): the methods that a command may call.

The package ``commands`` imports this module and never the loop. ``loop.Worker`` and ``maintenance.Maintenance``
implement the port. The application passes a ``CommandTable`` to the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.commit import TaskCommit
from holdfast.processors.engine.runtime.committer import Committer, Outcome
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.owner_commands.commands import Command, Read
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember
from holdfast.processors.engine.runtime.reading.read_bounds import ReadBounds
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.topology import Topology


class Commits(Protocol):
    """The methods with which a running command commits its writes and pauses inputs.

    ``Maintenance`` implements them.
    """

    cluster: Cluster
    #: Whether the running command waits for input. The loop then polls for records before the command's next step.
    waits: bool

    def hold(self) -> None:
        """Pause all inputs until the running command ends."""

    def commit(self, part: TaskCommit) -> Outcome:
        """Commit a command's writes to one task in a separate transaction.

        Returns DONE, or DROPPED if it was aborted.
        """

    def go_to(self, task: Task, positions: Mapping[str, int]) -> None:
        """Seek a task's paused inputs to the offsets ``positions``, which are already committed."""


class Owner(Protocol):
    """The methods of the worker that owner commands use. ``loop.Worker`` implements them.

    Call them on the worker's main thread only.
    """

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
        """The worker's phase, for example RUNNING."""

    @property
    def maintenance(self) -> Commits:
        """The object with which the running command commits its writes and pauses inputs."""

    def commit_all(self, *, due: bool = False) -> bool:
        """Commit all uncommitted work. Returns False if the transaction was aborted, so that its messages are read
        again.

        While the worker is paused, due windows and timers are processed only if ``due`` is True.
        """

    def stop(self) -> None:
        """Ask the worker to stop."""

    def seek(self, tasks: Sequence[Task]) -> None:
        """Seek the inputs of these tasks to the tasks' positions."""

    def flow(self, change: Callable[[GroupMember, list[Partition]], None]) -> None:
        """Call ``change``, which pauses or resumes partitions, with the input partitions of all running tasks."""


@dataclass(frozen=True, slots=True)
class CommandTable:
    """The functions that carry out commands. The module ``commands.table`` fills this table."""

    #: Checks a command and returns the generator that carries it out. Raises CommandWrong or CommandRefused at once.
    work_of: Callable[[Command, Owner, Ticket], Work]
    #: Returns the generator that writes changelogs again from local state, for the stores that ``Start.reseed`` names.
    reseed: Callable[[Owner, Ticket], Work]
    #: Returns the entries that a ``Read`` selects; raises CommandWrong or CommandRefused.
    read: Callable[[Read, Owner], dict[str, Any]]
