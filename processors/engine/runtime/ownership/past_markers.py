"""Moves the positions of tasks past transaction markers and aborted records at the end of an input.

    input     m m m C                        m: messages, C: the commit marker of the producer's transaction
                    ↑ └─ end offset of the partition
                    └─ position after the last message: 1 less than the end offset

If retention or a purge deletes all records, the log begins at the end offset. A position before the marker is then
below the log start. The checks at the task's next start and in Dagster would report lost records, although no record is
lost. Each commit of a task therefore moves its positions past the markers. An idle task makes one extra commit for this
purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.open_work import OpenWork
from holdfast.processors.engine.runtime.ports import GroupMember
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task

#: Seconds without a commit after which an idle task moves its positions past transaction markers.
REST_S = 5.0
#: Seconds between two checks for idle tasks.
LOOK_EVERY_S = 1.0


class PastMarkers:
    """Moves positions past transaction markers, for tasks that have processed all messages of an input."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at = 0.0
        #: For each task: its committed offsets, and the monotonic time at which they last changed.
        self._rests: dict[str, tuple[dict[str, int], float]] = {}

    def move(self, tasks: Sequence[Task], member: GroupMember, *, bounded: bool = False) -> None:
        """Before a commit, moves positions past the transaction markers at the ends of inputs.

        Only tasks that have progressed since their last commit are changed. ``bounded`` is True for a shadow (a worker
        that only rebuilds a store). Then nothing changes, because the positions of a shadow must not pass the offsets
        up to which it may read.
        """
        for task in tasks:
            if not bounded and task.phase is TaskPhase.RUNNING and task.progressed:
                task.passed(dict(_behind(task, member)))

    def rest(self, tasks: Sequence[Task], member: GroupMember, work: OpenWork) -> None:
        """Move the positions of idle tasks past transaction markers, and make a commit due at once.

        A task is idle if its committed offsets have not changed for ``REST_S`` seconds.
        """
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
    """Yields the inputs with no record after the position but with transaction markers, and the offset after these."""
    for topic, position in task.positions.items():
        end = member.without_records(Partition(topic, task.partition), position)
        if end is not None:
            yield topic, end
