"""What the commands do: counting, exporting and clearing keys, and setting positions, task by task and batch by batch.

Each function is the work of one command (``processors.engine.runtime.maintenance``). It refuses before its first step.
The worker's loop runs wherever it yields.

Invariants:
    - Deletes go the way of every write: changelog and offsets in one transaction, then the database.
    - What is exported and cleared is on the disk, under its name, before the first delete is sent.
    - Positions change with the last deletes of their task, or after them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.commands.sweep import Sweep
from holdfast.processors.engine.runtime.commands import (
    Clear,
    CommandFailed,
    CommandRefused,
    CommandWrong,
    Offsets,
    Selected,
    Selection,
)
from holdfast.processors.engine.runtime.commit import TaskCommit
from holdfast.processors.engine.runtime.committer import Outcome
from holdfast.processors.engine.runtime.maintenance import Ticket, Work
from holdfast.processors.engine.runtime.task import Task, TaskPhase
from holdfast.processors.engine.state.exports import ExportFile
from holdfast.processors.engine.state.store import Writes

if TYPE_CHECKING:
    from holdfast.processors.engine.runtime.loop import Worker


# -- what is asked of whom ---------------------------------------------------------------------------------------------


def tasks_of(worker: Worker, stores: Sequence[str], partitions: Collection[int] | None) -> list[Task]:
    """The tasks that have all of these stores, in these partitions; they all run.

    Raises:
        CommandWrong: There is no such store.
        CommandRefused: The worker does not own the partitions, or not yet.
    """
    topology = worker.topology
    known = [spec.name for spec in topology.stores]
    for store in stores:
        if store not in known:
            raise CommandWrong(
                f"Processor {topology.processor} has no store {store!r}.",
                action=f"Name one of: {', '.join(known) or 'none, it keeps no state'}.",
                store=store,
            )
    subtopologies = [sub.name for sub in topology.subtopologies if set(stores) <= set(sub.stores)]
    if not stores or not subtopologies:
        raise CommandWrong(
            f"No task has all of the stores {', '.join(stores) or '(none given)'}.",
            action="Ask for stores that are used together at once, and for others one after the other.",
        )
    check_settled(worker)
    tasks = {task.partition: task for task in worker.assignment.tasks if task.subtopology in subtopologies}
    wanted = sorted(tasks) if partitions is None else sorted(set(partitions))
    missing = [number for number in wanted if number not in tasks]
    if missing:
        raise CommandRefused(
            f"This worker does not own the partitions {missing} of {', '.join(stores)}; it owns {sorted(tasks)}.",
            action="Ask the worker that owns them; `holdfast status` shows which one that is.",
            missing=str(missing),
        )
    return [tasks[number] for number in wanted]


def check_settled(worker: Worker) -> None:
    """Refuse while it is not clear what the worker owns.

    Raises:
        CommandRefused: It is not clear yet.
    """
    waiting = [task.name for task in worker.assignment.tasks if task.phase is not TaskPhase.RUNNING]
    if waiting or worker.assignment.busy or not worker.assignment.joined:
        raise CommandRefused(
            f"The worker is still taking on its partitions{' (' + ', '.join(waiting) + ')' if waiting else ''}.",
            action="Ask again when its phase is running.",
            phase=worker.phase.value,
        )


def check_paused(worker: Worker) -> None:
    """Refuse what would happen under the eyes of running functions.

    Raises:
        CommandRefused: The worker is not paused.
    """
    if not worker.paused:
        raise CommandRefused(
            "Positions can be set, and stores be replaced, while the worker is paused only; it is not.",
            action="Pause it first (or start it with --paused), and resume it afterwards.",
        )


def moves_of(worker: Worker, positions: Offsets, within: Sequence[Task] | None = None) -> dict[str, dict[str, int]]:
    """By task, topic to the next offset to read, checked against what the topics have.

    Raises:
        CommandWrong: An offset is not there, or is of a topic that is not read.
        CommandRefused: The worker does not own a partition, or is not paused.
    """
    if not positions and within is not None:
        return {}
    check_settled(worker)
    check_paused(worker)
    moves: dict[str, dict[str, int]] = {}
    for topic, offsets in positions.items():
        if all(topic not in sub.inputs for sub in worker.topology.subtopologies):
            raise CommandWrong(
                f"Processor {worker.topology.processor} does not read {topic!r}.",
                action=f"Name one of: {', '.join(spec.name for spec in worker.topology.inputs)}.",
                topic=topic,
            )
        topics = worker.maintenance.cluster.topics()
        starts, ends = topics.start_offsets(topic), topics.end_offsets(topic, committed=False)
        for number, offset in offsets.items():
            task = worker.assignment.running(Partition(topic, number))
            if task is None or (within is not None and task not in within):
                raise CommandRefused(
                    f"{topic}[{number}] is not read by a task of this worker that the command is about.",
                    action="Ask the worker that owns it, about the stores that are built from it.",
                    topic=topic,
                    partition=number,
                )
            start, end = starts.get(number, 0), ends.get(number, 0)
            if not start <= offset <= end:
                raise CommandWrong(
                    f"{topic}[{number}] can't be read from offset {offset}: it has {start} to {end}.",
                    action="Choose an offset that is there.",
                    topic=topic,
                    partition=number,
                    seen=offset,
                )
            moves.setdefault(task.name, {})[topic] = offset
    return moves


# -- the commands ------------------------------------------------------------------------------------------------------


def count(ticket: Ticket, tasks: Sequence[Task], asked: Selected, selection: Selection) -> Work:
    """Count what is selected; each batch as of its own moment."""
    yield
    told = _Told(tasks)
    for task in tasks:
        sweep = Sweep(task, asked.stores, selection)
        while not sweep.done:
            check_running(task, ticket)
            sweep.batch()
            ticket.done = told.entries + sweep.entries
            yield
        told.add(sweep)
    return told.result()


def export(worker: Worker, ticket: Ticket, tasks: Sequence[Task], asked: Selected, selection: Selection) -> Work:
    """Write what is selected to a file, as of one moment."""
    worker.maintenance.hold()
    yield
    told = _Told(tasks)
    file = ExportFile(_exports_of(worker), "+".join(asked.stores), worker.clock.time())
    try:
        for task in tasks:
            yield from settle(worker, task, ticket)
            sweep = Sweep(task, asked.stores, selection)
            while not sweep.done:
                check_running(task, ticket)
                for store, entries in sweep.batch().items():
                    file.write(store, task.partition, entries)
                ticket.done = told.entries + sweep.entries
                yield
            told.add(sweep)
        file.finish()
    except OSError as failure:
        raise CommandFailed(
            f"The export can't be written to {file.path}: {failure.strerror}.",
            action="Make room, or give the rights back; nothing was deleted.",
            path=str(file.path),
            done=0,
        ) from failure
    finally:
        file.close()
    return {**told.result(), "path": str(file.path), "sha256": file.sha256}


def clear(  # tidy: allow-wide because these are the parts of one command
    worker: Worker,
    ticket: Ticket,
    tasks: Sequence[Task],
    asked: Clear,
    selection: Selection,
    moves: Mapping[str, Mapping[str, int]],
) -> Work:
    """Delete what is selected, and set positions with the last deletes of each task."""
    worker.maintenance.hold()
    exported: dict[str, Any] = {}
    if asked.export:
        exported = yield from export(worker, ticket, tasks, asked, selection)
        ticket.done, ticket.total = 0, exported["entries"]
    yield
    told = _Told(tasks)
    for task in tasks:
        sweep = Sweep(task, asked.stores, selection)
        while not sweep.done:
            yield from settle(worker, task, ticket)
            found = sweep.batch()
            deletes = {
                store: Writes([key for key, _ in entries], [None] * len(entries)) for store, entries in found.items()
            }
            yield from commit_apart(worker, task, ticket, deletes, moves.get(task.name, {}) if sweep.done else {})
            ticket.done = told.entries + sweep.entries
            yield
        told.add(sweep)
    result = told.result()
    if exported:
        result |= {"export": exported}
    return result


def position(worker: Worker, ticket: Ticket, moves: Mapping[str, Mapping[str, int]]) -> Work:
    """Set positions, one commit for each task."""
    worker.maintenance.hold()
    yield
    ticket.total = len(moves)
    tasks = {task.name: task for task in worker.assignment.tasks}
    for name, inputs in moves.items():
        yield from settle(worker, tasks[name], ticket)
        yield from commit_apart(worker, tasks[name], ticket, {}, inputs)
        ticket.done += 1
        yield
    return {"tasks": len(moves)}


class _Told:
    """What a command comes to, over its tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._partitions = sorted(task.partition for task in tasks)
        self.keys = self.entries = self.bytes = 0

    def add(self, sweep: Sweep) -> None:
        self.keys += sweep.keys
        self.entries += sweep.entries
        self.bytes += sweep.bytes

    def result(self) -> dict[str, Any]:
        return {"keys": self.keys, "entries": self.entries, "bytes": self.bytes, "partitions": self._partitions}


def _exports_of(worker: Worker) -> Path:
    if worker.options.exports is None:
        raise CommandFailed(
            "This worker has no folder for exports.", action="Run it by `python -m holdfast.processors`.", done=0
        )
    return worker.options.exports


# -- commits -----------------------------------------------------------------------------------------------------------


def check_running(task: Task, ticket: Ticket) -> None:
    """See that a task was not taken away meanwhile.

    Raises:
        CommandFailed: It was.
    """
    if task.phase is not TaskPhase.RUNNING:
        raise CommandFailed(
            f"Task {task.name} was taken away from this worker in mid-command.",
            action="Ask its new owner: it goes on where this ended.",
            task=task.name,
            done=ticket.done,
        )


def settle(worker: Worker, task: Task, ticket: Ticket) -> Generator[None, None, None]:
    """Commit what is open, so that a command's commit holds nothing else.

    Raises:
        CommandFailed: The task was taken away.
    """
    check_running(task, ticket)
    while not worker.commit_all():
        yield
        check_running(task, ticket)


def commit_apart(
    worker: Worker,
    task: Task,
    ticket: Ticket,
    writes: Mapping[str, Writes],
    inputs: Mapping[str, int],
) -> Generator[None, None, None]:
    """Commit writes of one task, by store, and other positions; nothing else of it is uncommitted.

    Raises:
        CommandFailed: The task was taken away.
        OwnershipLost, KafkaFailed, StateFailed: See ``Committer.commit_apart``.
    """
    while True:
        part = TaskCommit(task, {**task.committed, **inputs}, task.meta.transaction + 1)
        part.writes = {name: writes.get(name, Writes([], [])) for name in task.states}
        if worker.maintenance.commit(part) is Outcome.DONE:
            break
        yield
        yield from settle(worker, task, ticket)
    for name in writes:
        task.states[name].forget()
    if inputs:
        worker.maintenance.go_to(task, part.inputs)
