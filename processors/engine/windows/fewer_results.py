"""Held-back results: a window that sends its current results at a limited rate for each key.

    results of a key   ──a──b──c──────────d──►  stream time       every ├────────┤
    sent                 a        c       d
                                  └ the newest of those that were held back, once ``every`` is over

Invariants:
    - What is sent follows from the messages and the stream time alone, not from when a commit was: a result that is due
      counts as sent when it was due, and goes before a later result of its key.
    - What is held back is state: it is sent in the transaction that forgets it.
    - A key with a record has one entry in the index, at the time until which the record holds results back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.processors.engine.state.ranges import state_keys_between
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import StreamTime
from holdfast.processors.engine.state.time.window_keys import (
    HELD,
    OWN_KEY,
    first_hold,
    held_of,
    hold_before,
    hold_key,
)
from holdfast.processors.engine.windows.stored import Closing, Result, StoredWindows


class FewerResults:
    """A window of one step in one task whose results are held back.

    Args:
        windows: The window.
        every_ms: How often a key's results are sent at most, in milliseconds of stream time.
        state: The store of the step.
        stream: The stream time of the task.
    """

    def __init__(self, windows: StoredWindows, every_ms: int, state: StoreState, stream: StreamTime) -> None:
        self._windows, self._every_ms = windows, every_ms
        self._state, self._stream = state, stream
        #: Index entries up to here are deleted: a scan can skip them.
        self._after = first_hold()
        #: Results that ``closing`` returned and ``closed`` has not counted yet: place, time, key, record.
        self._found: deque[tuple[str, int, bytes, dict[str, Any] | None]] = deque()

    def restart(self) -> None:
        """Called when uncommitted work is dropped."""
        self._after = first_hold()
        self._found.clear()

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows; returns the results to send at once; raises as ``StoredWindows``."""
        results = self._windows.take(value, key, raw_key, time_ms, headers)
        state, stream, sent = self._state, self._stream, []
        now_ms = stream.after(time_ms)
        known = state.get(HELD)
        if known is not None and known["due"] <= now_ms and known["held"] is not None:
            sent.append((known["held"][0], known["held"][1]))
            known = self._look_again(raw_key, known["due"] + self._every_ms, known)
        if known is not None and known["due"] <= now_ms:
            self._forget(raw_key, known)  # an absent record means the same
            known = None
        if results:
            if known is None:
                sent.append(results[-1])
                self._look_again(raw_key, now_ms + self._every_ms, None)
            else:
                state.set(HELD, {**known, "held": list(results[-1])})
        return sent

    def _look_again(self, raw_key: bytes, due_ms: int, known: dict[str, Any] | None) -> dict[str, Any]:
        """The new record of a key, which holds nothing back until this time; its index entry is moved."""
        state, made = self._state, {"due": due_ms, "held": None}
        state.message_key = OWN_KEY
        if known is not None:
            state.delete(hold_key(known["due"], raw_key))
        state.set(hold_key(due_ms, raw_key), 1)
        state.message_key = raw_key
        state.set(HELD, made)
        return made

    def _forget(self, raw_key: bytes, known: dict[str, Any]) -> None:
        self._state.delete(HELD)
        self._state.message_key = OWN_KEY
        self._state.delete(hold_key(known["due"], raw_key))
        self._state.message_key = raw_key

    # -- with each commit ------------------------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """The due results, in the order of their times, at most ``limit``. ``closed`` counts them."""
        self._found.clear()
        found = []
        for place, _ in self._due(limit, self._stream.ends_ms):
            due_ms, raw_key = held_of(place)
            self._state.point_at(raw_key, max(self._stream.time_ms, 0))
            known = self._state.get(HELD)
            if known is not None and known["due"] != due_ms:
                known = None  # a command deleted the record of this entry meanwhile
            held = None if known is None else known["held"]
            self._found.append((place, due_ms, raw_key, known))
            found.append(Closing(place, raw_key, *(held or (None, 0))))
        return found

    def due_at(self, time_ms: int) -> bool:
        """Whether a result is due at this stream time, or a record that holds nothing back can leave."""
        return bool(self._due(1, time_ms))

    def _due(self, limit: int, time_ms: int) -> list[tuple[str, bytes]]:
        return state_keys_between(self._state, OWN_KEY, self._after, hold_before(time_ms), limit)

    def closed(self, closing: Closing) -> None:
        """Records that all results up to this one are sent."""
        state, time_ms = self._state, max(self._stream.time_ms, 0)
        while self._found and self._found[0][0] <= closing.place:
            self._after, due_ms, raw_key, known = self._found.popleft()
            state.point_at(raw_key, time_ms)
            if known is not None and known["held"] is not None:
                known = self._look_again(raw_key, due_ms + self._every_ms, known)
                if known["due"] <= time_ms:  # otherwise it would stay until another commit, whenever that comes
                    self._forget(raw_key, known)
            elif known is not None:
                self._forget(raw_key, known)
            else:
                state.message_key = OWN_KEY
                state.delete(hold_key(due_ms, raw_key))
        state.keep_message()
