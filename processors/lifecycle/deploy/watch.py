"""Judges a version that was just started: does it process input, and do too many messages become dead letters?

Invariants:
    - The functions are pure: they get statuses and return a verdict.
    - Dead letters do not count as a failure of the new version if the previous version also sent half or more of its
      messages to dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.processors.engine.serving.status import ProcessorStatus

#: A version counts as failed if at least this fraction of its messages went to dead letters.
ASIDE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts since the workers' start: ``processed`` messages, and the dead letters (``aside``) among them."""

    processed: int
    aside: int

    @property
    def is_failing(self) -> bool:
        """Whether half or more of the messages went to dead letters."""
        return self.aside > 0 and self.aside >= ASIDE_SHARE * self.processed


def counted(statuses: Iterable[ProcessorStatus | None]) -> Counted:
    """The numbers of messages and dead letters, summed over these workers."""
    records = [each.records for each in statuses if each is not None]
    return Counted(*(sum(each.get(name, 0) for each in records) for name in ("processed", "dead_lettered")))


def puts_aside(former: Counted, statuses: Mapping[str, ProcessorStatus], started: Collection[str]) -> Counted | None:
    """The counts of the workers that were just started, if half or more of their messages went to dead letters.

    None if fewer messages did. Also None if the previous version, whose counts are ``former``, sent at least half of
    its messages to dead letters.
    """
    now = counted(status for slot, status in statuses.items() if slot in started)
    return now if now.is_failing and not former.is_failing else None


def committed_of(statuses: Mapping[str, ProcessorStatus]) -> dict[tuple[str, int], int]:
    """Maps each input partition (topic, number) to its committed offset; 0 without a commit."""
    return {
        (topic, task.partition): at.committed or 0
        for status in statuses.values()
        for task in status.tasks
        for topic, at in task.inputs.items()
    }


def progresses(statuses: Mapping[str, ProcessorStatus], at_first: Mapping[tuple[str, int], int]) -> bool:
    """Whether every input partition has lag 0, or a greater committed offset than at the start (``at_first``)."""
    return all(
        at.lag == 0 or (at.committed or 0) > at_first.get((topic, task.partition), 0)
        for status in statuses.values()
        for task in status.tasks
        for topic, at in task.inputs.items()
    )
