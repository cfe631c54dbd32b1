"""The checks of owner commands before their first step, and the commits of owner commands.

A command is refused before it changes anything. Reasons are for example an unknown store, a partition that another
worker owns, or a task that is still being restored. Before each commit of a command, the worker commits all its
uncommitted work, so that the command's commit contains only the command's writes.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.dataframe.sinks import staged_of
from holdfast.processors.engine.runtime.commit import TaskCommit, noted
from holdfast.processors.engine.runtime.committer import Outcome
from holdfast.processors.engine.runtime.owner_commands.commands import (
    CommandFailed,
    CommandRefused,
    CommandWrong,
    Offsets,
    Selection,
)
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.runtime.task.task_time import TaskTime
from holdfast.processors.engine.state.store import Writes
from holdfast.processors.engine.topology import Topology


@dataclass(frozen=True, slots=True)
class Last:
    """Extra effects of one commit of a command.

    For ``clear``, this is the last commit for a task; for ``adopt``, the first one.

    ``command`` is the name that the client gave to the command (the argument ``once``). The task stores the name, so
    that it recognises the command if the client sends it again. ``emptied`` has the tables without a changelog whose
    local entries this commit deletes.
    """

    command: str = ""
    emptied: tuple[str, ...] = ()


NOT_LAST = Last()

#: The new positions of tasks: for each task's name, the next offset to read of each input topic.
Moves = Mapping[str, Mapping[str, int]]
NO_MOVES: Moves = MappingProxyType({})


def is_carried_out(task: Task, once: str) -> bool:
    """Whether the task has stored ``once`` as the name of an earlier command; False for an empty name.

    A client gives a command this name, so that the task recognises the command if the client sends it again.
    """
    return bool(once) and once in (task.meta.commands or ())


def split_by_log(topology: Topology, stores: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits stores into two tuples, because tables that are restored from their source topic have no changelog.

    The second tuple has these tables. The first tuple has all other stores.
    """
    of_topics = tuple(name for name in stores if topology.source_log_of(name) is not None)
    return tuple(name for name in stores if name not in of_topics), of_topics


def check_writable(
    topology: Topology, stores: Sequence[str], verb: str, tasks: Sequence[Task] = (), moves: Moves = NO_MOVES
) -> None:
    """Raise CommandWrong if one of the stores is a table that is restored from its source topic.

    Such a table may only be changed by records of the topic, because a restore would undo any other change. But the
    table may be emptied if ``moves`` also sets the topic's position in all ``tasks``, because its rows are then read
    again.
    """
    for log in topology.source_logs:
        moved = bool(tasks) and all(log.topic in moves.get(task.name, {}) for task in tasks)
        if log.store in stores and not moved:
            raise CommandWrong(
                f"Store {log.store} is restored from topic {log.topic}: a {verb} would be gone with the next restore.",
                action=f"Write to {log.topic}: a record sets a row, a record without a value deletes it. Or build all "
                "state again from the topics: `holdfast apply clear PROCESSOR --all --rewind earliest`, or in a "
                "program `clear_state(rewind='earliest')`.",
                store=log.store,
            )


def tasks_of(worker: Owner, stores: Sequence[str], partitions: Collection[int] | None) -> list[Task]:
    """Returns the running tasks that have all of these stores, in these partitions.

    If ``partitions`` is None, all partitions of the worker are used.

    Raises CommandWrong if no task has all of the stores, CommandRefused if the worker does not own the partitions.
    """
    topology = worker.topology
    known = [spec.name for spec in topology.stores]
    for store in stores:
        if store not in known:
            raise CommandWrong(
                f"Processor {topology.processor} has no store {store!r}.",
                action=f"Name one of: {', '.join(known) or 'none, because it keeps no state'}.",
                store=store,
            )
    subtopologies = [sub.name for sub in topology.subtopologies if set(stores) <= set(sub.stores)]
    if not stores or not subtopologies:
        raise CommandWrong(
            f"No task has all of the stores {', '.join(stores) or '(none given)'}.",
            action="Name only stores of the same stream in one command; use one command each for others.",
        )
    check_settled(worker)
    tasks = {task.partition: task for task in worker.assignment.tasks if task.subtopology in subtopologies}
    wanted = sorted(tasks) if partitions is None else sorted(set(partitions))
    missing = [number for number in wanted if number not in tasks]
    if missing:
        raise CommandRefused(
            f"This worker does not own the partitions {missing} of {', '.join(stores)}; it owns {sorted(tasks)}.",
            action="Send the command to the worker that owns them; `holdfast status` shows the owners.",
            missing=str(missing),
        )
    return [tasks[number] for number in wanted]


def check_windows(tasks: Sequence[Task], stores: Sequence[str], selection: Selection) -> None:
    """Raise CommandWrong if windows are selected by time in a store without tumbling, hopping or session windows."""
    if selection.span is None:
        return
    for task in tasks:
        for store in stores:
            windows = None if task.time is None else task.time.windows.get(store)
            if windows is None or windows.spec.kind == "sliding":
                raise CommandWrong(
                    f"Windows of store {store!r} are selected by their times, but it stores "
                    f"{'messages of sliding windows' if windows is not None else 'no windows of event time'}.",
                    action="Leave `window` out, and select keys. Tumbling, hopping and session windows can be selected "
                    "by time.",
                    store=store,
                )


def check_settled(worker: Owner) -> None:
    """Raise CommandRefused while the worker joins its group or restores tasks."""
    waiting = [task.name for task in worker.assignment.tasks if task.phase is not TaskPhase.RUNNING]
    if waiting or worker.assignment.busy or not worker.assignment.freshness.joined:
        raise CommandRefused(
            f"The worker is still opening its partitions{' (' + ', '.join(waiting) + ')' if waiting else ''}.",
            action="Repeat the command when its phase is `running`.",
            phase=worker.phase.value,
        )


def check_paused(worker: Owner) -> None:
    """Raise CommandRefused unless the worker is paused.

    While the worker is paused, it processes no messages, so the command's changes are not mixed with new results.
    """
    if not worker.paused:
        raise CommandRefused(
            "The worker is not paused; positions and whole stores can be changed only while it is.",
            action="Pause it first (or start it with `--paused`), and resume it afterwards.",
        )


def moves_of(
    worker: Owner, positions: Offsets, within: Sequence[Task] | None = None, emptied: Sequence[str] = ()
) -> dict[str, dict[str, int]]:
    """Checks that new positions are offsets that the topics have. Returns the positions by task name and topic.

    Args:
        positions: The next offset to read, by topic and partition.
        within: The tasks that the command selects; None for all tasks.
        emptied: The stores that the same commit empties.

    Raises:
        CommandWrong: A topic is not an input, an offset does not exist, or the rows of a table that is restored from
            the topic would not match the offset.
        CommandRefused: The worker is not paused, or does not own one of the partitions.
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
                    f"No task of this worker that the command selects reads {topic}[{number}].",
                    action="Send the command to the worker that owns it, with the stores that are built from it.",
                    topic=topic,
                    partition=number,
                )
            start, end = starts.get(number, 0), ends.get(number, 0)
            if not start <= offset <= end:
                raise CommandWrong(
                    f"{topic}[{number}] can't be read from offset {offset}: it has {start} to {end}.",
                    action=f"Choose an offset from {start} to {end}.",
                    topic=topic,
                    partition=number,
                    seen=offset,
                )
            _check_of_table(worker.topology, task, (topic, offset), emptied if offset == start else ())
            moves.setdefault(task.name, {})[topic] = offset
    return moves


def _check_of_table(topology: Topology, task: Task, to: tuple[str, int], emptied: Sequence[str]) -> None:
    """Raise CommandWrong if a table is restored from this topic, and its rows would not match the new offset.

    The present rows match only the offset that the task has committed. ``emptied`` has the tables that the same commit
    empties. The caller names them only if the new offset is the topic's first offset, which an empty table matches.
    """
    topic, offset = to
    log = next((each for each in topology.source_logs if each.topic == topic), None)
    if log is None or log.store in emptied or offset == task.committed.get(topic):
        return
    raise CommandWrong(
        f"{topic} can't be read from offset {offset}: table {log.store} is restored from it, and has the rows of "
        "another offset.",
        action="Build all state again from the first records: `--all --rewind earliest`.",
        topic=topic,
        partition=task.partition,
        seen=offset,
    )


def check_running(task: Task, ticket: Ticket) -> None:
    """Raise CommandFailed if the task was revoked from this worker."""
    if task.phase is not TaskPhase.RUNNING:
        raise CommandFailed(
            f"Task {task.name} was revoked from this worker in mid-command.",
            action="Send the command to its new owner: it continues where this stopped.",
            task=task.name,
            done=ticket.done,
        )


def settle(worker: Owner, task: Task, ticket: Ticket, *, due: bool = False) -> Generator[None, None, None]:
    """Commit all uncommitted work of a task, so that the command's next commit contains only the command's writes.

    Raises CommandFailed if the task was revoked. If ``due`` is True, the commit also closes due windows and fires due
    timers.
    """
    check_running(task, ticket)
    while not worker.commit_all(due=due):
        yield
        check_running(task, ticket)


def settle_due(worker: Owner, task: Task, ticket: Ticket) -> Generator[None, None, None]:
    """Commit all uncommitted work of a task, and repeat this until no window or timer is due.

    Afterwards, every worker at the same offsets has sent the same results. Without the repetition, the results could
    depend on the sizes of the worker's commits. Raises CommandFailed if the task was revoked.
    """
    yield from settle(worker, task, ticket, due=True)
    while task.time is not None and task.time.more:
        yield
        yield from settle(worker, task, ticket, due=True)


def commit_apart(
    worker: Owner,
    task: Task,
    ticket: Ticket,
    writes: Mapping[str, Writes],
    inputs: Mapping[str, int],
    last: Last = NOT_LAST,
) -> Generator[None, None, None]:
    """Commit one task with only a command's writes (by store) and new positions (``inputs``).

    The task must have no uncommitted work. ``last`` has the extra effects of this commit. If a position moves back,
    stream time is reset, too, so that the messages are not late when they are read again.
    """
    back = any(offset < task.committed.get(topic, 0) for topic, offset in inputs.items())
    if task.time is not None and back:
        writes = without_clocks(writes, task.time.clock_keys)
    while True:
        part = TaskCommit(task, {**task.committed, **inputs}, task.meta.transaction + 1, command=last.command)
        noted(part, back=back)
        part.emptied = last.emptied
        part.writes = {name: writes.get(name, Writes([], [])) for name in task.states}
        if worker.maintenance.commit(part) is Outcome.DONE:
            break
        yield
        yield from settle(worker, task, ticket)
    for name in (*writes, *last.emptied):
        task.states[name].forget()
    for kept in staged_of(task.outboxes.values()):
        kept.load()
    for each in task.keepers:
        if isinstance(each, TaskTime):
            each.load(anew=back)
        else:
            each.load()
    if inputs:
        worker.maintenance.go_to(task, part.inputs)


def without_clocks(writes: Mapping[str, Writes], clock_keys: Mapping[str, bytes]) -> dict[str, Writes]:
    """Returns ``writes`` with a delete of each store's record of stream time, whose keys are in ``clock_keys``."""
    made = dict(writes)
    for store, key in clock_keys.items():
        before = made.get(store, Writes([], []))
        made[store] = Writes([*before.keys, key], [*before.values, None])
    return made
