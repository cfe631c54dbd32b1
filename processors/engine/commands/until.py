"""The command ``until``: a worker that rebuilds a store reads its inputs up to bounds (``reach``), and commits."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.commands.checks import check_running, check_settled, settle
from holdfast.processors.engine.runtime.commands import CommandFailed, CommandRefused, CommandWrong, Until
from holdfast.processors.engine.runtime.owner import Owner
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.runtime.tickets import Ticket, Work

#: Seconds without progress in a partition after which it is checked for records before its bound.
QUIET_S = 0.5
#: Seconds that one check waits for an answer.
LOOK_S = 0.05


class Gap:
    """Finds partitions without records before their bound.

    Commit markers, aborted and compacted records leave gaps of offsets, which a group member never receives.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._clock = cluster.clock
        self._cluster = cluster
        self._reader: ChangelogReplayer | None = None
        self._looks_at: dict[Partition, int] = {}
        self._moved_at: dict[Partition, tuple[int, float]] = {}

    def found(self, waiting: Mapping[Partition, tuple[int, int]]) -> list[Partition]:
        """Those of ``waiting`` (position and bound by partition) without a record from position to bound."""
        now = self._clock.monotonic()
        for place, (position, _) in waiting.items():
            if self._moved_at.get(place, (None, now))[0] != position:
                self._moved_at[place] = position, now
        quiet = {
            place: position for place, (position, _) in waiting.items() if now - self._moved_at[place][1] >= QUIET_S
        }
        if quiet != self._looks_at:
            self._looks_at = quiet
            if quiet:
                self._reader = self._reader or self._cluster.changelog_consumer()
                self._reader.assign(quiet)
        if not quiet or self._reader is None:
            return []
        batches, ends = self._reader.poll(1, LOOK_S)
        firsts: dict[Partition, int] = {}
        for batch in batches:
            firsts.setdefault(batch.partition, batch.offsets[0])
        positions = self._reader.positions(list(quiet))
        found = []
        for place, position in quiet.items():
            bound = waiting[place][1]
            if place in firsts:
                if firsts[place] >= bound:
                    found.append(place)
                else:  # the member receives the record soon; this reader must start again at the position
                    self._moved_at[place] = position, now
                    self._looks_at = {}
            elif max(ends.get(place, 0), positions.get(place, 0)) >= bound:
                found.append(place)
        return found

    def close(self) -> None:
        """Close the consumer, if there is one."""
        if self._reader is not None:
            self._reader.close()


def until(worker: Owner, ticket: Ticket, asked: Until) -> Work:
    """Process the inputs up to bounds, and commit.

    Raises:
        CommandWrong: A partition was already read past its bound.
        CommandRefused: The worker is not a shadow, is paused, or does not read a partition.
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
    gap = Gap(worker.maintenance.cluster)
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
                    tasks[place].positions[place.topic] = bounds[place]
            for task in tasks.values():
                yield from settle(worker, task, ticket)
            if not _left(bounds, tasks):
                break  # else a transaction was aborted; its records are read again
    finally:
        gap.close()
    ticket.done = first
    told: dict[str, dict[str, int]] = {}
    for place in bounds:
        told.setdefault(place.topic, {})[str(place.number)] = tasks[place].committed[place.topic]
    return {"positions": told}


def _waiting(bounds: Mapping[Partition, int], tasks: Mapping[Partition, Task]) -> dict[Partition, tuple[int, int]]:
    """By partition that is before its bound, its position and bound."""
    positions = {place: tasks[place].positions[place.topic] for place in bounds}
    return {place: (positions[place], bound) for place, bound in bounds.items() if positions[place] < bound}


def _left(bounds: Mapping[Partition, int], tasks: Mapping[Partition, Task]) -> int:
    """Offsets left to the bounds, over all partitions."""
    return sum(bound - position for position, bound in _waiting(bounds, tasks).values())
