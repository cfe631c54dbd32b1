"""Maps each owner command to the generator that carries it out; the application passes ``COMMANDS`` to the worker."""

from __future__ import annotations

from holdfast.processors.engine.commands import adopt, checks, keys, until
from holdfast.processors.engine.commands.read import read
from holdfast.processors.engine.commands.reseed import reseed
from holdfast.processors.engine.runtime.owner_commands.commands import (
    Adopt,
    Clear,
    Command,
    Count,
    Export,
    Position,
    Selection,
    Until,
)
from holdfast.processors.engine.runtime.owner_commands.owner import CommandTable, Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work


def work_of(command: Command, worker: Owner, ticket: Ticket) -> Work:
    """Check a command, and return the generator that carries it out; raises CommandWrong or CommandRefused."""
    if isinstance(command, Position):
        return keys.position(worker, ticket, checks.moves_of(worker, command.positions))
    if isinstance(command, Until):
        return until.until(worker, ticket, command)
    if isinstance(command, Adopt):
        return adopt.adopt(worker, ticket, command)
    tasks, selection = checks.tasks_of(worker, command.stores, command.partitions), Selection(command)
    checks.check_windows(tasks, command.stores, selection)
    if isinstance(command, Count):
        return keys.count(ticket, tasks, command, selection)
    if isinstance(command, Export):
        return keys.export(worker, ticket, tasks, command, selection)
    assert isinstance(command, Clear)
    _, of_topics = checks.split_by_log(worker.topology, command.stores)
    moves = checks.moves_of(worker, command.positions or {}, tasks, of_topics if selection.everything else ())
    checks.check_writable(worker.topology, of_topics, "clear", tasks, moves)
    return keys.clear(worker, ticket, tasks, command, selection, moves)


COMMANDS = CommandTable(work_of, reseed, read)
