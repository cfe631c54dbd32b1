"""An index by time in a store of functions: the values or timers of message keys, by the time of their end or firing.

Its entries are internal records below ``OWN_KEY``, in the order of time, message key and name.
"""

from __future__ import annotations

from heapq import heappop, heappush, nsmallest
from typing import Any, NamedTuple, Protocol

from holdfast.processors.engine.state.own_keys import index_end, index_key, index_parts, index_place
from holdfast.processors.engine.state.ranges import Ranged, state_keys_between
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

#: Entries that are read into memory at once.
NEAR = 1_000


class OwnRecords(Ranged, Protocol):
    """The part of a store that reads and writes Holdfast's internal records; ``DeclaredState`` implements it."""

    name: str
    message_key: bytes
    timestamp_ms: int

    def read_own(self, message_key: bytes, state_key: str) -> Any:
        """The value of an internal record; None if there is none."""

    def write_own(self, message_key: bytes, state_key: str, value: Any) -> None:
        """Sets the value of an internal record; None deletes the record."""

    def add_entry(self, state_key: bytes) -> None:
        """Adds an entry of an index, below ``OWN_KEY``."""

    def delete_entry(self, state_key: bytes) -> bool:
        """Deletes an entry of an index; returns False if it does not exist."""

    def overwritten_ms(self, state_key: str) -> int | None:
        """The event time of the value that the last write took the place of; None without one."""

    def erase(self, message_key: bytes, state_key: str) -> None:
        """Deletes only the value of a function."""


class Entry(NamedTuple):
    """An entry of an index: a time in milliseconds, a message key and a name."""

    time_ms: int
    message_key: bytes
    name: str


class TimeIndex:
    """The entries of one kind in one store.

    The nearest entries are also in memory: a look costs no read of a range, however many entries were written since
    the last commit. What is in memory may be gone from the store; a look checks it::

        entries   ──x──x─x────x──┬──x──x──x────► time
                  in memory      │  in the store only
                                 └ horizon
    """

    def __init__(self, state: OwnRecords, kind: str) -> None:
        self._state, self._kind, self._kind_bytes = state, kind, kind.encode()
        #: A time before which nothing is due, in milliseconds.
        self.next_ms = 0
        #: A heap of all entries up to the horizon, and of some deleted ones. A horizon of None is after all entries.
        self._near: list[Entry] = []
        self._horizon: str | None = index_key(kind)
        #: The time of the horizon, milliseconds. Most entries are after it; they are not in memory.
        self._horizon_ms = -1

    def enter(self, entry: Entry) -> None:
        """Adds an entry."""
        self._state.add_entry(index_place(self._kind_bytes, *entry))
        self.put_back(entry)

    def leave(self, entry: Entry) -> None:
        """Deletes an entry."""
        self._state.write_own(OWN_KEY, self.place(entry), None)

    def take(self, time_ms: int, limit: int) -> list[Entry]:
        """Deletes and returns the first entries up to this time, at most ``limit``, in order."""
        found: list[Entry] = []
        delete, kind = self._state.delete_entry, self._kind_bytes
        while len(found) < limit and (entry := self._next(time_ms, limit)) is not None:
            if delete(index_place(kind, *entry)):
                found.append(entry)
        return found

    def due(self, time_ms: int, limit: int) -> list[Entry]:
        """Takes the first entries up to this time, at most ``limit``, in order; ``put_back`` those that stay."""
        found: list[Entry] = []
        while len(found) < limit and (entry := self._next(time_ms, NEAR)) is not None:
            is_new = not found or entry != found[-1]  # an entry that was deleted and added again is in memory twice
            if is_new and self._state.read_own(OWN_KEY, self.place(entry)) is not None:
                found.append(entry)
        return found

    def _next(self, time_ms: int, most: int) -> Entry | None:
        """Takes the first entry in memory up to this time; if memory is empty, ``most`` entries are read first."""
        if not self._near and not self._read_on(max(NEAR, most)):
            self.next_ms = EVENT_TIME_END_MS
            return None
        if self._near[0].time_ms > time_ms:
            self.next_ms = self._near[0].time_ms
            return None
        return heappop(self._near)

    def pending(self, limit: int) -> tuple[int, int | None]:
        """The number of entries, counted up to ``limit``; and the time of the first one, None if there is none."""
        # From the first entry that may exist: deleted earlier entries may still be in the files of the database.
        after = index_key(self._kind, self.next_ms) if self.next_ms else index_key(self._kind)
        found = state_keys_between(self._state, OWN_KEY, after, index_end(self._kind), limit)
        return len(found), index_parts(self._kind, found[0][0])[0] if found else None

    def put_back(self, entry: Entry) -> None:
        """Makes an entry of the store visible again."""
        self.next_ms = min(self.next_ms, entry.time_ms)
        if self._horizon is not None and (entry.time_ms > self._horizon_ms or self.place(entry) > self._horizon):
            return
        heappush(self._near, entry)
        if len(self._near) > 2 * NEAR:
            self._near = nsmallest(NEAR, self._near)
            self._horizon, self._horizon_ms = self.place(self._near[-1]), self._near[-1].time_ms

    def look_again(self) -> None:
        """The store went back to its last commit, or was changed by a command."""
        self._near, self._horizon, self.next_ms = [], index_key(self._kind), 0
        self._horizon_ms = -1

    def place(self, entry: Entry) -> str:
        """The state key of an entry."""
        return index_key(self._kind, *entry)

    def _read_on(self, most: int) -> bool:
        """Reads the next entries into memory; returns False if there are none."""
        if self._horizon is None:
            return False
        found = state_keys_between(self._state, OWN_KEY, self._horizon, index_end(self._kind), most)
        self._near = [Entry(*index_parts(self._kind, place)) for place, _ in found]
        self._horizon = found[-1][0] if len(found) == most else None
        self._horizon_ms = self._near[-1].time_ms if self._near else -1
        return bool(found)
