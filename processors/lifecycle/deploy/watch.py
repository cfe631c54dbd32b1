"""Judges the statuses of a version that was just started: whether it progresses, and where its messages go.

Invariants:
    - Judgements are pure: statuses in, verdict out.
    - Dead letters that the former version wrote at such a rate, too, say nothing about the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.processors.engine.serving.status import ProcessorStatus

#: Share of messages in the dead letters at which a version counts as failed.
ASIDE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Counted:
    """Messages that workers processed since their start, and how many of them went to dead letters."""

    processed: int
    aside: int

    @property
    def is_failing(self) -> bool:
        """Whether half or more went to dead letters."""
        return self.aside > 0 and self.aside >= ASIDE_SHARE * self.processed


def counted(statuses: Iterable[ProcessorStatus | None]) -> Counted:
    """The counts of all workers."""
    records = [each.records for each in statuses if each is not None]
    return Counted(*(sum(each.get(name, 0) for each in records) for name in ("processed", "dead_lettered")))


def puts_aside(former: Counted, statuses: Mapping[str, ProcessorStatus], started: Collection[str]) -> Counted | None:
    """The counts of the started workers, if their messages go to dead letters and earlier ones did not; else None."""
    now = counted(status for slot, status in statuses.items() if slot in started)
    return now if now.is_failing and not former.is_failing else None


def committed_of(statuses: Mapping[str, ProcessorStatus]) -> dict[tuple[str, int], int]:
    """The next offset of each input partition, as topic and partition."""
    return {
        (topic, task.partition): at.committed or 0
        for status in statuses.values()
        for task in status.tasks
        for topic, at in task.inputs.items()
    }


def progresses(statuses: Mapping[str, ProcessorStatus], at_first: Mapping[tuple[str, int], int]) -> bool:
    """Whether each input partition has committed more than ``at_first``, or has nothing left."""
    return all(
        at.lag == 0 or (at.committed or 0) > at_first.get((topic, task.partition), 0)
        for status in statuses.values()
        for task in status.tasks
        for topic, at in task.inputs.items()
    )
