"""Chooses the start offset for ``offset_reset`` `latest`: the end of a topic only at the group's first start.

It is the first start for a topic if the group has no committed offset in any partition of the topic. Otherwise, a
partition without an offset was added to the topic later. It begins at its first offset, because `latest` must not skip
the messages of a new partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import TopicView


@dataclass(frozen=True, slots=True)
class FirstStart:
    """The partitions that begin at their end, because the group reads their topics for the first time.

    ``widths`` has the number of partitions of each such topic at the group's first start.
    """

    widths: Mapping[str, int] = field(default_factory=dict)

    def begins_at_end(self, partition: Partition) -> bool:
        """Whether this partition begins at its end: it existed when the group read the topic for the first time."""
        return partition.number < self.widths.get(partition.topic, 0)


def look(topics: TopicView, group: str, names: Iterable[str]) -> FirstStart:
    """Returns the partitions that begin at their end. ``names`` has the topics that use `latest`.

    Call it before the worker joins its group, because later, other members may have committed offsets.
    """
    wanted = sorted(names)
    if not wanted:
        return FirstStart()
    known = {place.topic for place in topics.committed_offsets(group)}
    described = topics.describe([name for name in wanted if name not in known])
    return FirstStart({name: seen.partitions for name, seen in described.items()})
