"""The commands ``count``, ``export``, ``clear`` and ``position``. They process one task after the other, in batches.

Each function is a generator that carries out one command. ``owner_commands.maintenance`` runs the generator; the
worker's loop continues at each yield.

Invariants:
    - Deletes are committed like all writes: changelog and offsets in one transaction, then RocksDB.
    - ``clear`` with an export completes the file before it sends the first delete. No input is processed in between, so
      the file contains exactly the deleted entries.
    - A table that is restored from its source topic is emptied in the same commit that moves the topic's position to
      its first offset. Before that commit, the table's rows must match the committed offset.
    - If ``clear`` also sets new positions, they change in the commit of the task's last deletes, or after it.
    - A client can give a ``clear`` a name (the argument ``once``). The last commit of the ``clear`` writes this name
      into the meta records, which keep the names of the last ``COMMANDS_KEPT`` commands. If the client repeats the
      ``clear`` with this name, a task that has already carried it out changes nothing. Keys that were set after the
      first execution are not deleted. A client that does not know the result can therefore repeat the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.processors.engine.commands.checks import (
    Last,
    check_running,
    commit_apart,
    is_carried_out,
    settle,
    settle_due,
    split_by_log,
)
from holdfast.processors.engine.commands.sweep import Sweep, Totals
from holdfast.processors.engine.runtime.owner_commands.commands import Clear, CommandFailed, Selected, Selection
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.exports import ExportFile
from holdfast.processors.engine.state.store import Writes


def count(ticket: Ticket, tasks: Sequence[Task], asked: Selected, selection: Selection) -> Work:
    """Count the selected entries. The inputs are not paused, so entries may change during the count."""
    yield
    totals = Totals()
    for task in tasks:
        check_running(task, ticket)  # raises an error if the task was revoked while another task was counted
        sweep = Sweep(task, asked.stores, selection, totals)
        while not sweep.done:
            check_running(task, ticket)
            sweep.batch()
            ticket.done = totals.entries
            yield
    return _told(totals, tasks)


def export(  # tidy: allow-wide because each argument is a part of one command
    worker: Owner,
    ticket: Ticket,
    tasks: Sequence[Task],
    asked: Selected,
    selection: Selection,
    *,
    due: bool = False,
    once: str = "",
) -> Work:
    """Write the selected entries to a file; the inputs are paused, so that all entries are from the same point in time.

    If ``due`` is True, due windows are closed and due timers fire before the entries are read.
    """
    worker.maintenance.hold()
    yield
    totals = Totals()
    file = ExportFile(_exports_of(worker), "+".join(asked.stores) + _mark(once), worker.clock.time())
    try:
        for task in tasks:
            yield from (settle_due if due else settle)(worker, task, ticket)
            sweep = Sweep(task, asked.stores, selection, totals, with_clocks=True)
            while not sweep.done:
                check_running(task, ticket)
                for store, entries in sweep.batch().items():
                    file.write(store, task.partition, entries)
                ticket.done = totals.entries
                yield
        file.finish()
    except OSError as failure:
        raise CommandFailed(
            f"The export can't be written to {file.path}: {failure.strerror}.",
            action="Free disk space or correct the rights, then repeat the command; nothing was deleted.",
            path=str(file.path),
            done=0,
        ) from failure
    finally:
        file.close()
    return {**_told(totals, tasks), "path": str(file.path), "sha256": file.sha256}


def clear(  # tidy: allow-wide because each argument is a part of one command
    worker: Owner,
    ticket: Ticket,
    tasks: Sequence[Task],
    asked: Clear,
    selection: Selection,
    moves: Mapping[str, Mapping[str, int]],
) -> Work:
    """Delete the selected entries; the last commit of each task also sets the task's new positions (``moves``)."""
    worker.maintenance.hold()
    exported: dict[str, Any] = {}
    before = written_before(worker, asked.once) if asked.export else []
    # Tasks that have already carried out this command are skipped. Their present entries were set after the command,
    # and must not be deleted.
    left = [task for task in tasks if not is_carried_out(task, asked.once)] if asked.export else []
    if left:
        exported = yield from export(worker, ticket, left, asked, selection, once=asked.once)
        ticket.done, ticket.total = 0, exported["entries"]
    yield
    totals = Totals()
    for task in tasks:
        check_running(task, ticket)  # raises an error if the task was revoked while another task was cleared
        if is_carried_out(task, asked.once):
            continue
        own, emptied = split_by_log(worker.topology, asked.stores)
        sweep = Sweep(task, own, selection, totals)
        done = False
        while not done:
            yield from settle(worker, task, ticket)
            found = {} if sweep.done else sweep.batch()
            done = sweep.done
            deletes = {
                store: Writes([key for key, _ in entries], [sweep.rest.get((store, key)) for key, _ in entries])
                for store, entries in found.items()
            }
            inputs: Mapping[str, int] = moves.get(task.name, {}) if done else {}
            if found or done:
                last = Last(asked.once, emptied) if done else Last()
                yield from commit_apart(worker, task, ticket, deletes, inputs, last)
            ticket.done = totals.entries
            yield
    # Read while the inputs are still paused: every later record of a deleted key was written for a later message.
    ends = {
        store: {str(task.partition): task.meta.stores[store].offset for task in tasks if store in task.meta.stores}
        for store in asked.stores
    }
    return {**_told(totals, tasks), **files_of_result(exported, before), "ends": ends}


def written_before(worker: Owner, once: str) -> list[str]:
    """Paths of the export files that earlier attempts of a command left in this worker's folder, oldest first.

    ``once`` is the name that the client gave to the command; the result is empty if the client gave none.
    """
    folder = worker.options.exports
    return [] if folder is None or not once else sorted(str(path) for path in folder.glob(f"*{_mark(once)}.jsonl"))


def files_of_result(exported: Mapping[str, Any], before: Sequence[str]) -> dict[str, Any]:
    """Returns the result's fields ``export`` (the file of this attempt) and ``before`` (files of earlier attempts)."""
    return {**({"export": dict(exported)} if exported else {}), **({"before": list(before)} if before else {})}


def _mark(once: str) -> str:
    """Returns a part of an export file's name: a hash of ``once``, the name that the client gave to the command.

    A repeated command finds the files of its earlier attempts by this part.
    """
    return f"-{sha256(once.encode()).hexdigest()[:8]}" if once else ""


def position(worker: Owner, ticket: Ticket, moves: Mapping[str, Mapping[str, int]]) -> Work:
    """Set new positions, with one commit for each task; ``moves`` has the positions by task name and topic."""
    worker.maintenance.hold()
    # The tasks are collected before the yield, because a task may be revoked during the yield.
    tasks = {task.name: task for task in worker.assignment.tasks}
    yield
    ticket.total = len(moves)
    for name, inputs in moves.items():
        yield from settle(worker, tasks[name], ticket)
        yield from commit_apart(worker, tasks[name], ticket, {}, inputs)
        ticket.done += 1
        yield
    return {"tasks": len(moves)}


def _told(totals: Totals, tasks: Sequence[Task]) -> dict[str, Any]:
    return {**asdict(totals), "partitions": sorted(task.partition for task in tasks)}


def _exports_of(worker: Owner) -> Path:
    if worker.options.exports is None:
        raise CommandFailed(
            "This worker has no folder for exports.", action="Run it with `python -m holdfast.processors`.", done=0
        )
    return worker.options.exports
