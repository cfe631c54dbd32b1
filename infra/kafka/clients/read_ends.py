"""Tracks which partitions a consumer has read to the end. End offsets from before a resume or a seek are not used.

    fetch ──► end E ──► pause ──► (others write) ──► resume ──► first answer ──► end E'
                        └──────────── E is not used ────────────────┘            └── used

librdkafka keeps the end offset of its last fetch across pauses, seeks and assignments. Afterwards this end offset is
out of date. Newer records may exist, and their event times may be earlier than those of records from other inputs. If
the engine took the partition as read to its end, it would process the other inputs without waiting for these records.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.infra.kafka.records import Partition


class ReadEnds:
    """The partitions whose known ends are up to date, and the end offsets that librdkafka reported.

    librdkafka reports the end of the committed records, so records of an open transaction come after this end.
    """

    def __init__(self) -> None:
        self._fetched: set[Partition] = set()
        self._read_to: dict[Partition, int] = {}

    def begin(self, partitions: Iterable[Partition]) -> None:
        """Forget the known ends of partitions after a pause, resume, seek, assignment or revocation."""
        for partition in partitions:
            self._fetched.discard(partition)
            self._read_to.pop(partition, None)

    def came(self, partition: Partition) -> None:
        """Record that records of a partition arrived, so that its end offset in librdkafka is up to date.

        librdkafka drops responses to fetches from before a pause, resume or seek. So the end offset is from the same
        response as these records, or from a later one.
        """
        self._fetched.add(partition)

    def told(self, partition: Partition, offset: int) -> None:
        """Record the end offset that librdkafka reported for a partition (PARTITION_EOF)."""
        self._fetched.add(partition)
        self._read_to[partition] = offset

    def without_records(self, partition: Partition, position: int) -> int | None:
        """The reported end offset if it is greater than ``position``; otherwise None.

        Between ``position`` and this offset there are no readable records, only transaction markers or aborted records.
        """
        told = self._read_to.get(partition, 0)
        return told if told > position else None

    def is_ended(self, partition: Partition, position: int | None, end: int | None) -> bool:
        """Whether a partition is read to its end.

        ``position`` is the next offset to read; ``end`` is the end offset of librdkafka's last fetch.
        """
        if partition not in self._fetched or position is None or end is None:
            return False
        # After the last record there may be offsets of transaction markers. So the reported end is used too.
        return max(position, self._read_to.get(partition, 0)) >= end
