"""With `latest`, the inputs that a processor reads for the first time: only those begin at their end.

A group's first start is when it has no offset of a topic. Of a topic that it has offsets of, a partition without one
was added later. It begins at its beginning, because nobody has skipped its messages on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import TopicView


@dataclass(frozen=True, slots=True)
class FirstStart:
    """The partitions that begin at their end where the group has no offset of them.

    ``widths`` has, for each topic of which the group had no offset, the partitions that were there.
    """

    widths: Mapping[str, int] = field(default_factory=dict)

    def begins_at_end(self, partition: Partition) -> bool:
        """Whether this partition was there when the group started for the first time."""
        return partition.number < self.widths.get(partition.topic, 0)


def look(topics: TopicView, group: str, names: Iterable[str]) -> FirstStart:
    """What is there before a worker joins its group: afterwards, other members may have committed their first offsets.

    ``names`` are the topics that begin at their end. Without any, nothing is asked.
    """
    wanted = sorted(names)
    if not wanted:
        return FirstStart()
    known = {place.topic for place in topics.committed_offsets(group)}
    described = topics.describe([name for name in wanted if name not in known])
    return FirstStart({name: seen.partitions for name, seen in described.items()})
