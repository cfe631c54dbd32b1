"""The log of one partition, with Kafka's rules. Each record and each control record has its own offset.

The marker at the end of a transaction makes its records readable (commit) or invisible (abort). Until the marker is
written, the last stable offset (LSO) of all readers stays before these records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.infra.kafka.records import Headers


@dataclass(slots=True)
class Entry:
    """One record or control record of a log.

    ``readable`` is None while the record's transaction is open. Control records have no key and no value, and are never
    read.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    readable: bool | None
    control: bool = False


class PartitionLog:
    """The log of one partition, from the first offset ``start`` to the high watermark ``end``."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self._entries: list[Entry] = []
        self._offsets: list[int] = []
        self._open: dict[int, list[Entry]] = {}

    def append(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers, producer: int | None
    ) -> int:
        """Appends a record and returns its offset.

        If ``producer`` is given, the record belongs to this producer's open transaction.
        """
        entry = Entry(self.end, key, value, timestamp_ms, headers, True if producer is None else None)
        if producer is not None:
            self._open.setdefault(producer, []).append(entry)
        return self._take(entry)

    def end_transaction(self, producer: int, *, commit: bool, timestamp_ms: int) -> None:
        """Writes the marker that ends a producer's transaction."""
        for entry in self._open.pop(producer, ()):
            entry.readable = commit
        self._take(Entry(self.end, None, None, timestamp_ms, None, False, control=True))

    def has_open(self, producer: int) -> bool:
        """Whether this producer has an open transaction in the log."""
        return bool(self._open.get(producer))

    @property
    def last_stable(self) -> int:
        """The first offset of the oldest open transaction; the end of the log if no transaction is open."""
        return min((entries[0].offset for entries in self._open.values() if entries), default=self.end)

    def offset_at(self, timestamp_ms: int) -> int:
        """Returns the offset of the first record at or after this time; without such a record, the end of the log."""
        found = (each.offset for each in self._entries if not each.control and each.timestamp_ms >= timestamp_ms)
        return next(found, self.end)

    def read(self, start: int, records_max: int, *, committed: bool) -> tuple[list[Entry], int]:
        """Returns the readable records from ``start``, and the offset after the part that was read.

        If no readable record is left, this offset is the end of the log, or the LSO for readers of committed records.
        This is so even if compaction removed the last records. Kafka does the same, because its log cleaner skips the
        newest segment and keeps emptied batches. A consumer's position therefore moves past removed records.
        """
        limit = self.last_stable if committed else self.end
        found: list[Entry] = []
        for index in range(bisect_left(self._offsets, start), len(self._entries)):
            entry = self._entries[index]
            if entry.offset >= limit:
                break
            if len(found) >= records_max:
                return found, found[-1].offset + 1 if found else start
            if not entry.control and (entry.readable or not committed):
                found.append(entry)
        return found, max(start, limit)

    def newest_keys(self, records_max: int) -> frozenset[bytes]:
        """Returns the keys of the newest committed records."""
        found, _ = self.read(max(self.start, self.last_stable - records_max), records_max, committed=True)
        return frozenset(each.key for each in found if each.key is not None)

    def compact(self, *, drop_tombstones: bool) -> None:
        """Compacts below the LSO as Kafka does: keeps each key's latest record, and deletes aborted records.

        With ``drop_tombstones`` also deletes tombstones and control records, as Kafka does after delete.retention.ms.
        """
        limit = self.last_stable
        latest = {
            entry.key: entry.offset
            for entry in self._entries
            if entry.offset < limit and not entry.control and entry.readable and entry.key is not None
        }
        self._keep(lambda entry: entry.offset >= limit or _survives(entry, latest, drop_tombstones))

    def truncate(self, *, start: int | None, end: int | None) -> None:
        """Deletes the records before ``start``, and the records from ``end`` on."""
        if start is not None:
            self.start = max(self.start, start)
            self._keep(lambda entry: entry.offset >= self.start)
        if end is not None and end < self.end:
            self.end = end
            self._keep(lambda entry: entry.offset < end)
        kept = set(map(id, self._entries))
        for producer, entries in list(self._open.items()):
            left = [entry for entry in entries if id(entry) in kept]
            if left:
                self._open[producer] = left
            else:
                del self._open[producer]

    def _take(self, entry: Entry) -> int:
        self._entries.append(entry)
        self._offsets.append(entry.offset)
        self.end = entry.offset + 1
        return entry.offset

    def _keep(self, wanted: Callable[[Entry], bool]) -> None:
        self._entries = [entry for entry in self._entries if wanted(entry)]
        self._offsets = [entry.offset for entry in self._entries]


def _survives(entry: Entry, latest: Mapping[bytes, int], drop_tombstones: bool) -> bool:
    if entry.control:
        return not drop_tombstones
    if not entry.readable or entry.key is None or latest.get(entry.key) != entry.offset:
        return False
    return not (drop_tombstones and entry.value is None)
