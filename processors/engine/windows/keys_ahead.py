"""Closes windows of keys whose times are ahead of the worker's clock, once the clock reaches these times.

key's clock      ──x─────x──►                  a message at x is dated ahead: its time waits
worker's clock   ────────────┬─────┬──►
                             x     x counts: windows of the key that it passes close, without another message
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
    """Windows that are closed by the times of their own keys."""

    def reached(self) -> Sequence[tuple[int, int, Any]]:
        """The windows that the time of the state's current key closes: two identifying times and the result of each.

        Nothing is changed.
        """

    def close_one(self, first: int, second: int) -> None:
        """Records that the result of the window that ``reached`` named by these two times is sent."""

    def reach_key(self) -> None:
        """Records that all returned results are sent."""


class _Step(NamedTuple):
    place: str
    raw_key: bytes
    window: tuple[int, int] | None


class KeysAhead:
    """Closes windows of keys whose times were ahead of the worker's clock, once the clock reaches these times.

    An index entry leads to each key with a time ahead. Entries may also exist for times that a message of the key has
    applied already: they are deleted when the clock reaches them.
    """

    def __init__(self, windows: OwnTimes, state: StoreState, stream: StreamTime) -> None:
        self._windows, self._state, self._stream = windows, state, stream
        #: No entry is before this time, in milliseconds.
        self.next_ms = NO_TIME
        #: Entries up to here are deleted: a scan can skip them.
        self._gone_ms = NO_TIME
        #: Results that ``closing`` returned and ``closed`` has not counted yet.
        self._found: deque[_Step] = deque()

    def enter(self, time_ms: int, raw_key: bytes) -> None:
        """Schedules a check of a key at this time; leaves the state at the key."""
        self._state.message_key = OWN_KEY
        self._state.set_own(ahead_key(time_ms, raw_key), 1)
        self._state.message_key = raw_key
        self.next_ms, self._gone_ms = min(self.next_ms, time_ms), min(self._gone_ms, time_ms - 1)

    def restart(self) -> None:
        """Called when uncommitted work is dropped, or the store was changed."""
        self.next_ms = self._gone_ms = NO_TIME
        self._found.clear()

    def is_due(self, now_ms: int) -> bool:
        """Whether the worker's clock may have reached a time of a key."""
        return bool(self._found) or self.next_ms <= now_ms

    def closing(self, limit: int) -> list[Closing]:
        """The next windows to close, key by key in the order of their times, at most ``limit``."""
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
        """Records that the results up to this one are sent."""
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
