"""The steps of a table with a history. A join finds the row that was valid at the message's time.

State keys of a message key, in the table's store::

    row            the newest row, as in every table; absent if the row was deleted
    since          the event time of the newest row or deletion
    past/<time>    [row] for a replaced row, [] for a deletion; expires ``retention_ms`` after the next row or deletion

A deletion is stored with its time and expires like a replaced row. After the expiry, a deleted key has no records in
the store. ``<time>`` has 15 digits.
"""

from __future__ import annotations

from typing import Any

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.formats.typed import stored
from holdfast.processors.engine.joins.as_of import PAST
from holdfast.processors.engine.joins.table_rows import ROW, TablePut, TableRead
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.state.time.dated_values import time_text
from holdfast.processors.engine.steps.store_options import BY_VALUE, StoreOptions

_SINCE = "since"


def history_options(store: str) -> StoreOptions:
    """Returns the options with which the store of a table with a history is declared."""
    return StoreOptions(store, ttl=BY_VALUE, steps=("table with history",), asked_by_older=True)


class VersionedPut(TablePut):
    """Stores for each key the row with the largest event time. Keeps replaced rows for ``retention_ms``."""

    def __init__(self, retention_ms: int) -> None:
        super().__init__()
        self._retention_ms = retention_ms

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return f"table with a history of {self._retention_ms} ms"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers, state: State) -> bool:  # type: ignore[override]
        """Stores the message's value as the row of its key at its event time.

        Returns True if it is the key's newest row.
        """
        value = stored(value)
        row, since = state.get(ROW), state.get(_SINCE)
        if since is None and row is not None:
            since = 0  # The row was stored before the table had a history. Its time is unknown.
        if since is not None and timestamp < since:
            newer = state.keys(start=PAST + time_text(timestamp + 1), prefix=PAST, limit=1)
            next_ms = int(newer[0][len(PAST) :]) if newer else since
            state.set(PAST + time_text(timestamp), _version(value), ttl=next_ms - timestamp + self._retention_ms)
            return False
        if since is not None and since < timestamp:
            state.set(PAST + time_text(since), _version(row), ttl=self._retention_ms)
        if value is None:
            state.delete(ROW)
            state.set(_SINCE, timestamp, ttl=self._retention_ms)
        else:
            state.set(ROW, value)
            state.set(_SINCE, timestamp)
        return True


class VersionedRead(TableRead):
    """Joins each message with the row of its key that was valid at the message's time."""

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return f"{super().describe()}, as of the message"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers, state: State) -> list[Any]:  # type: ignore[override]
        """Returns the joined value in a list. An empty list drops the message."""
        since = state.get(_SINCE)
        if since is None or since <= timestamp:
            return self.joined(value, state.get(ROW))
        older = state.items(prefix=PAST, end=PAST + time_text(timestamp + 1), reverse=True, limit=1)
        return self.joined(value, older[0][1][0] if older and older[0][1] else None)


def _version(row: Any) -> list[Any]:
    return [] if row is None else [row]
