"""An index by time in a store of functions: what ends or fires at which time, of which message key.

Its entries are own records below ``OWN_KEY``, in the order of time, message key and name.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from holdfast.processors.engine.state.own_keys import index_before, index_key, index_parts
from holdfast.processors.engine.state.ranges import Ranged, state_keys_between
from holdfast.processors.engine.state.window_keys import OWN_KEY


class OwnRecords(Ranged, Protocol):
    """A store as its own records are read and written: ``DeclaredState``."""

    message_key: bytes
    timestamp_ms: int

    def read_own(self, message_key: bytes, state_key: str) -> Any:
        """The value of an own record; None without one."""

    def write_own(self, message_key: bytes, state_key: str, value: Any) -> None:
        """Sets the value of an own record; None deletes it."""

    def erase(self, message_key: bytes, state_key: str) -> None:
        """Deletes a value of a function, with nothing else."""


class Entry(NamedTuple):
    """An entry of an index: a time in milliseconds, a message key and a name."""

    time_ms: int
    message_key: bytes
    name: str


class TimeIndex:
    """The entries of one kind in one store.

    A look begins where the last one ended: what has left the index is not read over and over.
    """

    def __init__(self, state: OwnRecords, kind: str) -> None:
        self._state, self._kind = state, kind
        #: No entry is at or before this place.
        self._first = index_key(kind)

    def enter(self, entry: Entry) -> None:
        """Adds an entry."""
        place = self.place(entry)
        if place <= self._first:
            self.look_again()
        self._state.write_own(OWN_KEY, place, 1)

    def leave(self, entry: Entry) -> None:
        """Deletes an entry."""
        self._state.write_own(OWN_KEY, self.place(entry), None)

    def due(self, time_ms: int | None, limit: int) -> list[Entry]:
        """The first entries up to this time (None for any), at most ``limit``."""
        found = state_keys_between(self._state, OWN_KEY, self._first, index_before(self._kind, time_ms), limit)
        return [Entry(*index_parts(self._kind, place)) for place, _ in found]

    def passed(self, entry: Entry) -> None:
        """Records that this entry and all before it have left, unless one was added there meanwhile."""
        if not state_keys_between(self._state, OWN_KEY, self._first, self.place(entry), 1):
            self._first = self.place(entry)

    def look_again(self) -> None:
        """The store went back to its last commit, or was changed by a command."""
        self._first = index_key(self._kind)

    def place(self, entry: Entry) -> str:
        """The state key of an entry."""
        return index_key(self._kind, *entry)
