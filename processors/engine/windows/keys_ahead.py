"""Closes windows of keys that have event times after the worker's clock, as soon as the clock reaches these times.

Example::

    worker's clock   ──┬─────────────┬──►
                       │             └ the clock reaches x: the key's windows that end by x are closed
                       └ a message with the future event time x arrives: x is written to the index
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.processors.engine.state.ranges import state_keys_between
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.time.window_keys import OWN_KEY, ahead_before, ahead_key, ahead_of, first_ahead
from holdfast.processors.engine.windows.stored import Closing


class OwnTimes(Protocol):
    """Windows that are closed by event times of messages with the same key, and not by stream time."""

    def reached(self) -> Sequence[tuple[int, int, Any]]:
        """Returns the windows of the current key whose end the key's largest event time has reached.

        Each item has two numbers that identify the window, and the window's result. The method does not change the
        state.
        """

    def close_one(self, first: int, second: int) -> None:
        """Closes one window. The caller has sent the result of this window before.

        The arguments are the two numbers that ``reached`` returned for the window.
        """

    def reach_key(self) -> None:
        """Stores the key's record. The caller has sent the results of all windows that ``reached`` returned before."""


class _Step(NamedTuple):
    place: str
    raw_key: bytes
    window: tuple[int, int] | None


class KeysAhead:
    """Closes windows of keys that have event times after the worker's clock, when the clock reaches these times.

    Each key with a future event time has an index entry at this time. When the clock reaches this time, a message of
    the key may already have closed the windows. Then the entry is only deleted.
    """

    def __init__(self, windows: OwnTimes, state: StoreState, stream: StreamTime) -> None:
        self._windows, self._state, self._stream = windows, state, stream
        #: Milliseconds. No index entry has an earlier time than this.
        self.next_ms = NO_TIME
        #: Milliseconds. All index entries up to this time are deleted, so a search of the index may begin after it.
        self._gone_ms = NO_TIME
        #: Results that ``closing`` has returned, but for which ``closed`` was not called yet.
        self._found: deque[_Step] = deque()

    def enter(self, time_ms: int, raw_key: bytes) -> None:
        """Writes an index entry, so that the key is checked when the worker's clock reaches ``time_ms``.

        Sets the key as the store's current key.
        """
        self._state.message_key = OWN_KEY
        self._state.set_own(ahead_key(time_ms, raw_key), 1)
        self._state.message_key = raw_key
        self.next_ms, self._gone_ms = min(self.next_ms, time_ms), min(self._gone_ms, time_ms - 1)

    def restart(self) -> None:
        """Must be called after an aborted transaction or a command: the next search starts at the first index entry."""
        self.next_ms = self._gone_ms = NO_TIME
        self._found.clear()

    def is_due(self, now_ms: int) -> bool:
        """Whether the worker's clock may have reached a future event time that is in the index."""
        return bool(self._found) or self.next_ms <= now_ms

    def closing(self, limit: int) -> list[Closing]:
        """Returns at most ``limit`` windows to close, key by key, in the order of the keys' future event times."""
        cap_ms = self._stream.cap_ms
        if not self.is_due(cap_ms):
            return []
        self._found.clear()
        after = first_ahead() if self._gone_ms < 0 else ahead_before(self._gone_ms)
        found: list[Closing] = []
        for place, _ in state_keys_between(self._state, OWN_KEY, after, ahead_before(cap_ms), limit):
            if len(found) >= limit:
                break
            raw_key = ahead_of(place)[1]
            self._state.point_at(raw_key, max(self._stream.time_ms, 0))
            for number, (first, second, result) in enumerate(self._windows.reached()):
                at = f"{place}/{number:09d}"
                found.append(Closing(at, raw_key, result, 0 if result is None else result["start"]))
                self._found.append(_Step(at, raw_key, (first, second)))
            found.append(Closing(f"{place}/~", raw_key, None, 0))
            self._found.append(_Step(f"{place}/~", raw_key, None))
        if len(found) < limit:
            later = state_keys_between(
                self._state, OWN_KEY, ahead_before(cap_ms), ahead_before(EVENT_TIME_END_MS), limit=1
            )
            self.next_ms = ahead_of(later[0][0])[0] if later else EVENT_TIME_END_MS
        self._state.keep_message()
        return found[:limit]

    def closed(self, closing: Closing) -> None:
        """Closes the windows of all results up to ``closing``. The caller has sent these results before."""
        state = self._state
        while self._found and self._found[0].place <= closing.place:
            place, raw_key, window = self._found.popleft()
            state.point_at(raw_key, max(self._stream.time_ms, 0))
            if window is not None:
                self._windows.close_one(*window)
                continue
            self._windows.reach_key()
            entry = place.rpartition("/")[0]
            self._gone_ms = max(self._gone_ms, ahead_of(entry)[0] - 1)
            state.message_key = OWN_KEY
            state.delete(entry)
        state.keep_message()
