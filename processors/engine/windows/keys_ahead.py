"""Keys with event times after the worker's clock: closes their windows when the clock reaches these times.

worker's clock   ──┬─────────────┬──►
                   │             └ the clock reaches x: the key's windows that end by x are closed
                   └ a message with the future event time x arrives: x waits in the index
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
    """Windows that are closed by the event times of their own keys."""

    def reached(self) -> Sequence[tuple[int, int, Any]]:
        """Returns the windows of the current key whose end the key's own event time has reached.

        For each window: two numbers that identify it, and its result. The method does not change the state.
        """

    def close_one(self, first: int, second: int) -> None:
        """Confirms that the result of a window was sent.

        ``reached`` returned the two numbers that identify the window.
        """

    def reach_key(self) -> None:
        """Confirms that all results that ``reached`` returned were sent."""


class _Step(NamedTuple):
    place: str
    raw_key: bytes
    window: tuple[int, int] | None


class KeysAhead:
    """Keys with event times after the worker's clock: closes their windows when the clock reaches these times.

    Each key with a future event time has an index entry at this time. If a message of the key has already closed the
    windows when the clock reaches this time, the entry is only deleted.
    """

    def __init__(self, windows: OwnTimes, state: StoreState, stream: StreamTime) -> None:
        self._windows, self._state, self._stream = windows, state, stream
        #: No index entry is before this time, in milliseconds.
        self.next_ms = NO_TIME
        #: A scan of the index may begin after this time, because all entries up to it are deleted.
        self._gone_ms = NO_TIME
        #: Results that ``closing`` returned and ``closed`` has not confirmed.
        self._found: deque[_Step] = deque()

    def enter(self, time_ms: int, raw_key: bytes) -> None:
        """Adds an index entry, so that the key is checked at ``time_ms``. Makes the key the state's current key."""
        self._state.message_key = OWN_KEY
        self._state.set_own(ahead_key(time_ms, raw_key), 1)
        self._state.message_key = raw_key
        self.next_ms, self._gone_ms = min(self.next_ms, time_ms), min(self._gone_ms, time_ms - 1)

    def restart(self) -> None:
        """Starts the scan of the index again from its begin, because an abort or a command changed the store."""
        self.next_ms = self._gone_ms = NO_TIME
        self._found.clear()

    def is_due(self, now_ms: int) -> bool:
        """Whether the worker's clock may have reached a future event time of a key."""
        return bool(self._found) or self.next_ms <= now_ms

    def closing(self, limit: int) -> list[Closing]:
        """Returns the next windows to close, at most ``limit``, key by key, sorted by the keys' future event times."""
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
        """Confirms that all results up to ``closing`` were sent."""
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
