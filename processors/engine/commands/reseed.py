"""Re-seed: rewrites changelogs from correct local state.

A re-seed is needed after a changelog was lost or recreated. It is also needed if a changelog is enabled for a store
that already has state.

During the re-seed, the task stays in the phase RESTORING and processes no input. Until the changelogs are complete, the
meta record of the local state has the mark ``RESEEDING``. A worker that is started without ``--reseed`` refuses such
state.

Invariants:
    - The meta record is written to the changelog after all data, so that no restore uses an incomplete changelog.
    - The local state must match the group's committed offsets, and is never changed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from functools import partial

import structlog

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.commands.content import Difference, Replay, replayed
from holdfast.processors.engine.runtime.commit import TaskCommit, noted
from holdfast.processors.engine.runtime.committer import Outcome
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.store import Writes

_log = structlog.get_logger("runtime.reseeding")


def reseed(worker: Owner, ticket: Ticket) -> Work:
    """Rewrite the changelogs of all tasks that wait for a re-seed.

    A task starts to run as soon as its own changelogs are complete.
    """
    worker.maintenance.hold()
    yield
    told = {"set": 0, "deleted": 0, "same": 0}
    waiting = worker.assignment.reseeds.waiting
    while waiting:
        task = next(iter(waiting.values())).task
        for store in worker.assignment.reseeds.stores_of(task.name):
            difference = yield from _reseed_store(worker, ticket, task, store)
            for name in told:
                told[name] += getattr(difference, name)
        yield from _commit(worker, task, ticket, {}, last=True)
        worker.assignment.reseeds.done(task.name)
        _log.info("changelogs are complete again", task=task.name, **told)
        yield
    return dict(told)


def _reseed_store(worker: Owner, ticket: Ticket, task: Task, store: str) -> Generator[None, None, Difference]:
    changelog = worker.topology.changelog_of(store)
    assert changelog is not None
    assert task.store is not None
    place = Partition(changelog.name, task.partition)
    end = worker.maintenance.cluster.topics().end_offsets(changelog.name, committed=False)[task.partition]
    with (
        worker.assignment.scratch.opened(task.name, end) as there,
        closing(Replay(worker.maintenance.cluster, place, (0, end), there, store)) as replay,
    ):
        try:
            yield from replayed(ticket, replay, partial(_check_waiting, worker, task, ticket))
        except CommandFailed as failure:
            _check_waiting(worker, task, ticket)
            raise StateIncoherent(
                failure.message, action=failure.action, cause="changelog-truncated", task=task.name, store=store
            ) from failure
        there.end_bulk()
        difference = Difference(partial(there.items, store), partial(task.store.items, store))
        while not difference.done:
            _check_waiting(worker, task, ticket)
            writes = difference.batch()
            if writes.keys:
                yield from _commit(worker, task, ticket, {store: writes}, last=False)
            ticket.done += len(writes.keys)
            yield
    return difference


def _commit(
    worker: Owner, task: Task, ticket: Ticket, writes: Mapping[str, Writes], *, last: bool
) -> Generator[None, None, None]:
    """Commits records to a task's changelogs.

    The ``last`` commit also writes the meta records and the local offsets.
    """
    while True:
        _check_waiting(worker, task, ticket)
        if worker.commit_all():
            part = noted(TaskCommit(task, dict(task.meta.inputs), task.meta.transaction + 1, records_only=not last))
            part.writes = {name: writes.get(name, Writes([], [])) for name in task.states}
            if worker.maintenance.commit(part) is Outcome.DONE:
                return
        yield


def _check_waiting(worker: Owner, task: Task, ticket: Ticket) -> None:
    if task.phase is not TaskPhase.RESTORING or task.name not in worker.assignment.reseeds.waiting:
        raise CommandFailed(
            f"Task {task.name} was revoked from this worker while its changelogs were rewritten.",
            action="Run only the worker that has its state, with `--reseed` again: it continues where this stopped.",
            task=task.name,
            done=ticket.done,
        )
