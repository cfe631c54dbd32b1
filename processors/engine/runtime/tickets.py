"""Tickets: the phase, progress, result and error of each command that a worker accepted.

WAITING ──its turn──► RUNNING ──► DONE
    └────────────────────┴──────► FAILED     (refused, the task was taken away, or a commit got no answer)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

#: The generator of a command: yields to let the loop run, counts in its ticket, and returns its result.
Work = Generator[None, None, dict[str, Any]]


class TicketPhase(Enum):
    """The phases of a command, as the module draws them."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Ticket:
    """One accepted command; ``done`` and ``total`` count in its own unit: entries, records or tasks."""

    id: str
    verb: str
    phase: TicketPhase = TicketPhase.WAITING
    done: int = 0
    total: int | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None

    def told(self) -> dict[str, Any]:
        """The ticket as JSON-ready data, as the route ``/maintenance`` shows it."""
        return {**asdict(self), "phase": self.phase.value}
