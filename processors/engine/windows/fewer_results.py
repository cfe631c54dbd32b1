"""Limits how often a window sends its current results for each key. Results between two sent results are held back.

    results of a key   ──a──b──c──────────d──►  stream time       every ├────────┤
    sent                 a        c       d
                                  └ the newest held-back result, sent when ``every`` is over

Invariants:
    - The sent results depend only on the messages and on stream time, not on when commits happened. A held-back result
      is due when its period ends. The next period of length ``every`` begins at this time, even if the result is sent
      later. A due result is sent before any later result of its key.
    - Held-back results are state. A result is sent in the same transaction that deletes its record.
    - If a key has a record, the key also has one index entry, at the time until which its results are held back.
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
from holdfast.processors.engine.windows.stored import Closing, OwedResult, Result, StoredWindows


class FewerResults:
    """Limits how often one window step of a stream sends its results, in one task.

    Args:
        windows: The windows whose results are held back.
        every_ms: The minimum time between two results of a key, in milliseconds of stream time.
        state: The store of the step.
        stream: The stream time of the task.
    """

    def __init__(self, windows: StoredWindows, every_ms: int, state: StoreState, stream: StreamTime) -> None:
        self._windows, self._every_ms = windows, every_ms
        self._state, self._stream = state, stream
        #: The position in the index from which the next search for due results starts. All earlier entries are deleted.
        self._after = first_hold()
        #: Due results that ``closing`` has returned, but for which ``closed`` was not called yet: index entry, due
        #: time, key, record.
        self._found: deque[tuple[str, int, bytes, dict[str, Any] | None]] = deque()

    def restart(self) -> None:
        """Must be called after an aborted transaction: the next search starts at the first index entry."""
        self._after = first_hold()
        self._found.clear()

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows and returns the results to send now.

        Raises the errors of ``StoredWindows.take``.
        """
        results = self._windows.take(value, key, raw_key, time_ms, headers)
        state, stream, sent = self._state, self._stream, list[Result]()
        now_ms = stream.after(time_ms)
        known = state.get(HELD)
        if known is not None and known["due"] <= now_ms and known["held"] is not None:
            sent.append(OwedResult(known["held"][0], known["held"][1]))
            known = self._look_again(raw_key, known["due"] + self._every_ms, known)
        if known is not None and known["due"] <= now_ms:
            self._forget(raw_key, known)  # The period is over. Without a record, results are sent at once.
            known = None
        if results:
            if known is None:
                sent.append(results[-1])
                self._look_again(raw_key, now_ms + self._every_ms, None)
            else:
                state.set(HELD, {**known, "held": list(results[-1])})
        return sent

    def _look_again(self, raw_key: bytes, due_ms: int, known: dict[str, Any] | None) -> dict[str, Any]:
        """Writes the key's record, so that results are held back until ``due_ms``.

        Moves the key's index entry to that time.
        """
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

    # -- methods called with each commit ---------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """Returns at most ``limit`` due results, ordered by due time. Pass each sent result to ``closed``."""
        self._found.clear()
        found = []
        for place, _ in self._due(limit, self._stream.ends_ms):
            due_ms, raw_key = held_of(place)
            self._state.point_at(raw_key, max(self._stream.time_ms, 0))
            known = self._state.get(HELD)
            if known is not None and known["due"] != due_ms:
                known = None  # A command has deleted the record to which this index entry belongs.
            held = None if known is None else known["held"]
            self._found.append((place, due_ms, raw_key, known))
            found.append(Closing(place, raw_key, *(held or (None, 0))))
        return found

    def due_at(self, time_ms: int) -> bool:
        """Whether a held-back result, or the deletion of a record, is due at this stream time."""
        return bool(self._due(1, time_ms))

    def _due(self, limit: int, time_ms: int) -> list[tuple[str, bytes]]:
        return state_keys_between(self._state, OWN_KEY, self._after, hold_before(time_ms), limit)

    def closed(self, closing: Closing) -> None:
        """Must be called when all results up to ``closing`` were sent.

        Starts the next period of each key of these results.
        """
        state, time_ms = self._state, max(self._stream.time_ms, 0)
        while self._found and self._found[0][0] <= closing.place:
            self._after, due_ms, raw_key, known = self._found.popleft()
            state.point_at(raw_key, time_ms)
            if known is not None and known["held"] is not None:
                known = self._look_again(raw_key, due_ms + self._every_ms, known)
                # The new period is over already, so the record is not needed. It is deleted now, because a later commit
                # may never come.
                if known["due"] <= time_ms:
                    self._forget(raw_key, known)
            elif known is not None:
                self._forget(raw_key, known)
            else:
                state.message_key = OWN_KEY
                state.delete(hold_key(due_ms, raw_key))
        state.keep_message()
