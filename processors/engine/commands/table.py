"""Which work a command is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.processors.engine.commands import adopt as adoption
from holdfast.processors.engine.commands import keys as clearing
from holdfast.processors.engine.commands import until as reach
from holdfast.processors.engine.runtime.commands import Adopt, Clear, Command, Count, Export, Position, Selection, Until
from holdfast.processors.engine.runtime.maintenance import Ticket, Work

if TYPE_CHECKING:
    from holdfast.processors.engine.runtime.loop import Worker


def work_of(command: Command, worker: Worker, ticket: Ticket) -> Work:
    """The work of a command, checked.

    Raises:
        CommandWrong: It names what the processor does not have.
        CommandRefused: The worker can't do it now.
    """
    if isinstance(command, Position):
        return clearing.position(worker, ticket, clearing.moves_of(worker, command.positions))
    if isinstance(command, Until):
        return reach.until(worker, ticket, command)
    if isinstance(command, Adopt):
        return adoption.adopt(worker, ticket, command)
    tasks, selection = clearing.tasks_of(worker, command.stores, command.partitions), Selection(command)
    if isinstance(command, Count):
        return clearing.count(ticket, tasks, command, selection)
    if isinstance(command, Export):
        return clearing.export(worker, ticket, tasks, command, selection)
    assert isinstance(command, Clear)
    moves = clearing.moves_of(worker, command.positions or {}, within=tasks)
    return clearing.clear(worker, ticket, tasks, command, selection, moves)
