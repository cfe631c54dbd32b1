"""Checks undo files in a course (a simulated sequence of commands and faults).

Each deleted entry must be in a complete file, with its last value.

The check stops a clear before each batch of deletes, when user functions can no longer change the entries. It reads the
entries from the worker's own database, and the files from the disk.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from holdfast.processors.engine.commands import keys, sweep
from holdfast.processors.engine.runtime.owner_commands.commands import Clear
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.exports import entry_of
from holdfast.processors.engine.state.store import Writes
from tests.simulation.operation_world import OperationWorld
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP

#: The point (a place where a process may be killed) that a worker passes between the last line of the undo file and the
#: first delete.
DELETES = "clear:deletes"
#: The number of entries in a batch of deletes. It is small, so that a clear (deletion of keys) has several batches.
BATCH = 2


@contextmanager
def undo_files_checked(world: OperationWorld) -> Iterator[None]:
    """While the block runs, each clear that writes an undo file is checked."""
    clear, commit = keys.clear, keys.commit_apart
    asked: dict[str, Clear] = {}

    def clears(worker: Owner, ticket: Ticket, tasks: Sequence[Task], which: Clear, *rest: Any) -> Work:
        asked[ticket.id] = which
        return clear(worker, ticket, tasks, which, *rest)

    def commits(
        worker: Owner, task: Task, ticket: Ticket, writes: Mapping[str, Writes], *rest: Any
    ) -> Generator[None, None, None]:
        if ticket.id in asked and asked[ticket.id].export:
            world.current().point(DELETES)
            check_deletes(world, task, writes)
        yield from commit(worker, task, ticket, writes, *rest)

    with ExitStack() as parts:
        parts.enter_context(patch.object(keys, "clear", clears))
        parts.enter_context(patch.object(keys, "commit_apart", commits))
        parts.enter_context(patch.object(sweep, "ENTRIES_MAX", BATCH))
        yield


def check_deletes(world: OperationWorld, task: Task, writes: Mapping[str, Writes]) -> None:
    """Record an error if an entry that is about to be deleted is in no undo file.

    The error is raised at the next check of the course (sequence of commands and faults).
    """
    files = _written(world)
    for store, each in writes.items():
        for key in each.keys:
            assert task.store is not None
            stored = task.store.get(store_prefix(store) + key)
            if stored is not None and (store, task.partition, key, stored) not in files:
                there = [value for *place, value in files if place == [store, task.partition, key]]
                said = f"{store}[{task.partition}] loses {key!r} = {stored!r}; the files have {there or 'nothing'}"
                world.broken = world.broken or InvariantBroken("undo file", said)


def _written(world: OperationWorld) -> set[tuple[str, int, bytes, bytes]]:
    """The entries of all complete undo files: store, partition, changelog key and stored value."""
    folder = world.paths.exports(GROUP)
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    entries = [entry_of(line, number) for number, line in enumerate(lines, 1)]
    return {(each.store, each.partition, each.key, each.stored) for each in entries}
