"""Tumbling and hopping windows: their starts depend only on a message's event time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from holdfast.processors.engine.aggregates.key_time import OPEN_KEPT, KeyTime
from holdfast.processors.engine.state.ranges import state_keys_between
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, StreamTime
from holdfast.processors.engine.state.time.window_keys import (
    DueEntry,
    due_entry,
    open_before,
    open_key,
    open_window_of,
    window_key,
)
from holdfast.processors.engine.steps.in_place import copied, may_change
from holdfast.processors.engine.windows.bounds import closed_upto, starts
from holdfast.processors.engine.windows.spec import Trigger, WindowSpec
from holdfast.processors.engine.windows.stored import Closing, MessagePlace, OwedResult, Result, StoredWindows

#: Maximum number of entries in a store's cache of windows. The key of the cache is event time // step.
KNOWN_MAX = 64
#: Open windows of a key that are not in the key's record have a record of their own. One message closes at most this
#: many of them. Later messages of the key close the remaining windows.
MORE_MAX = 100_000
#: The empty result. It is one shared object, because most messages of a window with ``final()`` have no result.
_NONE: tuple[Result, ...] = ()


def _asked_apart(trigger: Trigger | None) -> Trigger | None:
    """Wraps a trigger that may change its arguments, so that it gets copies of them.

    Other triggers are returned unchanged.

    Without the copies, the trigger could change the window's stored objects.
    """
    if trigger is None or not may_change(trigger):
        return trigger

    def ask(aggregated: Any, value: Any, *rest: Any) -> Any:
        return trigger(copied(aggregated), copied(value), *rest)

    return ask


class WindowStore(StoredWindows):
    """The tumbling or hopping windows of one step in one task."""

    def __init__(self, spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> None:
        super().__init__(spec, state, stream, place)
        self._before, self._after = _asked_apart(spec.before_update), _asked_apart(spec.after_update)
        self._triggers = self._before is not None or self._after is not None
        #: For closing strategy ``key``: index entries that ``closing`` has returned, but for which ``closed`` was not
        #: called yet.
        self._left: deque[DueEntry] = deque()
        #: Whether a user function may change a message object that another window of the message also needs.
        self._copies = spec.step_ms < spec.duration_ms and any(map(may_change, spec.functions))
        #: Caches the results of ``_windows``, by event time // step. None if the cache can't be used, because two times
        #: with the same quotient can be in different windows.
        self._known: dict[int, list[tuple[int, int, str]]] | None = None if spec.duration_ms % spec.step_ms else {}

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows and returns the results to send now.

        Raises the errors of ``StoredWindows.take``.
        """
        spec, state, stream = self.spec, self._state, self._stream
        if len(raw_key) > self.key_bytes_max:
            raise self._key_too_large(raw_key)
        if time_ms < 0:
            stream.check(time_ms, 0)
        state.message_key, state.timestamp_ms = raw_key, time_ms
        known = self._of_key() if self._by_key else None
        late: list[tuple[int, int]] = []
        updated: list[Result] = []
        opened: list[list[int]] = []
        windows = self._windows(time_ms)
        for start, end, place in windows:
            if self._is_late(end, known):
                late.append((start, end))
                continue
            held = state.get(place)
            if self._triggers:
                own = copied(value) if self._copies else value
                stored, early = self._triggered(held, (start, end), (own, key, time_ms, headers))
                updated += early
                if stored is None:
                    state.delete(place)
                    if known is not None and held is None:
                        # Even without a stored value, the window needs an index entry. Otherwise, nothing would delete
                        # the key's record.
                        opened.append([start, end])
                    continue
            else:
                stored = spec.aggregation.folded(held, copied(value) if self._copies else value, time_ms)
            self._set(place, stored)
            if held is None:
                opened.append([start, end])
            if not spec.final:
                updated.append((spec.aggregation.result(start, end, stored), start))
        if late:
            now_ms = stream.ends_ms if known is None else known.time
            self._be_late(value, key, time_ms, late, now_ms, whole=len(late) == len(windows))
        if known is not None:
            closed = self._key_moves(known, raw_key, time_ms, opened)
            return [*updated, *closed] if updated and closed else closed or updated
        for start, end in opened:
            self._enter(end, start, end, raw_key)
        return updated

    def _windows(self, time_ms: int) -> list[tuple[int, int, str]]:
        """Returns start, end and state key of each window that contains an event time."""
        step, known = time_ms // self.spec.step_ms, self._known
        found = None if known is None else known.get(step)
        if found is None:
            length_ms = self.spec.duration_ms
            found = [
                (start, start + length_ms, window_key(start, start + length_ms))
                for start in starts(time_ms, length_ms, self.spec.step_ms)
            ]
            if known is not None:
                if len(known) >= KNOWN_MAX:
                    known.clear()
                known[step] = found
        return found

    def _triggered(
        self, held: Any, window: tuple[int, int], message: tuple[Any, Any, int, Any]
    ) -> tuple[dict[str, Any] | None, list[Result]]:
        """Calls the triggers for a message. Returns the value to store, and the results to send early.

        The value to store is None if the trigger ``after_update`` sent the window, because the window then starts
        empty.
        """
        value, _, time_ms, _ = message
        aggregation, early = self.spec.aggregation, list[Result]()
        before, after = self._before, self._after
        if before is not None and held is not None and before(aggregation.seen(held), *message):
            early.append(OwedResult(aggregation.result(*window, held), window[0]))
            held = None  # the window was sent, so it starts again with this message
        stored = aggregation.folded(held, value, time_ms)
        if after is not None and after(aggregation.seen(stored), *message):
            early.append((aggregation.result(*window, stored), window[0]))
            return None, early
        return stored, early

    # -- windows that the key's largest event time closes (closing strategy ``key``) -----------------------------------

    def _key_moves(self, known: KeyTime, raw_key: bytes, time_ms: int, opened: list[list[int]]) -> Sequence[Result]:
        """Updates the key's largest event time, and closes the windows that have ended by this time.

        Returns the final results of these windows.
        """
        spec, state = self.spec, self._state
        for start, end in opened:
            self._enter(end, start, end, raw_key)
        if known.is_former:
            for start, end in known.open:
                self._enter(max(end, self._first_ms), start, end, raw_key)
        known.take(time_ms, self._stream.cap_ms)
        if opened:
            # A window that was sent early may already be in the key's record. Its next message must not add the window
            # twice.
            known.open = sorted([*known.open, *(each for each in opened if each not in known.open)])
        closing, results = self._passed(known), []
        for start, end in closing if spec.final else ():
            # A window has no stored value if a command has cleared it.
            if (stored := state.get(window_key(start, end))) is not None:
                results.append(OwedResult(spec.aggregation.due(start, end, stored), start))
        if closing:
            self._no_longer(known, closing)
        self._keep_open(known)
        return results or _NONE

    def _passed(self, known: KeyTime) -> list[tuple[int, int]]:
        """Returns the open windows whose end (plus grace) the key's largest event time has reached, sorted by start."""
        limit_ms = closed_upto(self.spec.grace_ms, known.time, known.closed)
        found = {(start, end) for start, end in known.open if end <= limit_ms}
        if known.more is not None and known.more <= limit_ms:
            found.update(self._more(known, limit_ms, MORE_MAX))
        return sorted(found) if found else []

    def _more(self, known: KeyTime, upto_ms: int, limit: int) -> list[tuple[int, int]]:
        """Returns at most ``limit`` open windows that end at or before ``upto_ms``, sorted by end.

        Only windows that are not listed in the key's record are returned.
        """
        raw_key = self._state.message_key
        first, before = open_before(known.more - 1), open_before(upto_ms)
        places = state_keys_between(self._state, raw_key, first, before, limit)
        return [window for place, _ in places if (window := open_window_of(place)) is not None]

    def _no_longer(self, known: KeyTime, windows: Sequence[tuple[int, int]]) -> None:
        """Removes closed windows from the key's record in memory. The caller must store the record."""
        known.open = [each for each in known.open if (each[0], each[1]) not in windows]
        if known.more is None:
            return
        for start, end in windows:
            place = open_key(start, end)
            if end >= known.more and self._state.exists(place):  # else it is listed in the key's record
                self._state.delete(place)
        if any(end == known.more for _, end in windows):
            left = self._more(known, EVENT_TIME_END_MS - 1, 1)
            known.more = left[0][1] if left else None

    def _keep_open(self, known: KeyTime) -> None:
        """Stores the key's record of open windows.

        The record keeps the newest ``OPEN_KEPT`` windows. Each older window gets a separate record.
        """
        if len(known.open) > OPEN_KEPT:
            for start, end in known.open[:-OPEN_KEPT]:
                self._state.set_own(open_key(start, end), 1)
                known.more = end if known.more is None else min(known.more, end)
            known.open = known.open[-OPEN_KEPT:]
        self._keep_time(known)

    def _is_open(self, known: KeyTime, start: int, end: int) -> bool:
        return [start, end] in known.open or (known.more is not None and self._state.exists(open_key(start, end)))

    def reached(self) -> list[tuple[int, int, dict[str, Any] | None]]:
        """Returns the current key's windows that the key's largest event time closes: start, end and result of each."""
        found = []
        for start, end in self._passed(self._of_key()):
            stored = self._state.get(window_key(start, end))
            made = None if stored is None else self.spec.aggregation.due(start, end, stored)
            found.append((start, end, made))
        return found

    def close_one(self, first: int, second: int) -> None:
        """Closes the window from ``first`` to ``second``. The caller has sent the result of this window before."""
        known = self._of_key()
        self._no_longer(known, [(first, second)])
        self._keep_open(known)

    def reach_key(self) -> None:
        """Stores the key's record. The caller has sent all results that ``reached`` returned before."""
        self._keep_open(self._of_key())

    def _leaves(self, entry: DueEntry) -> None:
        self.close_one(entry.start, entry.end)

    # -- methods called with each commit ---------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """Returns at most ``limit`` windows that are due, sorted by end. The caller passes each of them to ``closed``.

        With ``closing_strategy="key"``, messages of a key normally close its windows. The result then has only windows
        whose retention has ended before such a message came.
        """
        if not self._closes:
            return []
        entries = list(map(due_entry, self._due(limit, self._stream.ends_ms)))
        if self._by_key:
            self._left = deque(entries)
            return [Closing(each.place, each.message_key, self._left_open(each), each.start) for each in entries]
        held = repeat(None, len(entries)) if self.rows is None else self.rows.results(entries)
        return [
            Closing(entry.place, entry.message_key, result or self._result(entry), entry.start)
            for entry, result in zip(entries, held, strict=True)
        ]

    def closed(self, closing: Closing) -> None:
        """Marks a window as closed. Must be called after its result was sent; it then accepts no more messages."""
        super().closed(closing)
        while self._left and self._left[0].place <= closing.place:
            entry = self._left.popleft()
            self._state.point_at(entry.message_key, max(self._stream.time_ms, 0))
            self.close_one(entry.start, entry.end)
        self._state.keep_message()

    def _left_open(self, entry: DueEntry) -> dict[str, Any] | None:
        """Returns the result of an index entry's window; None if a message of the key has already closed the window."""
        self._state.point_at(entry.message_key, max(self._stream.time_ms, 0))
        return self._result(entry) if self._is_open(self._of_key(), entry.start, entry.end) else None

    def _result(self, entry: DueEntry) -> dict[str, Any] | None:
        """Computes the result of an index entry's window from the store; None if a command has deleted the window."""
        stored = self._of(entry.message_key, window_key(entry.start, entry.end))
        return None if stored is None else self.spec.aggregation.due(entry.start, entry.end, stored)
