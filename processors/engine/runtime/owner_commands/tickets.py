"""Tickets of owner commands (clear, export, ...): the phase, progress, result and error of each accepted command.

A command is first WAITING. With its first step, it is RUNNING, and then DONE. It is FAILED if it was refused, if its
partition was revoked, or if a commit got no answer.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

#: The generator that carries out a command. It yields after each step, so that the loop can poll, and returns the
#: command's result.
Work = Generator[None, None, dict[str, Any]]


class TicketPhase(Enum):
    """The phases of a command; the module's docstring shows the transitions."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Ticket:
    """The record of one accepted command.

    ``done`` and ``total`` are numbers of entries, records or tasks, depending on the command.
    """

    id: str
    verb: str
    phase: TicketPhase = TicketPhase.WAITING
    done: int = 0
    total: int | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None

    def told(self) -> dict[str, Any]:
        """Returns the ticket as data for JSON, for the HTTP route ``/maintenance``."""
        return {**asdict(self), "phase": self.phase.value}
