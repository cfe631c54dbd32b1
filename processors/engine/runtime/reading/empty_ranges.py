"""Finds out whether a partition has records before an offset.

Not every offset has a record: transaction markers use offsets, and compaction deletes records.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster

#: Seconds. A partition is checked after its position has not changed for this time.
QUIET_S = 0.5
#: Maximum seconds that one check waits for records.
LOOK_S = 0.05


class EmptyRanges:
    """Finds partitions that have no record left before a given offset (the bound), for example the end offset.

    The worker's group consumer can't find this out, because it receives nothing for transaction markers, aborted
    records and compacted records. A separate consumer without a group therefore reads the partition from the position
    until it gets a record or reaches the end.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._clock = cluster.clock
        self._cluster = cluster
        self._reader: ChangelogReplayer | None = None
        self._looks_at: dict[Partition, int] = {}
        self._moved_at: dict[Partition, tuple[int, float]] = {}

    def found(self, waiting: Mapping[Partition, tuple[int, int]]) -> list[Partition]:
        """Returns those partitions of ``waiting`` that have no record between their position and their bound.

        ``waiting`` maps a partition to (position, bound). The caller must call this method repeatedly, because a
        partition is checked only after ``QUIET_S`` seconds at the same position.
        """
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
                else:  # The group consumer will get this record. The next check reads it again.
                    self._moved_at[place] = position, now
                    self._looks_at = {}
            elif max(ends.get(place, 0), positions.get(place, 0)) >= bound:
                found.append(place)
        return found

    def close(self) -> None:
        """Close the consumer, if there is one."""
        if self._reader is not None:
            self._reader.close()
