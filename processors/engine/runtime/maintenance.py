"""Commands about state and positions, carried out by their owner: a step in each turn of the worker's loop.

Each command has a ticket (``tickets``); the work of each is in ``commands``, which the face hands over as a table.

A command changes state, changelog and offsets in ordinary transactions, fenced as every commit is, one task and one
batch in each. Between two of them the loop polls, so that the worker stays in its group; inputs are not read meanwhile.

Invariants:
    - One command runs at a time, and nothing of a task is uncommitted when a command's commit begins.
    - A command that failed has changed whole batches; asked again, it goes on where they end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import KafkaFailed, OutcomeUnknown
from holdfast.processors.engine.runtime.commands import (
    Command,
    CommandFailed,
    CommandRefused,
    CommandWrong,
    Until,
    plain,
    verb_of,
)
from holdfast.processors.engine.runtime.commit import TaskCommit
from holdfast.processors.engine.runtime.committer import Outcome, OwnershipLost
from holdfast.processors.engine.runtime.owner import CommandTable, Owner
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.runtime.tickets import Ticket, TicketPhase, Work
from holdfast.processors.engine.state.errors import StateFailed

_log = structlog.get_logger("runtime.maintenance")

#: So many commands that ended are remembered, for who asks what became of them.
REMEMBERED = 32


class Maintenance:
    """The commands of one worker; all of it on the worker's thread.

    Args:
        worker: Whose tasks they are about.
        cluster: For facts about the inputs.
        commands: The work of each command.
    """

    def __init__(self, worker: Owner, cluster: Cluster, commands: CommandTable) -> None:
        self._worker = worker
        self._commands = commands
        self.cluster = cluster
        #: Whether inputs are not to be read, paused or not, while a command lasts.
        self.holds = False
        #: Whether the command that is under way waits for input to come.
        self.waits = False
        self._numbers = itertools.count(1)
        self._tickets: list[Ticket] = []
        self._running: tuple[Ticket, Work] | None = None

    @property
    def busy(self) -> bool:
        """Whether a command is under way that wants the next turn at once."""
        return self._running is not None and not self.waits

    def begin(self, command: Command) -> Ticket:
        """Take a command on; its ticket tells what becomes of it.

        Raises:
            CommandWrong: It names what the processor does not have.
            CommandRefused: The worker can't do it now.
        """
        if self._running is not None and isinstance(command, Until) and self._running[0].verb == verb_of(command):
            self.interrupt("another bound took its place")
        if self._running is not None:
            raise CommandRefused(
                f"A {verb_of(command)} was asked for while a {self._running[0].verb} is under way.",
                action="Wait for it to end, and ask again.",
                running=self._running[0].id,
            )
        ticket = self._ticket(verb_of(command))
        work = self._commands.work_of(command, self._worker, ticket)
        _log.info("command", id=ticket.id, verb=ticket.verb, **{f"of_{key}": of for key, of in plain(command).items()})
        self._take(ticket, work)
        return ticket

    def _take(self, ticket: Ticket, work: Work) -> None:
        self._tickets = [*self._tickets[-REMEMBERED + 1 :], ticket]
        self._running = ticket, work

    def _ticket(self, verb: str) -> Ticket:
        # Ids of several lives of a worker differ: who asks for an old one must not get a new one's answer.
        return Ticket(f"{int(self._worker.started_at * 1000):x}-{next(self._numbers)}", verb)

    def _reseed(self) -> None:
        """Tasks were assigned whose changelogs are to be made anew: that is done before all else."""
        ticket = self._ticket("reseed")
        self._take(ticket, self._commands.reseed(self._worker, ticket))

    def hold(self) -> None:
        """Have no input read until the command ends."""
        self.holds = True
        self._worker.flow(lambda member, partitions: member.pause(partitions))

    def commit(self, part: TaskCommit) -> Outcome:
        """See ``Committer.commit_apart``."""
        assert self._worker.member is not None
        return self._worker.committer.commit_apart(part, self._worker.member)

    def go_to(self, task: Task, positions: Mapping[str, int]) -> None:
        """Read a task's inputs, which are paused, from other offsets on, which are committed."""
        task.began, task.positions = dict(positions), dict(positions)
        self._worker.seek([task])
        self._worker.flow(lambda member, partitions: member.pause(partitions))

    def find(self, ticket_id: str) -> Ticket | None:
        """A command that was asked for; None when it is not remembered."""
        return next((ticket for ticket in self._tickets if ticket.id == ticket_id), None)

    def step(self) -> None:
        """Go on with the command that is under way, if there is one.

        Raises:
            OwnershipLost, KafkaFailed, StateFailed: As a commit does; the command failed, and so does the session.
        """
        if self._running is None and self._worker.assignment.reseeds.waiting:
            self._reseed()
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
        except OwnershipLost as lost:
            self._fail(ticket, _lost(ticket, lost), session=False)
            raise
        except (KafkaFailed, StateFailed) as failure:
            self._fail(ticket, _ended(ticket, failure.message), session=False)
            raise
        except Exception as failure:  # ours, and nothing of it is in memory only
            _log.exception("command", id=ticket.id, verb=ticket.verb)
            self._fail(ticket, _ended(ticket, f"{type(failure).__name__}: {failure}"))

    def interrupt(self, why: str = "the worker left its group, or stops") -> None:
        """What is under way fails, as when the worker leaves its group."""
        if self._running is not None:
            ticket, work = self._running
            work.close()
            self._fail(ticket, _ended(ticket, why), session=False)

    def told(self) -> dict[str, Any] | None:
        """What is under way, for status; None when nothing is."""
        if self._running is None:
            return None
        ticket = self._running[0]
        return {"id": ticket.id, "verb": ticket.verb, "done": ticket.done, "total": ticket.total}

    def all_told(self) -> list[dict[str, Any]]:
        """The last commands, oldest first."""
        return [ticket.told() for ticket in self._tickets]

    def _fail(self, ticket: Ticket, failure: HoldfastError, *, session: bool = True) -> None:
        ticket.error = failure.as_dict()
        self._end(ticket, TicketPhase.FAILED, session=session)

    def _end(self, ticket: Ticket, phase: TicketPhase, *, session: bool = True) -> None:
        """A command has ended; in a session that goes on, what was held flows again."""
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
            f"A commit of {ticket.verb} got no answer: whether its last batch is done is not known.",
            action="Ask again when the worker runs: what is done is not done twice.",
            done=ticket.done,
        )
    return _ended(ticket, "the group or another producer took the worker's place")


def _ended(ticket: Ticket, why: str) -> CommandFailed:
    return CommandFailed(
        f"{ticket.verb.capitalize()} ended before its end: {why}.",
        action="Ask again, of the worker that has the partitions then: it goes on where this ended.",
        done=ticket.done,
    )
