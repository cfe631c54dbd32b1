"""Runs owner commands (for example clear or export), one step in each turn of the worker's main loop.

An owner command is a request that only the owner of a task can carry out. Each command has a ticket with its progress.
The package ``commands`` has a generator function for each command, and the application passes a table of these
functions to the worker.

A command changes state, changelog and offsets in ordinary fenced transactions. Each transaction has one batch of one
task. The loop polls between two transactions, so that the worker stays in its group. During a command that exports or
changes state, the inputs are paused.

Invariants:
    - At most one command runs at a time, and a task has no uncommitted work when a command's commit begins.
    - The batches that a failed command has committed stay committed. If the command is repeated, it continues after
      them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import KafkaFailed, OutcomeUnknown
from holdfast.processors.engine.runtime.commit import TaskCommit
from holdfast.processors.engine.runtime.committer import Outcome, OwnershipLost
from holdfast.processors.engine.runtime.owner_commands.commands import (
    Command,
    CommandFailed,
    CommandRefused,
    CommandWrong,
    Read,
    Until,
    plain,
    verb_of,
)
from holdfast.processors.engine.runtime.owner_commands.owner import CommandTable, Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, TicketPhase, Work
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.runtime.reading.fresh_ends import FreshEnds
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.errors import StateFailed

_log = structlog.get_logger("runtime.maintenance")

#: How many commands the worker remembers, so that clients can read the result of a command after its end.
REMEMBERED = 32


class Maintenance:
    """Accepts and runs owner commands: requests, such as ``clear``, that only the owner of a task can carry out.

    Call its methods on the worker's main thread only.
    """

    def __init__(self, worker: Owner, cluster: Cluster, commands: CommandTable) -> None:
        self._worker = worker
        self._commands = commands
        self.cluster = cluster
        #: Requests the end offsets of inputs, to compute the lag. The consumer of a paused worker fetches nothing, so
        #: its own end offsets are out of date.
        self.ends = FreshEnds(cluster, "a paused worker does not know its lag")
        #: Whether the running command has paused the inputs.
        self.holds = False
        #: Whether the running command waits for input. The loop then polls for records before the command's next step.
        self.waits = False
        #: A command that the worker itself starts as soon as no other command runs. If this command fails, the worker
        #: stops.
        self.errand: Callable[[Owner, Ticket], Work] | None = None
        self._numbers = itertools.count(1)
        self._tickets: list[Ticket] = []
        self._running: tuple[Ticket, Work] | None = None

    @property
    def busy(self) -> bool:
        """Whether a running command can do its next step now. The loop must then not wait for records."""
        return self._running is not None and not self.waits

    def begin(self, command: Command) -> Ticket:
        """Accept a command and return its ticket, which will contain the result.

        Raises CommandWrong or CommandRefused.
        """
        if self._running is not None and isinstance(command, Until) and self._running[0].verb == verb_of(command):
            self.interrupt("a new bound replaced it")
        if self._running is not None:
            raise CommandRefused(
                f"The worker can't begin a {verb_of(command)}: a {self._running[0].verb} is running.",
                action="Wait until it ends, then repeat the command.",
                running=self._running[0].id,
            )
        ticket = self._ticket(verb_of(command))
        work = self._commands.work_of(command, self._worker, ticket)
        _log.info("command", id=ticket.id, verb=ticket.verb, **{f"of_{key}": of for key, of in plain(command).items()})
        self._take(ticket, work)
        return ticket

    def read(self, asked: Read) -> dict[str, Any]:
        """Returns the entries that a ``read`` command selects; raises CommandWrong or CommandRefused."""
        return self._commands.read(asked, self._worker)

    def _take(self, ticket: Ticket, work: Work) -> None:
        self._tickets = [*self._tickets[-REMEMBERED + 1 :], ticket]
        self._running = ticket, work

    def _ticket(self, verb: str) -> Ticket:
        # The worker's start time makes ids unique. A client that asks for a command of an earlier process must get no
        # answer about a later command.
        return Ticket(f"{int(self._worker.started_at * 1000):x}-{next(self._numbers)}", verb)

    def hold(self) -> None:
        """Pause all inputs until the running command ends."""
        self.holds = True
        self._worker.flow(lambda member, partitions: member.pause(partitions))

    def commit(self, part: TaskCommit) -> Outcome:
        """Commit a command's writes to one task in a separate transaction.

        Returns DONE, or DROPPED if it was aborted.
        """
        assert self._worker.member is not None
        return self._worker.committer.commit_apart(part, self._worker.member)

    def go_to(self, task: Task, positions: Mapping[str, int]) -> None:
        """Seek a task's inputs to the offsets ``positions``, which must already be committed.

        The inputs stay paused.
        """
        task.moved_to(positions)
        self._worker.seek([task])
        self._worker.flow(lambda member, partitions: member.pause(partitions))

    def find(self, ticket_id: str) -> Ticket | None:
        """Returns the ticket (the record of a command) with this id; None if the id is unknown or too old."""
        return next((ticket for ticket in self._tickets if ticket.id == ticket_id), None)

    def step(self) -> None:
        """Run one step of the running command, if a command runs.

        Raises if a commit fails; the worker then leaves its group. Also raises if the worker's own command (``errand``)
        fails; the worker then stops.
        """
        if self._running is None and self._worker.assignment.reseeds.waiting:
            ticket = self._ticket("reseed")
            self._take(ticket, self._commands.reseed(self._worker, ticket))
        if self._running is None and self.errand is not None:
            ticket = self._ticket("errand")
            self._take(ticket, self.errand(self._worker, ticket))
        if self._running is None:
            return
        ticket, work = self._running
        if ticket.phase is TicketPhase.WAITING:
            ticket.phase = TicketPhase.RUNNING
        try:
            next(work)
        except StopIteration as end:
            ticket.result = end.value
            self._end(ticket, TicketPhase.DONE)
        except (CommandWrong, CommandRefused, CommandFailed) as failure:
            self._fail(ticket, failure)
            if self.errand is not None:
                raise
        except OwnershipLost as lost:
            self._fail(ticket, _lost(ticket, lost), session=False)
            raise
        except (KafkaFailed, StateFailed) as failure:
            self._fail(ticket, _ended(ticket, failure.message), session=False)
            raise
        except Exception as failure:  # The command's code has a bug. The batches before the error stay committed.
            _log.exception("command", id=ticket.id, verb=ticket.verb)
            self._fail(ticket, _ended(ticket, f"{type(failure).__name__}: {failure}"))
            if self.errand is not None:
                raise

    def interrupt(self, why: str = "the worker left its group, or stops") -> None:
        """End the running command as FAILED with the reason ``why``; does nothing if no command runs."""
        if self._running is not None:
            ticket, work = self._running
            work.close()
            self._fail(ticket, _ended(ticket, why), session=False)

    def told(self) -> dict[str, Any] | None:
        """Returns id, verb and progress of the running command, for the status page; None if no command runs."""
        if self._running is None:
            return None
        ticket = self._running[0]
        return {"id": ticket.id, "verb": ticket.verb, "done": ticket.done, "total": ticket.total}

    def all_told(self) -> list[dict[str, Any]]:
        """Returns the tickets of the last commands as data for JSON, oldest first."""
        return [ticket.told() for ticket in self._tickets]

    def _fail(self, ticket: Ticket, failure: HoldfastError, *, session: bool = True) -> None:
        ticket.error = failure.as_dict()
        self._end(ticket, TicketPhase.FAILED, session=session)

    def _end(self, ticket: Ticket, phase: TicketPhase, *, session: bool = True) -> None:
        """End the running command.

        ``session`` is True if the worker stays in its group; then its inputs are resumed.
        """
        self._running = None
        ticket.phase = phase
        if self.holds and session and not self._worker.paused:
            self._worker.flow(lambda member, partitions: member.resume(partitions))
        self.holds = self.waits = False
        failed = {} if ticket.error is None else {"error": ticket.error["message"]}
        _log.info("command ended", id=ticket.id, verb=ticket.verb, phase=phase.value, done=ticket.done, **failed)


def _lost(ticket: Ticket, lost: OwnershipLost) -> CommandFailed:
    if isinstance(lost.__cause__, OutcomeUnknown):
        return CommandFailed(
            f"A commit of {ticket.verb} got no answer; the outcome of its last batch is unknown.",
            action="Repeat the command when the worker runs: completed work is not done twice.",
            done=ticket.done,
        )
    return _ended(ticket, "the group or another producer took the worker's place")


def _ended(ticket: Ticket, why: str) -> CommandFailed:
    return CommandFailed(
        f"{ticket.verb.capitalize()} stopped before it was complete: {why}.",
        action="Send the command again to the worker that owns the partitions then: it continues where this stopped.",
        done=ticket.done,
    )
