"""The log of one partition, with Kafka's semantics: offsets are never given twice, control records take some.

A record of a transaction becomes readable, or is dropped, when the transaction's marker is written; until then it
holds the last stable offset (LSO) down for everybody.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.infra.kafka.records import Headers


@dataclass(slots=True)
class Entry:
    """One offset that is taken. ``readable`` is None while its transaction is open; control records have no key and
    no value, and are never handed out."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    readable: bool | None
    control: bool = False


class PartitionLog:
    """One partition's log."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self._entries: list[Entry] = []
        self._offsets: list[int] = []
        self._open: dict[int, list[Entry]] = {}

    def append(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers, producer: int | None
    ) -> int:
        """Append a record; of an open transaction when ``producer`` is its id. Returns its offset."""
        entry = Entry(self.end, key, value, timestamp_ms, headers, True if producer is None else None)
        if producer is not None:
            self._open.setdefault(producer, []).append(entry)
        return self._take(entry)

    def end_transaction(self, producer: int, *, commit: bool, timestamp_ms: int) -> None:
        """Write a transaction's marker."""
        for entry in self._open.pop(producer, ()):
            entry.readable = commit
        self._take(Entry(self.end, None, None, timestamp_ms, None, False, control=True))

    @property
    def last_stable(self) -> int:
        """The first offset of the oldest open transaction, or the end."""
        return min((entries[0].offset for entries in self._open.values() if entries), default=self.end)

    def read(self, start: int, records_max: int, *, committed: bool) -> tuple[list[Entry], int]:
        """Readable records from ``start`` on, and the offset after the last entry looked at (control included)."""
        limit = self.last_stable if committed else self.end
        found: list[Entry] = []
        position = start
        for index in range(bisect_left(self._offsets, start), len(self._entries)):
            entry = self._entries[index]
            if entry.offset >= limit or len(found) >= records_max:
                break
            if not entry.control and (entry.readable or not committed):
                found.append(entry)
            position = entry.offset + 1
        return found, position

    def compact(self, *, drop_tombstones: bool) -> None:
        """Clean like Kafka's log cleaner, below the LSO: the latest record of a key stays, aborted ones go.

        With ``drop_tombstones`` deletes and control records go too, as after delete.retention.ms. Offsets stay.
        """
        limit = self.last_stable
        latest = {
            entry.key: entry.offset
            for entry in self._entries
            if entry.offset < limit and not entry.control and entry.readable and entry.key is not None
        }
        self._keep(lambda entry: entry.offset >= limit or _survives(entry, latest, drop_tombstones))

    def truncate(self, *, start: int | None, end: int | None) -> None:
        """Lose the head below ``start``, or the tail from ``end`` on."""
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
