"""The status of a processor's subtopologies. A subtopology is a set of input topics that share stores.

The status has the running tasks of each subtopology, and the lag of each input. A processor with ``group_by`` has
several subtopologies. A single lag would not show in which subtopology the messages wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.processors.engine.serving.status import ProcessorStatus, ScheduleStatus, schedules_together


@dataclass(frozen=True, slots=True)
class PartStatus:
    """The status of one subtopology over all workers: its tasks, its running tasks, and the lag of each input.

    The lag of an input is None while a task that reads the input is not fetching, for example during a restore.
    ``awaited`` has inputs without new messages. A task that reads in time order waits for such an input, and holds back
    the messages of its other inputs. ``partitions`` has the partition numbers of the tasks, sorted. ``schedules`` has
    the status of the processor's schedules (functions that run at set times).
    """

    subtopology: str
    tasks: int
    running: int
    lags: Mapping[str, int | None]
    awaited: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    schedules: Mapping[str, ScheduleStatus] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """The sum of the lags of all inputs of the subtopology, in records; None if the lag of one input is unknown."""
        return _sum(list(self.lags.values()))


def parts_of(statuses: Sequence[ProcessorStatus]) -> tuple[PartStatus, ...]:
    """Combines the statuses of one processor's workers to one status for each subtopology, sorted by name."""
    tasks = [task for status in statuses for task in status.tasks]
    found = []
    for name in sorted({task.subtopology for task in tasks}):
        own = [task for task in tasks if task.subtopology == name]
        topics = sorted({topic for task in own for topic in task.inputs})
        lags = {topic: _sum([task.inputs[topic].lag for task in own if topic in task.inputs]) for topic in topics}
        awaited = tuple(sorted({topic for task in own for topic in task.awaited}))
        running = sum(task.phase == "running" for task in own)
        schedules = schedules_together([each for task in own for each in task.timers.values()])
        partitions = tuple(sorted({task.partition for task in own}))
        found.append(PartStatus(name, len(own), running, lags, awaited, partitions, schedules))
    return tuple(found)


def _sum(lags: Sequence[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None
