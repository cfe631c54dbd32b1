"""What a command may ask of the worker that owns the state: the port between ``commands`` and the worker's loop.

``commands`` import this and never the loop; ``loop.Worker`` and ``maintenance.Maintenance`` implement it. The face
(``application``) gives the worker its ``CommandTable``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.assignment import Assignment
from holdfast.processors.engine.runtime.bounds import Reach
from holdfast.processors.engine.runtime.commands import Command
from holdfast.processors.engine.runtime.commit import TaskCommit
from holdfast.processors.engine.runtime.committer import Committer, Outcome
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.runtime.tickets import Ticket, Work
from holdfast.processors.engine.topology import Topology


class Commits(Protocol):
    """What a running command does between two turns of the loop; ``maintenance.Maintenance``."""

    cluster: Cluster
    #: Whether the running command waits for input, so that the loop may rest between its steps.
    waits: bool

    def hold(self) -> None:
        """Read no input until the command ends."""
        ...

    def commit(self, part: TaskCommit) -> Outcome:
        """Commit writes of one task by themselves; ``Committer.commit_apart``."""
        ...

    def go_to(self, task: Task, positions: Mapping[str, int]) -> None:
        """Read a task's paused inputs from these committed offsets."""
        ...


class Owner(Protocol):
    """The worker that owns the state, as commands see it; ``loop.Worker``. All of it on the worker's thread."""

    topology: Topology
    options: RuntimeOptions
    assignment: Assignment
    committer: Committer
    clock: Clock
    reach: Reach
    member: GroupMember | None
    paused: bool
    started_at: float

    @property
    def phase(self) -> Enum:
        """Where the worker is; ``loop.Phase``."""
        ...

    @property
    def maintenance(self) -> Commits:
        """Commits of the running command."""
        ...

    def commit_all(self) -> bool:
        """Commit all open work; False when it was dropped and will be read again."""
        ...

    def seek(self, tasks: Sequence[Task]) -> None:
        """Read the inputs of tasks from their positions."""
        ...

    def flow(self, change: Callable[[GroupMember, list[Partition]], None]) -> None:
        """Pause or resume the inputs of all running tasks."""
        ...


@dataclass(frozen=True, slots=True)
class CommandTable:
    """Commands and the work that each one is; ``commands.table.COMMANDS``."""

    #: The checked work of a command. It raises CommandWrong or CommandRefused before its first step.
    work_of: Callable[[Command, Owner, Ticket], Work]
    #: The work that makes changelogs anew from local state, for tasks that were assigned with that wish.
    reseed: Callable[[Owner, Ticket], Work]
