"""Sliding windows: one ends at each message of a key, and contains the key's messages up to a length before it.

    messages of a key   ──a────b──────c──►          length ├────────┤
    windows               ├────a
                        ├──────b                    two messages: a, b
                            ├─────────c             two messages: b, c

The store keeps the items that the columns read from the messages, in chunks of time, but no windows: a window is
computed from the items, in time order. So a message costs one write, and reads in proportion to its windows.

Invariants:
    - All windows up to ``closed`` of a key are closed, and those behind it are not.
    - A chunk leaves with a message of its key, once no window that contains it can open or change.
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
from holdfast.processors.engine.windows.stored import Closing, MessagePlace, Result, StoredWindows

CHUNK_VERSION = 1
#: A length has this many chunks, and a grace at most that many.
CHUNKS_OF_LENGTH, CHUNKS_OF_GRACE = 16, 64

#: A message in a chunk: its event time, and the items that the columns read from it, by name.
Item = tuple[int, dict[str, Any]]


class _Key(NamedTuple):
    """The store's record of a key: its own time, the end of its last closed window, and its chunks in order.

    ``ahead`` are event times that the worker's clock has not reached.
    """

    time: int
    closed: int
    chunks: list[list[int]]
    ahead: list[int]

    def after(self, time_ms: int, cap_ms: int) -> _Key:
        """The record after a message; a time ahead of the worker's clock waits."""
        if time_ms <= cap_ms:
            return self._replace(time=max(self.time, time_ms))
        return self._replace(ahead=with_time(self.ahead, time_ms))

    def record(self) -> dict[str, Any]:
        """The record in its stored form."""
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
        """Adds a message to its windows; returns the results to send at once; raises as ``StoredWindows``."""
        spec, state = self.spec, self._state
        if len(raw_key) > self.key_bytes_max:
            raise self._key_too_large(raw_key)
        if time_ms < 0:
            self._stream.check(time_ms, 0)
        state.message_key, state.timestamp_ms = raw_key, time_ms
        stored, known = self._stored_key()
        over = max(known.closed, known.time - spec.grace_ms - 1)  # the end of the last window that accepts no message
        if time_ms <= over:
            window = (max(0, time_ms - spec.duration_ms), time_ms)
            self._be_late(value, key, time_ms, [window], known.time, whole=time_ms + spec.duration_ms <= over)
        results: list[Result] = []
        if time_ms + spec.duration_ms > over:
            known = self._keep(known, (time_ms, spec.aggregation.read(value)))
            # This also runs without a result to send, because a message that a window can't aggregate must fail here.
            updated = self._windows(known, max(time_ms, over + 1), time_ms + spec.duration_ms)
            results = [] if spec.final else updated
        return self._key_moves(stored, known, time_ms) or results

    def _keep(self, known: _Key, item: Item) -> _Key:
        """Adds a message to its chunk, after the messages of the same time."""
        time_ms, chunks = item[0], known.chunks
        at = bisect_right(chunks, [time_ms + 1]) - 1
        if at < 0 or chunks[at][1] <= time_ms:
            # The chunk must not overlap its neighbours, which may have the length of an earlier definition.
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

    def _windows(self, known: _Key, first_ms: int, last_ms: int) -> list[Result]:
        """The windows that end from one time to another, both inclusive, in the order of their ends."""
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
            found.append((aggregation.computed(start, end, inside), start))
        return found

    def _stored_key(self) -> tuple[dict[str, Any] | None, _Key]:
        """The current key's record, stored and parsed; times ahead that the clock has reached count in its time."""
        stored = self._state.get(KEY_TIME)
        if stored is None:
            return None, _Key(NO_TIME, NO_TIME, [], [])
        known = _Key(stored["time"], stored["closed"], stored["chunks"], stored.get("ahead", []))
        if known.ahead and known.ahead[0] <= self._stream.cap_ms:
            reached = bisect_right(known.ahead, self._stream.cap_ms)
            known = known._replace(time=max(known.time, known.ahead[reached - 1]), ahead=known.ahead[reached:])
        return stored, known

    def _key_moves(self, stored: dict[str, Any] | None, known: _Key, time_ms: int) -> Sequence[Result]:
        """Moves the key's own time, closes the windows that it passes, and drops messages that no window needs."""
        known = known.after(time_ms, self._stream.cap_ms)
        results = self._passed(known) if self.spec.final else []
        self._keep_key(stored, known)
        return results

    def _passed(self, known: _Key) -> list[Result]:
        """The windows that the key's time has passed and that are not closed yet."""
        return self._windows(known, known.closed + 1, known.time - self.spec.grace_ms - 1)

    def _keep_key(self, stored: dict[str, Any] | None, known: _Key) -> None:
        """Closes what the key's time has passed, and drops messages that no window needs."""
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

    # -- windows that close when the clock reaches a time that was ahead of it -------------------------------------

    def reached(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Start, end and result of the windows that the time of the key closes; the state points at the key."""
        _, known = self._stored_key()
        return [(start, made["end"], made) for made, start in self._passed(known)]

    def close_one(self, first: int, second: int) -> None:
        """Records that the result of the window that ends at ``second`` is sent."""
        stored, _ = self._stored_key()
        if stored is not None:
            self._state.set(KEY_TIME, {**stored, "closed": max(stored["closed"], second)})

    def reach_key(self) -> None:
        """Records that all returned results are sent."""
        self._keep_key(*self._stored_key())

    # -- each commit: windows close with messages of their key, so there is no index -------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """None."""
        return []

    def due_at(self, time_ms: int) -> bool:
        """Never."""
        return False

    def remove(self, limit: int) -> int:
        """Deletes nothing, because records are only deleted with a message of their key."""
        return 0
