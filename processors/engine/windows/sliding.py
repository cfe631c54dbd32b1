"""Sliding windows: one window ends at each message of a key, and contains the key's messages of a fixed time before it.

    messages of a key   ──a────b──────c──►          length ├────────┤
    windows               ├────a
                        ├──────b                    two messages: a, b
                            ├─────────c             two messages: b, c

The store contains no windows. It contains the items that the columns read from the messages, in chunks of time. A
window is computed from these items in time order. A message therefore costs one write. The more messages are in its
windows, the more reads a message costs.

Invariants:
    - All windows of a key that end at or before the key's time ``closed`` are closed. All windows that end later are
      open.
    - A later message of the key deletes a chunk as soon as no window with the chunk's messages can open or change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.processors.engine.aggregates.key_time import with_time
from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime
from holdfast.processors.engine.state.time.window_keys import KEY_TIME, chunk_key
from holdfast.processors.engine.windows.bounds import closed_upto
from holdfast.processors.engine.windows.spec import WindowSpec
from holdfast.processors.engine.windows.stored import Closing, MessagePlace, OwedResult, Result, StoredWindows

CHUNK_VERSION = 1
#: Number of chunks into which the length of a window is split, and maximum number of further chunks for the grace.
CHUNKS_OF_LENGTH, CHUNKS_OF_GRACE = 16, 64

#: A message in a chunk: its event time, and for each column's name the item that the column read from the message.
Item = tuple[int, dict[str, Any]]


class _Key(NamedTuple):
    """The record of a message key: its largest event time, the end of its last closed window, and its sorted chunks.

    ``ahead`` has the event times that the worker's clock has not reached yet.
    """

    time: int
    closed: int
    chunks: list[list[int]]
    ahead: list[int]

    def after(self, time_ms: int, cap_ms: int) -> _Key:
        """Returns the record after a message with the event time ``time_ms``.

        If this time is after ``cap_ms``, the time of the worker's clock, it is added to ``ahead``.
        """
        if time_ms <= cap_ms:
            return self._replace(time=max(self.time, time_ms))
        return self._replace(ahead=with_time(self.ahead, time_ms))

    def record(self) -> dict[str, Any]:
        """Returns the stored form of the record."""
        made = self._asdict()
        if not self.ahead:
            del made["ahead"]
        return made


class SlidingStore(StoredWindows):
    """The sliding windows of one step in one task."""

    def __init__(self, spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> None:
        super().__init__(spec, state, stream, place)
        self._chunk_ms = max(1, spec.duration_ms // CHUNKS_OF_LENGTH, spec.grace_ms // CHUNKS_OF_GRACE)

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows and returns the results to send now.

        Raises the errors of ``StoredWindows.take``.
        """
        spec, state = self.spec, self._state
        if len(raw_key) > self.key_bytes_max:
            raise self._key_too_large(raw_key)
        if time_ms < 0:
            self._stream.check(time_ms, 0)
        state.message_key, state.timestamp_ms = raw_key, time_ms
        stored, known = self._stored_key()
        over = max(known.closed, known.time - spec.grace_ms - 1)  # the end of the last closed window
        if time_ms <= over:
            window = (max(0, time_ms - spec.duration_ms), time_ms)
            self._be_late(value, key, time_ms, [window], known.time, whole=time_ms + spec.duration_ms <= over)
        results: list[Result] = []
        if time_ms + spec.duration_ms > over:
            known = self._keep(known, (time_ms, spec.aggregation.read(value)))
            # The windows are computed even if no result is sent now. If this message can't be aggregated, it then fails
            # itself. Otherwise, a later message would fail.
            updated = self._windows(known, max(time_ms, over + 1), time_ms + spec.duration_ms)
            results = [] if spec.final else updated
        return self._key_moves(stored, known, time_ms) or results

    def _keep(self, known: _Key, item: Item) -> _Key:
        """Inserts a message into its chunk, after all messages of the same event time."""
        time_ms, chunks = item[0], known.chunks
        at = bisect_right(chunks, [time_ms + 1]) - 1
        if at < 0 or chunks[at][1] <= time_ms:
            # An earlier declaration of the windows may have left chunks of another length. The new chunk therefore
            # covers only the time between the chunk before it and the chunk after it.
            start = time_ms // self._chunk_ms * self._chunk_ms
            before = chunks[at][1] if at >= 0 else 0
            after = chunks[at + 1][0] if at + 1 < len(chunks) else start + self._chunk_ms
            at += 1
            chunks = [*chunks[:at], [max(start, before), min(start + self._chunk_ms, after)], *chunks[at:]]
        items = self._items(chunks[at])
        items.insert(bisect_right([each[0] for each in items], time_ms), item)
        self._state.set(chunk_key(*chunks[at]), {"format": CHUNK_VERSION, "items": items})
        return known._replace(chunks=chunks)

    def _items(self, chunk: Sequence[int]) -> list[Item]:
        stored = self._state.get(chunk_key(*chunk))
        if stored is None:
            return []
        if stored.get("format") != CHUNK_VERSION:
            what = f"A record of messages in store {self._state.name}"
            raise unknown_version(what, stored.get("format"), CHUNK_VERSION)
        return [(time_ms, item) for time_ms, item in stored["items"]]

    def _windows(self, known: _Key, first_ms: int, last_ms: int, *, closes: bool = False) -> list[Result]:
        """Returns the results of all windows that end from ``first_ms`` to ``last_ms`` (inclusive), sorted by end.

        ``closes`` is True if these windows close now. An error then fails only the result, not the current message.
        """
        if first_ms > last_ms:
            return []
        length_ms, aggregation = self.spec.duration_ms, self.spec.aggregation
        asked = [each for each in known.chunks if each[1] > first_ms - length_ms and each[0] <= last_ms]
        items = [item for chunk in asked for item in self._items(chunk)]
        times = [item[0] for item in items]
        found = []
        for end in sorted({time_ms for time_ms in times if first_ms <= time_ms <= last_ms}):
            start = max(0, end - length_ms)
            inside = items[bisect_right(times, start - 1) : bisect_right(times, end)]
            if not self.spec.final:
                found.append((aggregation.computed(start, end, inside), start))
            else:
                found.append(OwedResult(aggregation.computed_due(start, end, inside, closes=closes), start))
        return found

    def _stored_key(self) -> tuple[dict[str, Any] | None, _Key]:
        """Returns the record of the current key twice: as it is stored, and parsed.

        The stored ``ahead`` has event times that were after the worker's clock. If the clock has reached such a time by
        now, the parsed record no longer has it in ``ahead``, and the key's stream time is advanced by it.
        """
        stored = self._state.get(KEY_TIME)
        if stored is None:
            return None, _Key(NO_TIME, NO_TIME, [], [])
        known = _Key(stored["time"], stored["closed"], stored["chunks"], stored.get("ahead", []))
        if known.ahead and known.ahead[0] <= self._stream.cap_ms:
            reached = bisect_right(known.ahead, self._stream.cap_ms)
            known = known._replace(time=max(known.time, known.ahead[reached - 1]), ahead=known.ahead[reached:])
        return stored, known

    def _key_moves(self, stored: dict[str, Any] | None, known: _Key, time_ms: int) -> Sequence[Result]:
        """Updates the key's largest event time, closes the windows that have ended by then, and returns their results.

        With ``current()``, returns no results. Messages that no later window needs are dropped.
        """
        known = known.after(time_ms, self._stream.cap_ms)
        results = self._passed(known) if self.spec.final else []
        self._keep_key(stored, known)
        return results

    def _passed(self, known: _Key) -> list[Result]:
        """Returns the results of windows that the key's largest event time closes and that are not closed yet."""
        return self._windows(known, known.closed + 1, known.time - self.spec.grace_ms - 1, closes=True)

    def _keep_key(self, stored: dict[str, Any] | None, known: _Key) -> None:
        """Stores the key's record.

        Closes the windows up to the key's largest event time, and deletes the chunks that no later window needs.
        """
        closed = closed_upto(self.spec.grace_ms, known.time - 1, known.closed)
        keeps_from = closed + 1 - self.spec.duration_ms
        gone = [chunk for chunk in known.chunks if chunk[1] <= keeps_from]
        for chunk in gone:
            self._state.delete(chunk_key(*chunk))
        made = known._replace(closed=closed, chunks=known.chunks[len(gone) :]).record()
        if made == stored:
            return
        self._state.set(KEY_TIME, made)
        if self.keys_ahead is not None and known.ahead:
            entered = None if stored is None else stored.get("ahead")
            if not entered or entered[0] != known.ahead[0]:
                self.keys_ahead.enter(known.ahead[0], self._state.message_key)

    # -- windows that close when the worker's clock reaches a future event time ------------------------------------

    def reached(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Returns the current key's windows that the key's largest event time closes: start, end and result of each."""
        _, known = self._stored_key()
        return [(start, made["end"], made) for made, start in self._passed(known)]

    def close_one(self, first: int, second: int) -> None:
        """Closes the window that ends at ``second``. The caller has sent the result of this window before."""
        stored, _ = self._stored_key()
        if stored is not None:
            self._state.set(KEY_TIME, {**stored, "closed": max(stored["closed"], second)})

    def reach_key(self) -> None:
        """Stores the key's record. The caller has sent all results that ``reached`` returned before."""
        self._keep_key(*self._stored_key())

    # -- methods called with each commit; they do nothing, because only messages of a key close its windows ---------

    def closing(self, limit: int) -> list[Closing]:
        """Returns nothing, because only messages of a key close its windows."""
        return []

    def due_at(self, time_ms: int) -> bool:
        """Always False, because only messages of a key close its windows."""
        return False

    def remove(self, limit: int) -> int:
        """Deletes nothing. Chunks are deleted when a message of their key arrives, and not at a commit."""
        return 0
