"""The command ``adopt``: makes a store equal to another changelog, byte for byte.

The other changelog is replayed into a scratch RocksDB. Then the store and the scratch RocksDB are read in parallel, in
the order of keys. Only differences are written to the store, in batches.

Invariants:
    - Nothing is changed before the other changelog is replayed completely, from its first record to its end.
    - Before the first change, due windows are closed and due timers fire. Otherwise their results would be lost with
      the old content.
    - Repeating the same command changes nothing.
    - If the command also exports the content before the change, the file is complete before the first change, and no
      input is processed in between. A client gives the command a name (the argument ``once``). The commit of a task's
      first change also stores this name. If the client sends the command again with this name, no second export is
      made, because the store may be partly changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import decode_value
from holdfast.processors.engine.commands.checks import (
    NOT_LAST,
    Last,
    check_paused,
    check_running,
    check_writable,
    commit_apart,
    is_carried_out,
    moves_of,
    settle,
    settle_due,
    tasks_of,
)
from holdfast.processors.engine.commands.content import Difference, Replay, bounds_of, replayed
from holdfast.processors.engine.commands.keys import export, files_of_result, written_before
from holdfast.processors.engine.commands.put_back import put_back
from holdfast.processors.engine.runtime.owner_commands.commands import (
    Adopt,
    CommandFailed,
    CommandWrong,
    Selected,
    Selection,
)
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_store import TaskStore


def adopt(worker: Owner, ticket: Ticket, asked: Adopt) -> Work:
    """Make a store equal to another changelog; the last commit of each task also sets the task's new input positions.

    Raises:
        CommandWrong: A store, topic or offset does not exist, or the changelog is incomplete.
        CommandRefused: The worker is not paused, or does not own one of the partitions.
    """
    check_paused(worker)
    tasks = tasks_of(worker, (asked.store,), asked.upto)
    check_writable(worker.topology, (asked.store,), "change")
    own = worker.topology.changelog_of(asked.store)
    if own is not None and own.name == asked.changelog:
        raise CommandWrong(
            f"{asked.changelog} is the changelog of store {asked.store} itself; expected another changelog.",
            action="Name the changelog to copy the content from.",
            topic=asked.changelog,
        )
    moves = moves_of(worker, asked.positions or {}, within=tasks)
    if asked.keys is not None and not asked.export:
        raise CommandWrong("`keys` are the keys of an export, which is not asked for.", action="Add `export`: true.")
    bounds = bounds_of(worker.maintenance.cluster, asked.changelog, asked.upto)
    ticket.total = sum(end - start for start, end in bounds.values())
    return _adopt(worker, ticket, asked, {task: bounds[task.partition] for task in tasks}, moves)


def _adopt(
    worker: Owner,
    ticket: Ticket,
    asked: Adopt,
    tasks: Mapping[Task, tuple[int, int]],
    moves: Mapping[str, Mapping[str, int]],
) -> Work:
    worker.maintenance.hold()
    yield
    told = {"set": 0, "deleted": 0, "same": 0}
    reached: dict[str, Mapping[str, int]] = {}
    exported: dict[str, Any] = {}
    before = written_before(worker, asked.once) if asked.export else []
    left = [task for task in tasks if not is_carried_out(task, asked.once)] if asked.export else []
    if left:
        selected = Selected(store=asked.store, keys=asked.keys, all=asked.keys is None)
        exported = yield from export(worker, ticket, left, selected, Selection(selected), due=True, once=asked.once)
    for task, bounds in tasks.items():
        place = Partition(asked.changelog, task.partition)
        with (
            worker.assignment.scratch.opened(task.name, bounds[1] - bounds[0]) as store,
            closing(Replay(worker.maintenance.cluster, place, bounds, store, asked.store)) as replay,
        ):
            yield from replayed(ticket, replay, partial(check_running, task, ticket))
            if replay.last > asked.upto[task.partition]:
                raise _goes_on(place, asked.upto[task.partition], replay.last)
            store.end_bulk()
            assert task.store is not None
            yield from settle(worker, task, ticket)
            if not asked.keep:
                _meet(task, asked.store, store)
            yield from settle_due(worker, task, ticket)
            if asked.keep:
                yield from settle(worker, task, ticket)
                differences = yield from put_back(task, asked.store, store)
            else:
                held, wanted = partial(task.store.items, asked.store), partial(store.items, asked.store)
                differences = [Difference(held, wanted)]
            begun = NOT_LAST if is_carried_out(task, asked.once) else Last(asked.once)
            for difference in differences:
                while not difference.done:
                    yield from settle(worker, task, ticket)
                    writes = difference.batch()
                    done = difference.done and difference is differences[-1]
                    inputs: Mapping[str, int] = moves.get(task.name, {}) if done else {}
                    if writes.keys or inputs:
                        yield from commit_apart(worker, task, ticket, {asked.store: writes}, inputs, begun)
                        begun = NOT_LAST
                    yield
        for name in ("set", "deleted", "same"):
            told[name] += sum(getattr(difference, name) for difference in differences)
        reached[str(task.partition)] = dict(replay.inputs)
    return {**told, "inputs": reached, **files_of_result(exported, before)}


def _meet(task: Task, name: str, store: TaskStore) -> None:
    """Advances a task's stream time to the stream time of ``store``, which has the content to adopt.

    Windows of the adopted content that are due at this stream time are then due in the task, too.
    """
    key = None if task.time is None else task.time.clock_keys.get(name)
    stored = None if key is None else store.get(store_prefix(name) + key)
    if task.time is not None and stored is not None:
        task.time.stand_at(decode_value(stored)["time"])


def _goes_on(place: Partition, upto: int, last: int) -> CommandFailed:
    return CommandFailed(
        f"{place.topic}[{place.number}] has records up to {last}; expected its end at {upto}. It has a writer.",
        action="Stop its writer and repeat the command with the new end; nothing was changed in this partition.",
        topic=place.topic,
        seen=last,
        expected=upto,
        done=0,
    )
