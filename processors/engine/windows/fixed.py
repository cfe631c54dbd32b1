"""Windows whose starts depend only on a message's time: tumbling and hopping ones."""

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
from holdfast.processors.engine.windows.stored import Closing, MessagePlace, Result, StoredWindows

#: Number of steps whose windows a store caches.
KNOWN_MAX = 64
#: Maximum windows beyond the record of their key that one message closes; the next message closes more.
MORE_MAX = 100_000
#: No results: most messages of a final window have none.
_NONE: tuple[Result, ...] = ()


def _asked_apart(trigger: Trigger | None) -> Trigger | None:
    """The same trigger; one that may change its arguments gets copies, because the window keeps the originals."""
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
        #: With ``key``: the entries that ``closing`` returned and ``closed`` has not counted yet.
        self._left: deque[DueEntry] = deque()
        #: Whether a function may change a message that another window also contains.
        self._copies = spec.step_ms < spec.duration_ms and any(map(may_change, spec.functions))
        #: By number of the step, the result of ``_windows``; only if all times of a step are in the same windows.
        self._known: dict[int, list[tuple[int, int, str]]] | None = None if spec.duration_ms % spec.step_ms else {}

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows; returns the results to send at once; raises as ``StoredWindows``."""
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
                        opened.append([start, end])  # the key's record is deleted with the entry of a window
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
        """Start, end and state key of the windows that contain an event time."""
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
        """The stored value after a message, None if the window was sent with it; and the results to send early."""
        value, _, time_ms, _ = message
        aggregation, early = self.spec.aggregation, []
        before, after = self._before, self._after
        if before is not None and held is not None and before(aggregation.seen(held), *message):
            early.append((aggregation.result(*window, held), window[0]))
            held = None  # the message starts the window again
        stored = aggregation.folded(held, value, time_ms)
        if after is not None and after(aggregation.seen(stored), *message):
            early.append((aggregation.result(*window, stored), window[0]))
            return None, early
        return stored, early

    # -- windows that the time of their key closes -----------------------------------------------------------------

    def _key_moves(self, known: KeyTime, raw_key: bytes, time_ms: int, opened: list[list[int]]) -> Sequence[Result]:
        """Moves the key's own time, and closes the key's windows that it passes; returns the final results."""
        spec, state = self.spec, self._state
        for start, end in opened:
            self._enter(end, start, end, raw_key)
        if known.is_former:
            for start, end in known.open:
                self._enter(max(end, self._first_ms), start, end, raw_key)
        known.take(time_ms, self._stream.cap_ms)
        if opened:
            # A window that was sent early opens again, and may still be in the record.
            known.open = sorted([*known.open, *(each for each in opened if each not in known.open)])
        closing, results = self._passed(known), []
        for start, end in closing if spec.final else ():
            if (stored := state.get(window_key(start, end))) is not None:  # otherwise a command cleared it meanwhile
                results.append((spec.aggregation.result(start, end, stored), start))
        if closing:
            self._no_longer(known, closing)
        self._keep_open(known)
        return results or _NONE

    def _passed(self, known: KeyTime) -> list[tuple[int, int]]:
        """The open windows that the key's time has passed, in the order of their starts."""
        limit_ms = closed_upto(self.spec.grace_ms, known.time, known.closed)
        found = {(start, end) for start, end in known.open if end <= limit_ms}
        if known.more is not None and known.more <= limit_ms:
            found.update(self._more(known, limit_ms, MORE_MAX))
        return sorted(found) if found else []

    def _more(self, known: KeyTime, upto_ms: int, limit: int) -> list[tuple[int, int]]:
        """Open windows that the record of the key has no room for, and that end up to a time, in the order of ends."""
        raw_key = self._state.message_key
        first, before = open_before(known.more - 1), open_before(upto_ms)
        places = state_keys_between(self._state, raw_key, first, before, limit)
        return [window for place, _ in places if (window := open_window_of(place)) is not None]

    def _no_longer(self, known: KeyTime, windows: Sequence[tuple[int, int]]) -> None:
        """Removes windows from the key's record of open windows; the record is changed but not stored."""
        known.open = [each for each in known.open if (each[0], each[1]) not in windows]
        if known.more is None:
            return
        for start, end in windows:
            place = open_key(start, end)
            if end >= known.more and self._state.exists(place):  # one may be in the record as well
                self._state.delete(place)
        if any(end == known.more for _, end in windows):
            left = self._more(known, EVENT_TIME_END_MS - 1, 1)
            known.more = left[0][1] if left else None

    def _keep_open(self, known: KeyTime) -> None:
        """Stores the record of the key; windows that do not fit into it get separate records."""
        if len(known.open) > OPEN_KEPT:
            for start, end in known.open[:-OPEN_KEPT]:
                self._state.set_own(open_key(start, end), 1)
                known.more = end if known.more is None else min(known.more, end)
            known.open = known.open[-OPEN_KEPT:]
        self._keep_time(known)

    def _is_open(self, known: KeyTime, start: int, end: int) -> bool:
        return [start, end] in known.open or (known.more is not None and self._state.exists(open_key(start, end)))

    def reached(self) -> list[tuple[int, int, dict[str, Any] | None]]:
        """Start, end and result of the windows that the time of the key closes; the state points at the key."""
        found = []
        for start, end in self._passed(self._of_key()):
            stored = self._state.get(window_key(start, end))
            made = None if stored is None else self.spec.aggregation.due(start, end, stored)
            found.append((start, end, made))
        return found

    def close_one(self, first: int, second: int) -> None:
        """Records that the result of such a window, from ``first`` to ``second``, is sent."""
        known = self._of_key()
        self._no_longer(known, [(first, second)])
        self._keep_open(known)

    def reach_key(self) -> None:
        """Records that all returned results are sent."""
        self._keep_open(self._of_key())

    def _leaves(self, entry: DueEntry) -> None:
        self.close_one(entry.start, entry.end)

    # -- with each commit ------------------------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """The next windows to close, in the order of their ends; at most ``limit``. ``closed`` counts them.

        With ``closing_strategy="key"``: the windows that no message of their key has closed before their retention
        ended.
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
        """Records that a window is closed: its result is sent, and it accepts no further message."""
        super().closed(closing)
        while self._left and self._left[0].place <= closing.place:
            entry = self._left.popleft()
            self._state.point_at(entry.message_key, max(self._stream.time_ms, 0))
            self.close_one(entry.start, entry.end)
        self._state.keep_message()

    def _left_open(self, entry: DueEntry) -> dict[str, Any] | None:
        """The result of an entry's window, if its key has not closed the window."""
        self._state.point_at(entry.message_key, max(self._stream.time_ms, 0))
        return self._result(entry) if self._is_open(self._of_key(), entry.start, entry.end) else None

    def _result(self, entry: DueEntry) -> dict[str, Any] | None:
        """The result of the window of an entry, from the store; None if a command deleted it meanwhile."""
        stored = self._of(entry.message_key, window_key(entry.start, entry.end))
        return None if stored is None else self.spec.aggregation.due(entry.start, entry.end, stored)
