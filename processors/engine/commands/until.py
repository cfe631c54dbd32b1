"""The command ``until``: a shadow (a worker that rebuilds a store) reads its inputs up to given offsets, and commits.

The command also closes all windows and fires all timers that are due at these offsets. The processor that later adopts
the store has already sent their results. Open windows would send the results a second time.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.commands.checks import check_running, check_settled, settle_due
from holdfast.processors.engine.runtime.owner_commands.commands import (
    CommandFailed,
    CommandRefused,
    CommandWrong,
    Until,
)
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.reading.empty_ranges import EmptyRanges
from holdfast.processors.engine.runtime.task.task import Task


def until(worker: Owner, ticket: Ticket, asked: Until) -> Work:
    """Process the inputs up to the given offsets, with all due windows and timers, and commit.

    Raises:
        CommandWrong: A partition was already read past the given offset.
        CommandRefused: The worker is not a shadow (which only rebuilds a store), is paused, or does not own one of the
            partitions.
    """
    if not worker.reach.bounded or worker.paused:
        raise CommandRefused(
            "Only a running worker that rebuilds a store reads up to a bound; this worker "
            f"{'is paused' if worker.reach.bounded else 'does not rebuild one'}.",
            action="Resume a paused worker. To stop a processor's reading, pause it instead.",
        )
    check_settled(worker)
    bounds: dict[Partition, int] = {}
    tasks: dict[Partition, Task] = {}
    for topic, offsets in asked.positions.items():
        for number, bound in offsets.items():
            place = Partition(topic, number)
            task = worker.assignment.running(place)
            if task is None:
                raise CommandRefused(
                    f"This worker does not read {topic}[{number}].",
                    action="Name only inputs of the store that it rebuilds.",
                    topic=topic,
                    partition=number,
                )
            if task.positions[topic] > bound:
                raise CommandWrong(
                    f"{topic}[{number}] was read up to offset {task.positions[topic]} already, past {bound}.",
                    action="Remove the worker that rebuilds the store, then start the rebuild again.",
                    topic=topic,
                    partition=number,
                    seen=task.positions[topic],
                    expected=bound,
                )
            bounds[place], tasks[place] = bound, task
    return _until(worker, ticket, bounds, tasks)


def _until(worker: Owner, ticket: Ticket, bounds: Mapping[Partition, int], tasks: Mapping[Partition, Task]) -> Work:
    worker.maintenance.waits = True
    worker.reach.extend(bounds)
    worker.seek(list(dict.fromkeys(tasks.values())))
    worker.flow(lambda member, partitions: member.resume(partitions))
    first = _left(bounds, tasks)
    ticket.total = first
    gap = EmptyRanges(worker.maintenance.cluster)
    try:
        while True:
            while left := _left(bounds, tasks):
                ticket.done = first - left
                yield
                for task in tasks.values():
                    check_running(task, ticket)
                try:
                    empty = gap.found(_waiting(bounds, tasks))
                except KafkaFailed as failure:
                    raise CommandFailed(failure.message, action=failure.action, done=ticket.done) from failure
                for place in empty:
                    tasks[place].passed({place.topic: bounds[place]})
            for task in tasks.values():
                yield from settle_due(worker, task, ticket)
            if not _left(bounds, tasks):
                break  # otherwise a transaction was aborted, and the loop must read its records again
    finally:
        gap.close()
    ticket.done = first
    told: dict[str, dict[str, int]] = {}
    for place in bounds:
        told.setdefault(place.topic, {})[str(place.number)] = tasks[place].committed[place.topic]
    return {"positions": told}


def _waiting(bounds: Mapping[Partition, int], tasks: Mapping[Partition, Task]) -> dict[Partition, tuple[int, int]]:
    """Returns (position, end offset) for each partition that has not reached its end offset in ``bounds``."""
    positions = {place: tasks[place].positions[place.topic] for place in bounds}
    return {place: (positions[place], bound) for place, bound in bounds.items() if positions[place] < bound}


def _left(bounds: Mapping[Partition, int], tasks: Mapping[Partition, Task]) -> int:
    """Returns the total number of offsets between the positions and their end offsets in ``bounds``."""
    return sum(bound - position for position, bound in _waiting(bounds, tasks).values())
