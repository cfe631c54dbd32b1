"""Chooses the start offset of partitions without a committed offset, for ``offset_reset`` `latest`.

If no partition of a topic has a committed offset, the group reads the topic for the first time. In this case, all
partitions are read from their end offsets. Otherwise, a partition without an offset was added to the topic later. Such
a partition is read from its first offset, because `latest` must not skip the messages of an added partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import TopicView


@dataclass(frozen=True, slots=True)
class FirstStart:
    """The topics that the group reads for the first time. Their partitions are read from their end offsets.

    ``widths`` has the number of partitions of each of these topics when the worker started.
    """

    widths: Mapping[str, int] = field(default_factory=dict)

    def begins_at_end(self, partition: Partition) -> bool:
        """Whether this partition is read from its end offset.

        A partition that was added later is read from its first offset.
        """
        return partition.number < self.widths.get(partition.topic, 0)


def look(topics: TopicView, group: str, names: Iterable[str]) -> FirstStart:
    """Finds the topics that the group reads for the first time. ``names`` are the topics that use `latest`.

    Call it before the worker joins its group, because other members may commit offsets after that.
    """
    wanted = sorted(names)
    if not wanted:
        return FirstStart()
    known = {place.topic for place in topics.committed_offsets(group)}
    described = topics.describe([name for name in wanted if name not in known])
    return FirstStart({name: seen.partitions for name, seen in described.items()})
