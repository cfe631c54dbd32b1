"""Positions move past markers and aborted records at the end of an input: no record is missed there later.

    input     m m m C                        C: the marker of the producer's transaction, m: messages
                    ↑ └─ the end
                    └─ behind the last message: 1 offset before the end

A position before the marker would be below the log's first offset once retention or a purge has emptied the log: the
coherence guard and Dagster's check would report missing records although there were none. Each commit of a task moves
its positions past the markers. A task without new messages makes one commit for this purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.open_work import OpenWork
from holdfast.processors.engine.runtime.ports import GroupMember
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task

#: A task whose position has not changed for this time, seconds, commits the step past the markers.
REST_S = 5.0
#: Seconds between two looks.
LOOK_EVERY_S = 1.0


class PastMarkers:
    """Moves positions of tasks that have read all messages of an input."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at = 0.0
        #: By task, its committed offsets, and since when they are unchanged (monotonic seconds).
        self._rests: dict[str, tuple[dict[str, int], float]] = {}

    def move(self, tasks: Sequence[Task], member: GroupMember, *, bounded: bool = False) -> None:
        """Move the positions of tasks without open work; a worker with bounds keeps its positions below them."""
        for task in tasks:
            if not bounded and task.phase is TaskPhase.RUNNING and task.progressed:
                task.passed(dict(_behind(task, member)))

    def rest(self, tasks: Sequence[Task], member: GroupMember, work: OpenWork) -> None:
        """Move the positions of idle tasks, and commit them soon."""
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at, former = now, self._rests
        self._rests = {}
        for task in tasks:
            if task.phase is not TaskPhase.RUNNING or task.progressed:
                continue
            committed, since = former.get(task.name, ({}, now))
            since = since if committed == task.committed else now
            self._rests[task.name] = dict(task.committed), since
            if now - since >= REST_S and (behind := dict(_behind(task, member))):
                task.passed(behind)
                work.commit_in(0.0, now)


def _behind(task: Task, member: GroupMember) -> Iterator[tuple[str, int]]:
    """By input of a task, the offset after the markers at its position."""
    for topic, position in task.positions.items():
        end = member.without_records(Partition(topic, task.partition), position)
        if end is not None:
            yield topic, end
