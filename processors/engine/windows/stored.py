"""Base class of the windows by time (not by count) of one step in one task.

The class keeps the stream time of the windows and their index by time, and closes the windows.

``state.window_keys`` defines the records of a window store. All records are ordinary state of the step's store.
Changelog, checkpoint, restore, standby, audit, clear and snapshot therefore need no special code for windows.

    stream time ──► removed ───────── closed ───────── due ──────────────► open windows
    windows          deleted from     result sent      accept no message,
                     the store        once, readable   the next commit sends them

``closed`` and ``removed`` are positions in the index by time, and are committed with the offsets. A commit moves each
position by a limited number of windows. If a million windows end at once, many commits of normal length close them.

Invariants:
    - The result of a window is sent once, in the transaction that moves the position ``closed`` past the window.
    - Whether a message is late depends on committed state and on earlier messages, not on when commits happened.
    - A closed window stays closed, even if the window is later declared with a longer grace or retention. The time
      ``over`` in the stream time's record ensures this.
    - No window opens at or before ``closed``. No index entry is written at or before ``removed``.
    - Each open or closed window in the store has an index entry. A window is therefore deleted in time, even if its key
      gets no more messages. The record of a key is deleted with the key's last entry.
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

#: Maximum bytes of the record with stream time, without the message keys in the positions ``closed`` and ``removed``.
#: The record also contains watermarks of upstream tasks and future event times.
CLOCK_BYTES = 32_768
#: The format version in which the record of stream time is written, and the format versions that can be read. Format 1
#: has no field ``over`` (the time up to which windows are closed) and no kind of windows. With it, all open windows of
#: a key are in one record.
CLOCK_VERSION, CLOCK_VERSIONS = 2, (1, 2)
#: A result, and the event time that it has for later steps: the start of its window.
Result = tuple[dict[str, Any], int]


class OwedResult(NamedTuple):
    """A result that earlier messages made, and that the current message sends, for example because it closes a window.

    If a later step raises an error for this result, only the result fails, and not the message (``ResultsAside``).
    """

    result: dict[str, Any]
    start: int


class Closing(NamedTuple):
    """A window that is due: its index entry, its message key, and its result (None if no result is sent)."""

    place: str
    message_key: bytes
    result: dict[str, Any] | None
    start: int


class Taker(Protocol):
    """An object to which messages can be added: the windows of one step."""

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows and returns the results to send now."""


class Closes(Protocol):
    """An object that has due results. A commit requests these results and sends them."""

    def closing(self, limit: int) -> list[Closing]:
        """Returns the next due results, at most ``limit``, in the order of their index entries."""

    def closed(self, closing: Closing) -> None:
        """Tells this object that all results up to ``closing`` were sent, so that it does not return them again."""


@dataclass(slots=True)
class MessagePlace:
    """Topic, partition and offset of the current message, for ``on_late`` functions. The task updates this object."""

    topic: str = ""
    partition: int = -1
    offset: Any = None


class WindowRows(Protocol):
    """Windows whose values are in numpy arrays between commits."""

    def results(self, entries: Sequence[DueEntry]) -> Sequence[dict[str, Any] | None]:
        """Returns the results of the windows of these index entries; None for a window that is not in the arrays."""

    def forget(self, entry: DueEntry) -> None:
        """Drops a window from the arrays after it was deleted from the store."""


class AheadKeys(Closes, Protocol):
    """Closes windows of keys with event times after the worker's clock, when the clock reaches these times."""

    def enter(self, time_ms: int, raw_key: bytes) -> None:
        """Writes an index entry, so that the key is checked when the worker's clock reaches ``time_ms``."""

    def restart(self) -> None:
        """Must be called after an aborted transaction or a command: the next search starts at the first index entry."""


class StoredWindows:
    """The windows of one step in one task. A subclass for each kind of window adds messages and finds due windows.

    Args:
        spec: The declaration.
        state: The store of the step; no other step uses it.
        stream: The stream time of the task.
        place: Topic, partition and offset of the current message.
    """

    def __init__(self, spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> None:
        self.spec = spec
        self._state = state
        self._stream = stream
        self._place = place
        #: Maximum bytes of a message key. The record of stream time has two positions, each with a key in hex. Both
        #: keys must fit into the record.
        self.key_bytes_max = (state.record_bytes_max - min(CLOCK_BYTES, state.record_bytes_max // 4)) // 4
        self._by_key = spec.closing == "key"
        #: Whether commits close windows and send their results. If True, a window is deleted only after a commit has
        #: closed it.
        self._closes = spec.final
        self._lasts_ms = spec.grace_ms + spec.retention_ms
        #: Whether stream time alone closes windows. This is so for windows declared with ``current()``: each message
        #: has sent their results already, so no commit has to send them.
        self._passes = not spec.final and not self._by_key and spec.kind in ("tumbling", "hopping")
        #: Milliseconds from a window's end until stream time closes it. With closing strategy ``key``, messages of the
        #: window's key usually close it earlier.
        self._after_ms = self._lasts_ms if self._by_key else spec.grace_ms
        self._closed = self._removed = first_due()
        self._over_ms = NO_TIME
        #: The record of stream time: as it was last committed (``_saved``), and as the next commit will write it
        #: (``_pending``).
        self._saved: Any = None
        self._pending: Any = None
        #: The number of late windows since the start of the task. A window is late each time a message comes after its
        #: close.
        self.late = 0
        #: The windows that are in numpy arrays; None if all messages are processed one by one.
        self.rows: WindowRows | None = None
        #: Closes windows of keys with event times after the worker's clock, when the clock reaches these times. None if
        #: such times close no windows.
        self.keys_ahead: AheadKeys | None = None
        state.scattered = (*INDEXES, OPENS)
        #: The method with which a window's value is stored.
        self._set = state.set_own if spec.aggregation.plain else state.set

    @property
    def over_ms(self) -> int:
        """Milliseconds. All windows that were due at or before this time (without the grace) are closed.

        This also holds for windows of earlier declarations, for example with a shorter grace.
        """
        return self._over_ms

    # -- methods called with each message --------------------------------------------------------------------------

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows and returns the results to send now.

        Raises:
            AggregationFailed: The message can't be aggregated.
            EventTimeInvalid: The message has no event time.
            LateMessage: All windows of the message are closed, and ``on_late`` is ``dead-letter``.
        """
        raise NotImplementedError

    def _key_too_large(self, raw_key: bytes) -> RecordTooLarge:
        """Returns the error for a message whose key is too long for the record of stream time.

        Only this message fails.
        """
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
        """Whether the window that is due (without grace) at ``due_ms`` is closed.

        ``known`` is the record of the window's key. The largest event time in it may close the window, too.
        ``known`` is None if only stream time closes the window.
        """
        if is_closed(due_ms, self._after_ms, self._stream.ends_ms, self._over_ms):
            return True
        return known is not None and self._is_closed(due_ms, known)

    def _is_closed(self, due_ms: int, known: KeyTime) -> bool:
        """Whether the largest event time in the key's record (``known``) has closed the window due at ``due_ms``."""
        closed: bool = is_closed(due_ms, self.spec.grace_ms, known.time, known.closed)
        return closed

    def _be_late(
        self, value: Any, key: Any, time_ms: int, late: Sequence[tuple[int, int]], now_ms: int, *, whole: bool
    ) -> None:
        """Counts and reports the windows for which a message is late.

        ``whole`` is True if all windows of the message are closed.
        """
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
        """Reads the record of the current key, and applies future event times that the worker's clock has reached."""
        known = KeyTime(self._state.get(KEY_TIME))
        known.reach(self._stream.cap_ms)
        return known

    def _keep_time(self, known: KeyTime) -> None:
        """Stores the key's ``KeyTime`` record (its largest event time and open windows) if it has changed.

        Deletes the record if the key has no open windows and no future event times. With closing strategy ``key``, the
        largest event time must also be older than the retention.
        """
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
        """Writes an index entry for a window at ``time_ms``. Then sets ``raw_key`` as the store's current key again."""
        state = self._state
        state.message_key = OWN_KEY
        state.set_own(due_key(time_ms, start, end, raw_key), 1)
        state.message_key = raw_key

    @property
    def _first_ms(self) -> int:
        """The minimum time of a new index entry.

        A commit would never read an earlier entry, because commits have already passed its time.
        """
        return max(self._over_ms, self._stream.ends_ms - self._after_ms) + 1

    def reached(self) -> Sequence[tuple[int, int, dict[str, Any] | None]]:
        """Returns the current key's windows that the largest event time of this key closes.

        Each item has two numbers that identify the window, and the window's result.
        """
        raise NotImplementedError

    def close_one(self, first: int, second: int) -> None:
        """Closes one window. The caller has sent the result of this window before.

        The arguments are the two numbers that ``reached`` returned for the window.
        """
        raise NotImplementedError

    def reach_key(self) -> None:
        """Stores the key's record. The caller has sent all results that ``reached`` returned before."""
        raise NotImplementedError

    # -- methods called with each commit ---------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """Returns at most ``limit`` windows that are due, sorted by end.

        The caller sends their results, and passes each of them to ``closed``.
        """
        raise NotImplementedError

    def _due(self, limit: int, time_ms: int) -> list[str]:
        """Returns at most ``limit`` index entries of windows that are due at ``time_ms`` and not closed yet."""
        if time_ms < self._after_ms:
            return []
        before = due_before(time_ms - self._after_ms)
        return [place for place, _ in state_keys_between(self._state, OWN_KEY, self._closed, before, limit)]

    def due_at(self, time_ms: int) -> bool:
        """Whether a window would close if stream time were ``time_ms``."""
        return self._closes and bool(self._due(1, time_ms))

    def closed(self, closing: Closing) -> None:
        """Marks a window as closed. Must be called after its result was sent; it then accepts no more messages."""
        self._closed = closing.place

    def remove(self, limit: int) -> int:
        """Deletes windows whose retention has ended, at most ``limit``, and returns their number."""
        before_ms = self._stream.time_ms - self._lasts_ms
        if before_ms < 0:
            return 0
        before = due_before(before_ms)
        if self._closes:  # A window is not deleted before its result is sent.
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
        """Whether the window of an index entry may be deleted, because it is closed."""
        return True

    def _leaves(self, entry: DueEntry) -> None:
        """Updates the key's record after a window was deleted.

        If the deleted window was the key's last window, deletes the record.

        Afterwards, the window's key is the store's current key.
        """
        self._keep_time(self._of_key())

    def save(self) -> bool:
        """Writes stream time and the positions ``closed`` and ``removed`` into the store.

        Returns False if nothing has changed.
        """
        stream = self._stream
        if stream.time_ms != NO_TIME:
            self._over_ms = max(self._over_ms, stream.ends_ms - self._after_ms)
        if self._passes and self._over_ms >= 0:
            # The next version of the processor may be declared with ``final()``, which sends a result when a window
            # closes. It must not send the results of these windows again.
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
        """Reads the committed stream time and positions.

        Returns the stream time, and event times after the worker's clock.

        Raises:
            FormatUnknown: The record has another format version.
            WindowInvalid: The store has windows with another closing strategy, or windows of a kind that is stored in
                another format.
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
        """Must be called after each commit. The record that ``save`` wrote is then the last committed record."""
        if self._pending is not None:
            self._saved, self._pending = self._pending, None

    def restore(self) -> Remembered:
        """Must be called after an aborted transaction. Resets stream time and positions to the last commit.

        Returns the stream time, and event times after the worker's clock, as ``load`` does.
        """
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
