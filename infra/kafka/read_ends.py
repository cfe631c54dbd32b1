"""Tracks the partitions that a member has read to their ends, by the ends fetched since the partition's last start.

    fetch ──► end E ──► pause ──► (others write) ──► resume ──► first answer ──► end E'
                        └────────── E does not count ───────────────┘            └── counts

The client library keeps the end of its last fetch across pauses, seeks and assignments. That end is then out of date:
newer records may exist, and they may be older than records of other inputs.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.infra.kafka.records import Partition


class ReadEnds:
    """The partitions whose ends count, and the end offsets that the library reported.

    The library reports the end of committed records, so an open transaction lies after that end.
    """

    def __init__(self) -> None:
        self._fetched: set[Partition] = set()
        self._read_to: dict[Partition, int] = {}

    def begin(self, partitions: Iterable[Partition]) -> None:
        """Forgets the known ends of partitions that are paused, resumed, sought, assigned or revoked."""
        for partition in partitions:
            self._fetched.discard(partition)
            self._read_to.pop(partition, None)

    def came(self, partition: Partition) -> None:
        """Records of a partition arrived: the library drops older answers, so its end is as new as these records."""
        self._fetched.add(partition)

    def told(self, partition: Partition, offset: int) -> None:
        """The library reported that it has read a partition up to this offset, its end."""
        self._fetched.add(partition)
        self._read_to[partition] = offset

    def without_records(self, partition: Partition, position: int) -> int | None:
        """The library's end if it is after ``position`` and no readable record lies between; else None."""
        told = self._read_to.get(partition, 0)
        return told if told > position else None

    def is_ended(self, partition: Partition, position: int | None, end: int | None) -> bool:
        """Whether a partition is read to its end, given the next offset and the end of the last fetch."""
        if partition not in self._fetched or position is None or end is None:
            return False
        # Offsets after the last record may be transaction markers; the library reports that no other record follows.
        return max(position, self._read_to.get(partition, 0)) >= end
