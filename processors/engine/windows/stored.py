"""The common parts of all kinds of windows of one step in one task: their clock, their index, their end.

``state.window_keys`` defines the records of a window store; all of them are ordinary state of the step's store. So
changelog, checkpoint, restore, standby, audit, clear and snapshot need no special code for them.

    stream time ──► removed ───────── closed ───────── due ──────────────► open windows
    of windows       gone from         emitted once,    no message counts,
                     the store         readable         emitted by the next commit

``closed`` and ``removed`` are places in the index by time, committed with the offsets. A commit moves each of them by a
bounded number of windows. So the cost is proportional to the closing windows, and a million windows that end at once
become many commits of the usual length.

Invariants:
    - A window is emitted in the transaction that moves ``closed`` past it: once.
    - Whether a message is late follows from committed state and the messages before it, not from when a commit was.
    - A window that is closed stays closed, whatever a later definition says of its grace or retention: ``over``.
    - Nothing is opened at or before ``closed``, and no entry of the index is written at or before ``removed``.
    - A window has an entry in the index as long as it is in the store, open or closed. So it leaves, also if its key
      gets no more messages. What the store knows of a key leaves with the last entry of the key.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.processors.engine.aggregates.key_time import KeyTime
from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.record_size import RecordTooLarge
from holdfast.processors.engine.state.ranges import state_keys_between
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import NO_TIME, Remembered, StreamTime, shown
from holdfast.processors.engine.state.time.window_keys import (
    CLOCK,
    INDEXES,
    KEY_TIME,
    OPENS,
    OWN_KEY,
    DueEntry,
    due_before,
    due_entry,
    due_key,
    first_due,
    last_due,
    window_key,
)
from holdfast.processors.engine.windows.bounds import closed_upto, is_closed
from holdfast.processors.engine.windows.spec import WindowInvalid, WindowSpec

_users_log = logging.getLogger("holdfast.processing")

#: Maximum bytes of the record of a clock without message keys: times of upstream tasks, times ahead.
CLOCK_BYTES = 32_768
#: Version 1 had no ``over`` and no kind, and all open windows of a key in one record. It is still read, and written in
#: the new form.
CLOCK_VERSION, CLOCK_VERSIONS = 2, (1, 2)
#: A result and its timestamp for the next steps: the start of its window.
Result = tuple[dict[str, Any], int]


class Closing(NamedTuple):
    """A due window: its place in the index, its key, and its result; None if there is nothing to send."""

    place: str
    message_key: bytes
    result: dict[str, Any] | None
    start: int


class Taker(Protocol):
    """A window that accepts messages."""

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows; returns the results to send at once."""


class Closes(Protocol):
    """An object with results that become due by time."""

    def closing(self, limit: int) -> list[Closing]:
        """The next results that are due, at most ``limit``, in the order of their places."""

    def closed(self, closing: Closing) -> None:
        """Records that all results up to this one are sent."""


@dataclass(slots=True)
class MessagePlace:
    """The place of the current message in Kafka, for ``on_late``; the task updates it."""

    topic: str = ""
    partition: int = -1
    offset: Any = None


class WindowRows(Protocol):
    """Windows that columns hold between commits."""

    def results(self, entries: Sequence[DueEntry]) -> Sequence[dict[str, Any] | None]:
        """The results of windows, by their entries in the index by time; None for a window that columns don't hold."""

    def forget(self, entry: DueEntry) -> None:
        """Called when a window is deleted."""


class AheadKeys(Closes, Protocol):
    """Checks keys again whose times are ahead of the worker's clock."""

    def enter(self, time_ms: int, raw_key: bytes) -> None:
        """Schedules a check of a key at this time."""

    def restart(self) -> None:
        """Called when uncommitted work is dropped, or the store was changed."""


class StoredWindows:
    """The windows of one step in one task; a subclass for each kind adds messages and finds due windows.

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
        #: Whether commits close windows, so that nothing is deleted before.
        self._closes = spec.final
        self._lasts_ms = spec.grace_ms + spec.retention_ms
        #: Whether stream time closes windows without sending a result then.
        self._passes = not spec.final and not self._by_key and spec.kind in ("tumbling", "hopping")
        #: How long after its due time stream time closes a window. Its key's time may close it earlier.
        self._after_ms = self._lasts_ms if self._by_key else spec.grace_ms
        self._closed = self._removed = first_due()
        self._over_ms = NO_TIME
        #: The record of the last commit, and that of the next one.
        self._saved: Any = None
        self._pending: Any = None
        #: Windows that messages were too late for, since the task started.
        self.late = 0
        #: The windows by columns; None if messages are only processed one by one.
        self.rows: WindowRows | None = None
        #: Finds keys whose times ahead the clock has reached; None if such a time closes no window.
        self.keys_ahead: AheadKeys | None = None
        state.scattered = (*INDEXES, OPENS)
        #: Sets a record of a window.
        self._set = state.set_own if spec.aggregation.plain else state.set

    @property
    def over_ms(self) -> int:
        """Windows that are due up to this time, without grace, are closed, including those of earlier definitions."""
        return self._over_ms

    # -- with each message -----------------------------------------------------------------------------------------

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows; returns the results to send at once.

        Raises:
            AggregationFailed: The message can't be aggregated.
            EventTimeInvalid: The message has no event time.
            LateMessage: All of its windows are closed, and late messages go by the failure policy.
        """
        raise NotImplementedError

    def _key_too_large(self, raw_key: bytes) -> RecordTooLarge:
        """The error for a message whose key would make a commit too large: only this message fails."""
        return RecordTooLarge(
            f"The key of the message has {len(raw_key):,} bytes; windows of store {self._state.name!r} take keys of "
            f"{self.key_bytes_max:,} bytes. Their clock has two keys in hex in one record.",
            action="Make the key shorter, or raise `max.message.bytes` of the changelog and `message.max.bytes` in "
            "`producer_extra_config`.",
            store=self._state.name,
            seen=len(raw_key),
            expected=self.key_bytes_max,
        )

    def _is_late(self, due_ms: int, known: KeyTime | None) -> bool:
        """Whether a window that is due, without its grace, at this time is closed.

        ``known`` is the record of its key.
        """
        if is_closed(due_ms, self._after_ms, self._stream.ends_ms, self._over_ms):
            return True
        return known is not None and self._is_closed(due_ms, known)

    def _is_closed(self, due_ms: int, known: KeyTime) -> bool:
        """Whether the time of its key has closed a window that is due at this time."""
        closed: bool = is_closed(due_ms, self.spec.grace_ms, known.time, known.closed)
        return closed

    def _be_late(
        self, value: Any, key: Any, time_ms: int, late: Sequence[tuple[int, int]], now_ms: int, *, whole: bool
    ) -> None:
        """Counts and reports the windows that a message is late for; ``whole`` if it is late for all windows."""
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

    def _of_key(self) -> KeyTime:
        """The record of the current key; times ahead that the worker's clock has reached count in its time."""
        known = KeyTime(self._state.get(KEY_TIME))
        known.reach(self._stream.cap_ms)
        return known

    def _keep_time(self, known: KeyTime) -> None:
        """Stores the record of the key if it changed, or deletes it if an absent record means the same."""
        state, stored = self._state, known.stored
        if self._by_key:
            known.closed = closed_upto(self.spec.grace_ms, known.time, known.closed)
        nothing = not known.open and known.more is None and not known.ahead
        if nothing and (not self._by_key or known.time + self.spec.retention_ms <= self._stream.time_ms):
            if stored is not None:
                state.delete(KEY_TIME)
            return
        record = known.record(by_key=self._by_key)
        if record == stored:
            return
        state.set_own(KEY_TIME, record)
        if self.keys_ahead is not None and known.ahead:
            entered = None if stored is None else stored.get("ahead")
            if not entered or entered[0] != known.ahead[0]:
                self.keys_ahead.enter(known.ahead[0], state.message_key)

    def _enter(self, time_ms: int, start: int, end: int, raw_key: bytes) -> None:
        """Writes an entry of the index, and points the state at the message again."""
        state = self._state
        state.message_key = OWN_KEY
        state.set_own(due_key(time_ms, start, end, raw_key), 1)
        state.message_key = raw_key

    @property
    def _first_ms(self) -> int:
        """The least time of an entry that commits have not passed."""
        return max(self._over_ms, self._stream.ends_ms - self._after_ms) + 1

    def reached(self) -> Sequence[tuple[int, int, dict[str, Any] | None]]:
        """As in ``OwnTimes``."""
        raise NotImplementedError

    def close_one(self, first: int, second: int) -> None:
        """As in ``OwnTimes``."""
        raise NotImplementedError

    def reach_key(self) -> None:
        """As in ``OwnTimes``."""
        raise NotImplementedError

    # -- with each commit ------------------------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """The next windows to close, in the order of their ends; at most ``limit``. ``closed`` counts them."""
        raise NotImplementedError

    def _due(self, limit: int, time_ms: int) -> list[str]:
        """Index entries that are due at this stream time and not closed."""
        if time_ms < self._after_ms:
            return []
        before = due_before(time_ms - self._after_ms)
        return [place for place, _ in state_keys_between(self._state, OWN_KEY, self._closed, before, limit)]

    def due_at(self, time_ms: int) -> bool:
        """Whether a window would close at this stream time."""
        return self._closes and bool(self._due(1, time_ms))

    def closed(self, closing: Closing) -> None:
        """Records that a window is closed: its result is sent, and it accepts no further message."""
        self._closed = closing.place

    def remove(self, limit: int) -> int:
        """Deletes the next windows whose retention has ended, at most ``limit``; returns how many."""
        before_ms = self._stream.time_ms - self._lasts_ms
        if before_ms < 0:
            return 0
        before = due_before(before_ms)
        if self._closes:  # nothing is deleted before it is emitted
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
            if self._by_key:
                self._leaves(entry)
            state.point_at(OWN_KEY, self._stream.time_ms)
            state.delete(place)
            self._removed = place
            removed += 1
        state.keep_message()
        return removed

    def _may_leave(self, entry: DueEntry) -> bool:
        """Whether the window of an entry is closed."""
        return True

    def _leaves(self, entry: DueEntry) -> None:
        """Removes a window from the open ones, and the key after its last window; leaves the state at the key."""
        self._keep_time(self._of_key())

    def save(self) -> bool:
        """Writes stream time and places into the store; False if they are as committed."""
        stream = self._stream
        if stream.time_ms != NO_TIME:
            self._over_ms = max(self._over_ms, stream.ends_ms - self._after_ms)
        if self._passes and self._over_ms >= 0:
            # A later version that sends windows at their close does not send windows that are closed already.
            self._closed = max(self._closed, last_due(self._over_ms))
        record = {
            "format": CLOCK_VERSION,
            "kind": self.spec.kept_as,
            "closing": self.spec.closing,
            **stream.record(),
            "closed": self._closed,
            "removed": self._removed,
            "over": self._over_ms,
        }
        if record == self._saved or (self._saved is None and not stream.known):
            return False
        self._pending = record
        self._state.point_at(OWN_KEY, max(stream.time_ms, 0))
        self._state.set(CLOCK, record)
        self._state.keep_message()
        return True

    def load(self) -> Remembered:
        """Reads the committed stream time and places; returns the time, and the waiting times ahead.

        Raises:
            FormatUnknown: They have another format version.
            WindowInvalid: The store has windows of another strategy, or of a kind with another stored form.
        """
        self._saved = record = self._of(OWN_KEY, CLOCK)
        if record is not None:
            if record.get("format") not in CLOCK_VERSIONS:
                raise unknown_version(f"The clock of store {self._state.name}", record.get("format"), CLOCK_VERSION)
            self._check_kept(record)
        return self.restore()

    def _check_kept(self, record: dict[str, Any]) -> None:
        name, spec = self._state.name, self.spec
        kept, closing = record.get("kind", spec.kept_as), record["closing"]
        if kept != spec.kept_as:
            seen, expected, what = str(spec.kind), kept, f"are {kept} windows, and the step makes {spec.kind} windows"
        elif closing != spec.closing:
            seen, expected = str(spec.closing), closing
            what = f"are closed by {closing}, and the step has `closing_strategy={seen!r}`"
        else:
            return
        raise WindowInvalid(
            f"The windows of store {name} {what}: windows that are open would never close.",
            action="Give the window another `name`, or clear the store before the new version runs.",
            store=name,
            seen=seen,
            expected=expected,
        )

    def committed(self) -> None:
        """The commit of the last ``save`` is done."""
        if self._pending is not None:
            self._saved, self._pending = self._pending, None

    def restore(self) -> Remembered:
        """Returns to the last commit; returns the same as ``load``."""
        self._pending, record = None, self._saved
        self._closed = self._removed = first_due()
        if record is not None:
            self._closed, self._removed = record["closed"], record["removed"]
        closed_ms = NO_TIME if self._closed == first_due() else due_entry(self._closed).time_ms
        self._over_ms = closed_ms if record is None else record.get("over", closed_ms)
        if self.keys_ahead is not None:
            self.keys_ahead.restart()
        return Remembered.of(record)

    def _of(self, message_key: bytes, state_key: str) -> Any:
        self._state.point_at(message_key, max(self._stream.time_ms, 0))
        return self._state.get(state_key)
