"""An index by time in a store. It finds the message keys whose values expire, or whose timers fire, up to a given time.

The entries of the index are internal records of the store. They have the message key ``OWN_KEY``, and are sorted by
time, message key and name.
"""

from __future__ import annotations

from heapq import heappop, heappush, nsmallest
from typing import Any, NamedTuple, Protocol

from holdfast.processors.engine.state.own_keys import index_end, index_key, index_parts, index_place
from holdfast.processors.engine.state.ranges import Ranged, state_keys_between
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

#: Minimum number of index entries that one read of the store puts into memory.
NEAR = 1_000


class OwnRecords(Ranged, Protocol):
    """The methods of a store to read and write Holdfast's internal records; ``DeclaredState`` implements them."""

    name: str
    message_key: bytes
    timestamp_ms: int

    def read_own(self, message_key: bytes, state_key: str) -> Any:
        """Returns the value of an internal record; None if it does not exist."""

    def write_own(self, message_key: bytes, state_key: str, value: Any) -> None:
        """Sets the value of an internal record; None deletes the record."""

    def add_entry(self, state_key: bytes) -> None:
        """Adds an entry to an index by time. All index entries have the message key ``OWN_KEY``."""

    def delete_entry(self, state_key: bytes) -> bool:
        """Deletes an index entry. Returns False if it does not exist."""

    def overwritten_ms(self, state_key: str) -> int | None:
        """Returns the event time of the value that the last write replaced; None if it replaced nothing."""

    def erase(self, message_key: bytes, state_key: str) -> None:
        """Deletes a value that a user function has set. Holdfast's internal records about the value are not deleted."""


class Entry(NamedTuple):
    """An entry of an index by time: time in milliseconds, message key, and name (a state key or a timer's name)."""

    time_ms: int
    message_key: bytes
    name: str


class TimeIndex:
    """The index entries of one kind (for example of expiry times) in one store.

    The earliest entries are also in memory, so a check for due entries needs no range read of the store. An entry in
    memory may be deleted from the store, so ``take`` and ``due`` check the store::

        entries   ──x──x─x────x──┬──x──x──x────► time
                  in memory      │  in the store only
                                 └ horizon
    """

    def __init__(self, state: OwnRecords, kind: str) -> None:
        self._state, self._kind, self._kind_bytes = state, kind, kind.encode()
        #: Milliseconds. No entry of the index has an earlier time.
        self.next_ms = 0
        #: A heap with all entries up to the horizon, and some entries that are already deleted from the store. If the
        #: horizon is None, the heap has all entries of the index.
        self._near: list[Entry] = []
        self._horizon: str | None = index_key(kind)
        #: The time of the horizon in milliseconds; entries with a later time are only in the store.
        self._horizon_ms = -1

    def enter(self, entry: Entry) -> None:
        """Adds an entry to the index."""
        self._state.add_entry(index_place(self._kind_bytes, *entry))
        self.put_back(entry)

    def leave(self, entry: Entry) -> None:
        """Deletes an entry from the index."""
        self._state.write_own(OWN_KEY, self.place(entry), None)

    def take(self, time_ms: int, limit: int) -> list[Entry]:
        """Deletes at most ``limit`` entries with a time up to ``time_ms``, earliest first, and returns them."""
        found: list[Entry] = []
        delete, kind = self._state.delete_entry, self._kind_bytes
        while len(found) < limit and (entry := self._next(time_ms, limit)) is not None:
            if delete(index_place(kind, *entry)):
                found.append(entry)
        return found

    def due(self, time_ms: int, limit: int) -> list[Entry]:
        """Returns at most ``limit`` entries with a time up to ``time_ms``, earliest first.

        The entries stay in the store but are removed from memory. The caller must call ``put_back`` for each entry that
        it does not delete.
        """
        found: list[Entry] = []
        while len(found) < limit and (entry := self._next(time_ms, NEAR)) is not None:
            # If an entry was deleted and added again, it is in memory twice.
            is_new = not found or entry != found[-1]
            if is_new and self._state.read_own(OWN_KEY, self.place(entry)) is not None:
                found.append(entry)
        return found

    def _next(self, time_ms: int, most: int) -> Entry | None:
        """Removes the first entry from memory and returns it; None if no entry has a time up to ``time_ms``.

        If memory has no entries, reads up to ``most`` entries first.
        """
        if not self._near and not self._read_on(max(NEAR, most)):
            self.next_ms = EVENT_TIME_END_MS
            return None
        if self._near[0].time_ms > time_ms:
            self.next_ms = self._near[0].time_ms
            return None
        return heappop(self._near)

    def pending(self, limit: int) -> tuple[int, int | None]:
        """Returns the number of entries (counting stops at ``limit``), and the time of the first entry.

        The time is None if the index is empty.
        """
        # The read starts at ``next_ms``. Otherwise, RocksDB would scan the deleted entries before that time.
        after = index_key(self._kind, self.next_ms) if self.next_ms else index_key(self._kind)
        found = state_keys_between(self._state, OWN_KEY, after, index_end(self._kind), limit)
        return len(found), index_parts(self._kind, found[0][0])[0] if found else None

    def put_back(self, entry: Entry) -> None:
        """Puts an entry back into memory. The entry must still be in the store."""
        self.next_ms = min(self.next_ms, entry.time_ms)
        if self._horizon is not None and (entry.time_ms > self._horizon_ms or self.place(entry) > self._horizon):
            return
        heappush(self._near, entry)
        if len(self._near) > 2 * NEAR:
            self._near = nsmallest(NEAR, self._near)
            self._horizon, self._horizon_ms = self.place(self._near[-1]), self._near[-1].time_ms

    def look_again(self) -> None:
        """Drops the entries in memory, so that the next access reads the store again.

        Must be called after an aborted transaction, and after a command such as ``clear`` has changed the store.
        """
        self._near, self._horizon, self.next_ms = [], index_key(self._kind), 0
        self._horizon_ms = -1

    def place(self, entry: Entry) -> str:
        """Returns the state key of an entry."""
        return index_key(self._kind, *entry)

    def _read_on(self, most: int) -> bool:
        """Reads the next entries from the store into memory. Returns False if the store has no more entries."""
        if self._horizon is None:
            return False
        found = state_keys_between(self._state, OWN_KEY, self._horizon, index_end(self._kind), most)
        self._near = [Entry(*index_parts(self._kind, place)) for place, _ in found]
        self._horizon = found[-1][0] if len(found) == most else None
        self._horizon_ms = self._near[-1].time_ms if self._near else -1
        return bool(found)
