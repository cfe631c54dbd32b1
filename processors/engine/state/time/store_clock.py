"""Stores a task's stream time as a record in each store whose values expire or whose keys have timers.

The record is committed with the store's data. So it is also in the store's changelog, checkpoints, standbys (copies in
other processes) and snapshots.
"""

from __future__ import annotations

from typing import Any

from holdfast.processors.engine.changelog.format import key_prefix, unknown_version
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.stream_time import Remembered, StreamTime
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

#: The format versions of the stream time's record that can be read. Stores of interval joins use format 2, other stores
#: use format 1. Older releases of Holdfast refuse format 2, because they can't read the numbers in state keys of
#: interval joins. In the store of an interval join, the next commit changes a record of format 1 to format 2.
CLOCK_VERSIONS = (1, 2)
PLAIN, NUMBERED = CLOCK_VERSIONS


class StoreClock:
    """Stores a task's stream time as a record in one of its stores."""

    #: The changelog key of the record with the stream time.
    key = key_prefix(OWN_KEY) + CLOCK_OF_STORE.encode()

    def __init__(self, state: DeclaredState, stream: StreamTime, version: int = PLAIN) -> None:
        self._state, self._stream, self._version = state, stream, version
        self._saved: dict[str, Any] | None = None
        self._pending: dict[str, Any] | None = None

    @property
    def saved_ms(self) -> int:
        """The committed stream time, in milliseconds; ``NO_TIME`` before the first commit."""
        return Remembered.of(self._saved).time_ms

    def load(self) -> Remembered:
        """Reads the committed stream time, and the event times that the worker's clock has not reached yet.

        Raises:
            FormatUnknown: The record has another format version.
        """
        self._saved = record = self._state.read_own(OWN_KEY, CLOCK_OF_STORE)
        if record is not None and record.get("format") not in CLOCK_VERSIONS:
            raise unknown_version(f"The clock of store {self._state.name}", record.get("format"), self._version)
        return self.restore()

    def restore(self) -> Remembered:
        """Drops the uncommitted record, and returns the committed record. Must be called after an aborted transaction.

        The result has the same form as the result of ``load``.
        """
        self._pending, record = None, self._saved
        return Remembered.of(record)

    def save(self) -> bool:
        """Writes the stream time into the store as an uncommitted record.

        Returns False if it equals the committed time.
        """
        stream = self._stream
        record = {"format": self._version, **stream.record()}
        if record == self._saved or (self._saved is None and not stream.known):
            return False
        self._pending = record
        self._state.point_at(OWN_KEY, max(stream.time_ms, 0))
        self._state.write_own(OWN_KEY, CLOCK_OF_STORE, record)
        self._state.keep_message()
        return True

    def committed(self) -> None:
        """Marks the record that ``save`` wrote as the committed record. Must be called after the commit."""
        if self._pending is not None:
            self._saved, self._pending = self._pending, None
