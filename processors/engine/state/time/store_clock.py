"""The stream time of a task as a record of a store whose values expire or whose keys have timers.

The record is committed with the store, so changelog, checkpoint, restore, standby and snapshot contain it.
"""

from __future__ import annotations

from typing import Any

from holdfast.processors.engine.changelog.format import key_prefix, unknown_version
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.stream_time import Remembered, StreamTime
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

#: The readable versions of the record. Stores of interval joins have version 2: their values may have numbers, which
#: older versions can't read, so they refuse it. A record of version 1 becomes version 2 with the next commit.
CLOCK_VERSIONS = (1, 2)
PLAIN, NUMBERED = CLOCK_VERSIONS


class StoreClock:
    """Keeps the stream time of a task in one of its stores, in a record of a version."""

    #: The changelog key of the record.
    key = key_prefix(OWN_KEY) + CLOCK_OF_STORE.encode()

    def __init__(self, state: DeclaredState, stream: StreamTime, version: int = PLAIN) -> None:
        self._state, self._stream, self._version = state, stream, version
        self._saved: dict[str, Any] | None = None
        self._pending: dict[str, Any] | None = None

    @property
    def saved_ms(self) -> int:
        """The time of the last commit, in milliseconds; ``NO_TIME`` without one."""
        return Remembered.of(self._saved).time_ms

    def load(self) -> Remembered:
        """Reads the committed time, and the waiting times ahead of the clock.

        Raises:
            FormatUnknown: It has another format version.
        """
        self._saved = record = self._state.read_own(OWN_KEY, CLOCK_OF_STORE)
        if record is not None and record.get("format") not in CLOCK_VERSIONS:
            raise unknown_version(f"The clock of store {self._state.name}", record.get("format"), self._version)
        return self.restore()

    def restore(self) -> Remembered:
        """Returns to the last commit; returns the same as ``load``."""
        self._pending, record = None, self._saved
        return Remembered.of(record)

    def save(self) -> bool:
        """Writes the time into the store; False if the time equals the committed one."""
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
        """The commit of the last ``save`` is done."""
        if self._pending is not None:
            self._saved, self._pending = self._pending, None
