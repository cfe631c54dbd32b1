"""The windows of one step in one task: it takes messages, closes windows, and removes those whose retention is over.

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
from typing import Any, NamedTuple

from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.dataframe.window_spec import WindowInvalid, WindowSpec
from holdfast.processors.engine.state.ranges import state_keys_between
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.stream_time import NO_TIME, StreamTime, shown
from holdfast.processors.engine.state.window_keys import (
    CLOCK,
    KEY_TIME,
    OWN_KEY,
    due_before,
    due_entry,
    due_key,
    first_due,
    window_key,
)

_users_log = logging.getLogger("holdfast.processing")

CLOCK_VERSION = 1
#: A result and the timestamp that it has from here on: the start of its window.
Result = tuple[dict[str, Any], int]
#: No results: most messages of a final window have none.
_NONE: tuple[Result, ...] = ()


class Closing(NamedTuple):
    """A window that is due: its place in the index, its key, and its result; None if it was deleted meanwhile."""

    place: str
    message_key: bytes
    result: dict[str, Any] | None
    start: int


@dataclass(slots=True)
class MessagePlace:
    """Where the current message is in Kafka, for ``on_late``; the task keeps it current."""

    topic: str = ""
    partition: int = -1
    offset: Any = None


class WindowStore:
    """The windows of one step in one task.

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
        self._by_key = spec.closing == "key"
        self._lasts_ms = spec.grace_ms + spec.retention_ms
        self._closed = self._removed = first_due()
        self._closed_ms = NO_TIME
        #: The record of the last commit, and that of the next one.
        self._saved: Any = None
        self._pending: Any = None
        #: Windows that a message came too late for, since the task runs.
        self.late = 0

    # -- with each message -----------------------------------------------------------------------------------------

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int) -> Sequence[Result]:
        """Counts a message in its windows; returns the results to send at once.

        Raises:
            AggregationFailed: The message can't be aggregated.
            EventTimeInvalid: The message has no event time.
            LateMessage: All of its windows are closed, and late messages go by the failure policy.
        """
        spec, state, stream = self.spec, self._state, self._stream
        if time_ms < 0:
            stream.check(time_ms, 0)
        state.message_key, state.timestamp_ms = raw_key, time_ms
        known = (state.get(KEY_TIME) or {"time": NO_TIME, "open": []}) if self._by_key else None
        late: list[int] = []
        updated: list[Result] = []
        opened: list[list[int]] = []
        for start in spec.starts(time_ms):
            end = start + spec.duration_ms
            if self._is_late(end, known):
                late.append(start)
                continue
            place = window_key(start, end)
            held = state.get(place)
            stored = spec.aggregation.folded(held, value, time_ms)
            state.set(place, stored)
            if held is None:
                opened.append([start, end])
            if not spec.final:
                updated.append((spec.aggregation.result(start, end, stored), start))
        if late:
            self._be_late(value, key, time_ms, late, known)
        if known is not None:
            return self._key_moves(known, raw_key, time_ms, opened) or updated
        for start, end in opened:
            self._enter(end, start, end, raw_key)
        return updated

    def _is_late(self, end: int, known: dict[str, Any] | None) -> bool:
        spec = self.spec
        if known is None:
            return end + spec.grace_ms <= self._stream.time_ms or end <= self._closed_ms
        # A key is forgotten with its last window: a window that would be removed at once is not opened again.
        return end + spec.grace_ms <= known["time"] or end + self._lasts_ms <= self._stream.time_ms

    def _be_late(self, value: Any, key: Any, time_ms: int, late: list[int], known: dict[str, Any] | None) -> None:
        spec, on_late = self.spec, self.spec.on_late
        now_ms = self._stream.time_ms if known is None else known["time"]
        if on_late == "dead-letter":
            if len(late) == len(spec.starts(time_ms)):
                raise spec.late(time_ms, now_ms, late[-1])
        elif callable(on_late):
            place = self._place
            offset = None if place.offset is None else place.offset()
            for start in late:
                end = start + spec.duration_ms
                by_ms = now_ms - end - spec.grace_ms
                window = (start, end, self._state.name, place.topic, place.partition, offset)
                if on_late(value, key, time_ms, by_ms, *window):
                    _users_log.warning(
                        "late by %d ms for window [%d, %d) of %s: %s", by_ms, *window[:3], shown(time_ms)
                    )
        self.late += len(late)

    def _key_moves(
        self, known: dict[str, Any], raw_key: bytes, time_ms: int, opened: list[list[int]]
    ) -> Sequence[Result]:
        """Moves the key's own time, and closes the key's windows that it passes; returns the final results."""
        spec, state = self.spec, self._state
        # A message that is dated ahead of the worker's clock closes nothing.
        now_ms = max(known["time"], time_ms) if time_ms <= self._stream.cap_ms else known["time"]
        left = sorted([*known["open"], *opened])
        closing = [each for each in left if each[1] + spec.grace_ms <= now_ms]
        if opened or closing or now_ms != known["time"]:
            state.set(KEY_TIME, {"time": now_ms, "open": [each for each in left if each not in closing]})
        results = []
        for start, end in closing:
            stored = state.get(window_key(start, end))
            if stored is None:
                continue  # a command cleared the key meanwhile
            if spec.final:
                results.append((spec.aggregation.result(start, end, stored), start))
            # Not before the stream time: the index has passed earlier places already.
            self._enter(max(end, self._stream.time_ms), start, end, raw_key)
        return results or _NONE

    def _enter(self, time_ms: int, start: int, end: int, raw_key: bytes) -> None:
        state = self._state
        state.message_key = OWN_KEY
        state.set(due_key(time_ms, start, end, raw_key), 1)
        state.message_key = raw_key

    # -- with each commit ------------------------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """The next windows to close, in the order of their ends; at most ``limit``. ``closed`` counts them."""
        spec = self.spec
        if self._by_key or not spec.final:
            return []
        before = due_before(self._stream.time_ms - spec.grace_ms)
        found = []
        for place, _ in state_keys_between(self._state, OWN_KEY, self._closed, before, limit):
            entry = due_entry(place)
            stored = self._of(entry.message_key, window_key(entry.start, entry.end))
            result = None if stored is None else spec.aggregation.result(entry.start, entry.end, stored)
            found.append(Closing(place, entry.message_key, result, entry.start))
        return found

    def due_at(self, time_ms: int) -> bool:
        """Whether a window would close at this stream time."""
        if self._by_key or not self.spec.final:
            return False
        before = due_before(time_ms - self.spec.grace_ms)
        return bool(state_keys_between(self._state, OWN_KEY, self._closed, before, 1))

    def closed(self, closing: Closing) -> None:
        """Records that a window is closed: its result is sent, and no message counts in it."""
        self._closed, self._closed_ms = closing.place, due_entry(closing.place).time_ms

    def remove(self, limit: int) -> int:
        """Deletes the next windows whose retention is over, at most ``limit``; returns how many."""
        before_ms = self._stream.time_ms - self._lasts_ms
        if before_ms < 0:
            return 0
        before = due_before(before_ms)
        if self.spec.final and not self._by_key:  # nothing leaves before it is emitted
            before = min(before, f"{self._closed}\x00")
        state, found = self._state, state_keys_between(self._state, OWN_KEY, self._removed, before, limit)
        for place, _ in found:
            entry = due_entry(place)
            state.point_at(entry.message_key, self._stream.time_ms)
            state.delete(window_key(entry.start, entry.end))
            state.point_at(OWN_KEY, self._stream.time_ms)
            state.delete(place)
            self._removed = place
        state.keep_message()
        return len(found)

    def save(self) -> bool:
        """Writes stream time and places into the store; False if they are as committed."""
        stream = self._stream
        record = {
            "format": CLOCK_VERSION,
            "closing": self.spec.closing,
            "time": stream.time_ms,
            "ahead": list(stream.ahead),
            "closed": self._closed,
            "removed": self._removed,
        }
        if record == self._saved or (self._saved is None and stream.time_ms == NO_TIME and not stream.ahead):
            return False
        self._pending = record
        self._state.point_at(OWN_KEY, max(stream.time_ms, 0))
        self._state.set(CLOCK, record)
        self._state.keep_message()
        return True

    def load(self) -> tuple[int, Sequence[int]]:
        """Reads stream time and places as committed; returns the time, and the times ahead that wait.

        Raises:
            FormatUnknown: They have another format version.
            WindowInvalid: The store's windows are closed by another strategy.
        """
        self._saved = record = self._of(OWN_KEY, CLOCK)
        if record is not None and record.get("format") != CLOCK_VERSION:
            raise FormatUnknown(
                f"The clock of store {self._state.name} has format version {record.get('format')}, expected "
                f"{CLOCK_VERSION}.",
                action="Run the Holdfast version that wrote it, or a newer version.",
                version=record.get("format"),
            )
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

    def restore(self) -> tuple[int, Sequence[int]]:
        """Goes back to the last commit; returns what ``load`` returns."""
        self._pending, record = None, self._saved
        self._closed = self._removed = first_due()
        if record is not None:
            self._closed, self._removed = record["closed"], record["removed"]
        self._closed_ms = NO_TIME if self._closed == first_due() else due_entry(self._closed).time_ms
        return (NO_TIME, ()) if record is None else (record["time"], record["ahead"])

    def _of(self, message_key: bytes, state_key: str) -> Any:
        self._state.point_at(message_key, max(self._stream.time_ms, 0))
        return self._state.get(state_key)
