"""With `latest`, only the inputs that a processor reads for the first time begin at their end.

A group's first start is when it has no offset of a topic. If the group has offsets of a topic, a partition without an
offset was added later. Such a partition begins at its first offset, because nobody has skipped its messages on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import TopicView


@dataclass(frozen=True, slots=True)
class FirstStart:
    """The partitions that begin at their end if the group has no offset of them.

    ``widths`` has, for each topic without an offset of the group, its number of partitions at that time.
    """

    widths: Mapping[str, int] = field(default_factory=dict)

    def begins_at_end(self, partition: Partition) -> bool:
        """Whether this partition existed when the group started for the first time."""
        return partition.number < self.widths.get(partition.topic, 0)


def look(topics: TopicView, group: str, names: Iterable[str]) -> FirstStart:
    """Reads the existing partitions before a worker joins: later, other members may have committed first offsets.

    ``names`` are the topics that begin at their end. If there are none, no request is made.
    """
    wanted = sorted(names)
    if not wanted:
        return FirstStart()
    known = {place.topic for place in topics.committed_offsets(group)}
    described = topics.describe([name for name in wanted if name not in known])
    return FirstStart({name: seen.partitions for name, seen in described.items()})
