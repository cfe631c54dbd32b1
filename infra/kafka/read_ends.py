"""Which partitions a member has read to their ends: by ends that were fetched since the partition's last start.

    fetch ──► end E ──► pause ──► (others write) ──► resume ──► first answer ──► end E'
                        └────────── E does not count ───────────────┘            └── counts

The client library keeps the end of its last fetch across pauses, seeks and assignments. Records may be behind it by
then, and they may be older than those of other inputs.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.infra.kafka.records import Partition


class ReadEnds:
    """The partitions whose ends count, and the offsets at which the library told an end.

    It tells the end of committed records, so an open transaction is behind it.
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
        """Records of a partition came: the library drops older answers, so its end is as new as these records."""
        self._fetched.add(partition)

    def told(self, partition: Partition, offset: int) -> None:
        """The library reported that it has read a partition up to this offset, its end."""
        self._fetched.add(partition)
        self._read_to[partition] = offset

    def without_records(self, partition: Partition, position: int) -> int | None:
        """The library's end if it is behind ``position``, so that no readable record lies between; else None."""
        told = self._read_to.get(partition, 0)
        return told if told > position else None

    def is_ended(self, partition: Partition, position: int | None, end: int | None) -> bool:
        """Whether a partition is read to its end, given the next offset and the end of the last fetch."""
        if partition not in self._fetched or position is None or end is None:
            return False
        # Offsets behind the last record may be markers of transactions: the library tells that there is nothing else.
        return max(position, self._read_to.get(partition, 0)) >= end
