"""What the windows of one step in one task have in common, of whatever kind: their clock, their index, their end.

What a window store keeps is in ``state.window_keys``; all of it is ordinary state of the step's store. So changelog,
checkpoint, restore, standby, audit, clear and snapshot have it without code of their own.

    stream time ──► removed ───────── closed ───────── due ──────────────► open windows
    of windows       gone from         emitted once,    no message counts,
                     the store         readable         emitted by the next commit

``closed`` and ``removed`` are places in the index by time, committed with the offsets. A commit moves each of them by
a bounded number of windows. So the cost is in proportion to what closes, and a million windows that end at once
are many commits of the usual length.

Invariants:
    - A window is emitted in the transaction that moves ``closed`` past it: once.
    - Whether a message is late follows from committed state and the messages before it, not from when a commit was.
    - Nothing is opened at or before ``closed``, and no entry of the index is written at or before ``removed``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.dataframe.window_spec import WindowInvalid, WindowSpec
from holdfast.processors.engine.record_size import RecordTooLarge
from holdfast.processors.engine.state.ranges import state_keys_between
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.stream_time import NO_TIME, Remembered, StreamTime, shown
from holdfast.processors.engine.state.window_keys import (
    CLOCK,
    INDEXES,
    OWN_KEY,
    DueEntry,
    due_before,
    due_entry,
    due_key,
    first_due,
    window_key,
)

_users_log = logging.getLogger("holdfast.processing")

CLOCK_VERSION = 1
#: Bytes of the record of a clock without message keys, at most: times of tasks before the topic, times ahead.
CLOCK_BYTES = 32_768
#: A result and the timestamp that it has from here on: the start of its window.
Result = tuple[dict[str, Any], int]


class Closing(NamedTuple):
    """A window that is due: its place in the index, its key, and its result; None if there is nothing to send."""

    place: str
    message_key: bytes
    result: dict[str, Any] | None
    start: int


class Taker(Protocol):
    """A window that takes messages."""

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Counts a message in its windows; returns the results to send at once."""


class Closes(Protocol):
    """What has results that are due with time."""

    def closing(self, limit: int) -> list[Closing]:
        """The next results that are due, at most ``limit``, in the order of their places."""

    def closed(self, closing: Closing) -> None:
        """Records that everything up to this one is sent."""


@dataclass(slots=True)
class MessagePlace:
    """Where the current message is in Kafka, for ``on_late``; the task keeps it current."""

    topic: str = ""
    partition: int = -1
    offset: Any = None


class WindowRows(Protocol):
    """Windows that are held by columns between commits."""

    def results(self, entries: Sequence[DueEntry]) -> Sequence[dict[str, Any] | None]:
        """The results of windows, by their entries in the index by time; None for one that is not held."""

    def forget(self, entry: DueEntry) -> None:
        """Called when a window is deleted."""


class StoredWindows:
    """The windows of one step in one task; a subclass for each kind takes messages and finds what is due.

    Args:
        spec: The declaration.
        state: The store of the step; no other step uses it.
        stream: The stream time of the task.
        place: Where the current message is.
    """

    def __init__(self, spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> None:
        self.spec = spec
        self._state = state
        self._stream = stream
        self._place = place
        #: The clock has two places of the index in one record, with the message key of each in hex.
        self.key_bytes_max = (state.record_bytes_max - min(CLOCK_BYTES, state.record_bytes_max // 4)) // 4
        self._by_key = spec.closing == "key"
        #: Whether commits close windows, and nothing leaves before.
        self._closes = spec.final and not self._by_key
        self._lasts_ms = spec.grace_ms + spec.retention_ms
        self._closed = self._removed = first_due()
        self._closed_ms = NO_TIME
        #: The record of the last commit, and that of the next one.
        self._saved: Any = None
        self._pending: Any = None
        #: Windows that a message came too late for, since the task runs.
        self.late = 0
        #: The windows by columns; None if messages are counted one by one only.
        self.rows: WindowRows | None = None
        state.scattered = INDEXES
        #: Sets a record of a window.
        self._set = state.set_own if spec.aggregation.plain else state.set

    @property
    def closed_ms(self) -> int:
        """The end of the last window that is closed, without its grace, in milliseconds; no window opens up to it."""
        return self._closed_ms

    # -- with each message -----------------------------------------------------------------------------------------

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Counts a message in its windows; returns the results to send at once.

        Raises:
            AggregationFailed: The message can't be aggregated.
            EventTimeInvalid: The message has no event time.
            LateMessage: All of its windows are closed, and late messages go by the failure policy.
        """
        raise NotImplementedError

    def _key_too_large(self, raw_key: bytes) -> RecordTooLarge:
        """The error for a message whose key would make a commit too large: it fails alone."""
        return RecordTooLarge(
            f"The key of the message has {len(raw_key):,} bytes; windows of store {self._state.name!r} take keys of "
            f"{self.key_bytes_max:,} bytes. Their clock has two keys in hex in one record.",
            action="Make the key shorter, or raise `max.message.bytes` of the changelog and `message.max.bytes` in "
            "`producer_extra_config`.",
            store=self._state.name,
            seen=len(raw_key),
            expected=self.key_bytes_max,
        )

    def _is_late(self, due_ms: int, known: dict[str, Any] | None) -> bool:
        """Whether a window is closed that is due, without its grace, at this time; ``known`` is what its key knows."""
        grace_ms = self.spec.grace_ms
        if known is None:
            return due_ms + grace_ms <= self._stream.time_ms or due_ms <= self._closed_ms
        # A key is forgotten with its last window: a window that would be removed at once is not opened again.
        return due_ms + grace_ms <= known["time"] or due_ms + self._lasts_ms <= self._stream.time_ms

    def _be_late(
        self, value: Any, key: Any, time_ms: int, late: Sequence[tuple[int, int]], now_ms: int, *, whole: bool
    ) -> None:
        """Counts and tells windows that a message is late for; ``whole`` if it counts in no window at all."""
        spec, on_late = self.spec, self.spec.on_late
        if on_late == "dead-letter":
            if whole:
                raise spec.late(time_ms, now_ms, late[-1][1])
        elif callable(on_late):
            place = self._place
            offset = None if place.offset is None else place.offset()
            for start, end in late:
                by_ms = now_ms - end - spec.closes_ms - spec.grace_ms
                window = (start, end, self._state.name, place.topic, place.partition, offset)
                if on_late(value, key, time_ms, by_ms, *window):
                    _users_log.warning(
                        "late by %d ms for window [%d, %d) of %s: %s", by_ms, *window[:3], shown(time_ms)
                    )
        self.late += len(late)

    def _time_after(self, known: dict[str, Any], time_ms: int) -> int:
        """The key's own time after a message. One that is dated ahead of the worker's clock moves nothing."""
        return max(known["time"], time_ms) if time_ms <= self._stream.cap_ms else int(known["time"])

    def _enter(self, time_ms: int, start: int, end: int, raw_key: bytes) -> None:
        """Writes an entry of the index, and points the state at the message again."""
        state = self._state
        state.message_key = OWN_KEY
        state.set_own(due_key(time_ms, start, end, raw_key), 1)
        state.message_key = raw_key

    # -- with each commit ------------------------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """The next windows to close, in the order of their ends; at most ``limit``. ``closed`` counts them."""
        raise NotImplementedError

    def _due(self, limit: int, time_ms: int) -> list[str]:
        """Entries of the index that are due at this stream time and not closed."""
        before = due_before(time_ms - self.spec.grace_ms)
        return [place for place, _ in state_keys_between(self._state, OWN_KEY, self._closed, before, limit)]

    def due_at(self, time_ms: int) -> bool:
        """Whether a window would close at this stream time."""
        return self._closes and bool(self._due(1, time_ms))

    def closed(self, closing: Closing) -> None:
        """Records that a window is closed: its result is sent, and no message counts in it."""
        self._closed, self._closed_ms = closing.place, due_entry(closing.place).time_ms

    def remove(self, limit: int) -> int:
        """Deletes the next windows whose retention is over, at most ``limit``; returns how many."""
        before_ms = self._stream.time_ms - self._lasts_ms
        if before_ms < 0:
            return 0
        before = due_before(before_ms)
        if self._closes:  # nothing leaves before it is emitted
            before = min(before, f"{self._closed}\x00")
        state, removed = self._state, 0
        for place, _ in state_keys_between(self._state, OWN_KEY, self._removed, before, limit):
            entry = due_entry(place)
            if not self._may_leave(entry):
                break
            if self.rows is not None:
                self.rows.forget(entry)
            state.point_at(entry.message_key, self._stream.time_ms)
            state.delete(window_key(entry.start, entry.end))
            state.point_at(OWN_KEY, self._stream.time_ms)
            state.delete(place)
            self._removed = place
            removed += 1
        state.keep_message()
        return removed

    def _may_leave(self, entry: DueEntry) -> bool:
        """Whether the window of an entry is closed."""
        return True

    def save(self) -> bool:
        """Writes stream time and places into the store; False if they are as committed."""
        stream = self._stream
        record = {
            "format": CLOCK_VERSION,
            "closing": self.spec.closing,
            **stream.record(),
            "closed": self._closed,
            "removed": self._removed,
        }
        if record == self._saved or (self._saved is None and not stream.known):
            return False
        self._pending = record
        self._state.point_at(OWN_KEY, max(stream.time_ms, 0))
        self._state.set(CLOCK, record)
        self._state.keep_message()
        return True

    def load(self) -> Remembered:
        """Reads stream time and places as committed; returns the time, and the times ahead that wait.

        Raises:
            FormatUnknown: They have another format version.
            WindowInvalid: The store's windows are closed by another strategy.
        """
        self._saved = record = self._of(OWN_KEY, CLOCK)
        if record is not None and record.get("format") != CLOCK_VERSION:
            raise unknown_version(f"The clock of store {self._state.name}", record.get("format"), CLOCK_VERSION)
        if record is not None and record["closing"] != self.spec.closing:
            raise WindowInvalid(
                f"The windows of store {self._state.name} are closed by {record['closing']}, and the step has "
                f"`closing_strategy={self.spec.closing!r}`: windows that are open would never close.",
                action="Give the window another `name`, or clear the store before the new version runs.",
                store=self._state.name,
                seen=self.spec.closing,
                expected=record["closing"],
            )
        return self.restore()

    def committed(self) -> None:
        """The commit of the last ``save`` is done."""
        if self._pending is not None:
            self._saved, self._pending = self._pending, None

    def restore(self) -> Remembered:
        """Goes back to the last commit; returns what ``load`` returns."""
        self._pending, record = None, self._saved
        self._closed = self._removed = first_due()
        if record is not None:
            self._closed, self._removed = record["closed"], record["removed"]
        self._closed_ms = NO_TIME if self._closed == first_due() else due_entry(self._closed).time_ms
        return Remembered.of(record)

    def _of(self, message_key: bytes, state_key: str) -> Any:
        self._state.point_at(message_key, max(self._stream.time_ms, 0))
        return self._state.get(state_key)
