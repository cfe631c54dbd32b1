"""Windows whose starts follow from a message's time alone: tumbling and hopping ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from holdfast.processors.engine.dataframe.stored_windows import Closing, MessagePlace, Result, StoredWindows
from holdfast.processors.engine.dataframe.window_spec import WindowSpec
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.stream_time import NO_TIME, StreamTime
from holdfast.processors.engine.state.window_keys import KEY_TIME, DueEntry, due_entry, window_key

#: Steps of which a store remembers the windows.
KNOWN_MAX = 64
#: No results: most messages of a final window have none.
_NONE: tuple[Result, ...] = ()


class WindowStore(StoredWindows):
    """The tumbling or hopping windows of one step in one task."""

    def __init__(self, spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> None:
        super().__init__(spec, state, stream, place)
        self._triggers = spec.before_update is not None or spec.after_update is not None
        #: By number of the step, what ``_windows`` returned; only where all times of a step are in the same windows.
        self._known: dict[int, list[tuple[int, int, str]]] | None = None if spec.duration_ms % spec.step_ms else {}

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Counts a message in its windows; returns the results to send at once; raises as ``StoredWindows``."""
        spec, state, stream = self.spec, self._state, self._stream
        if len(raw_key) > self.key_bytes_max:
            raise self._key_too_large(raw_key)
        if time_ms < 0:
            stream.check(time_ms, 0)
        state.message_key, state.timestamp_ms = raw_key, time_ms
        known = (state.get(KEY_TIME) or {"time": NO_TIME, "open": []}) if self._by_key else None
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
                stored, early = self._triggered(held, (start, end), (value, key, time_ms, headers))
                updated += early
                if stored is None:
                    state.delete(place)
                    continue
            else:
                stored = spec.aggregation.folded(held, value, time_ms)
            self._set(place, stored)
            if held is None:
                opened.append([start, end])
            if not spec.final:
                updated.append((spec.aggregation.result(start, end, stored), start))
        if late:
            now_ms = stream.time_ms if known is None else known["time"]
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
                (start, start + length_ms, window_key(start, start + length_ms)) for start in self.spec.starts(time_ms)
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
        spec, (value, _, time_ms, _) = self.spec, message
        aggregation, early = spec.aggregation, []
        before, after = spec.before_update, spec.after_update
        if before is not None and held is not None and before(aggregation.seen(held), *message):
            early.append((aggregation.result(*window, held), window[0]))
            held = None  # the message begins the window again
        stored = aggregation.folded(held, value, time_ms)
        if after is not None and after(aggregation.seen(stored), *message):
            early.append((aggregation.result(*window, stored), window[0]))
            return None, early
        return stored, early

    def _key_moves(
        self, known: dict[str, Any], raw_key: bytes, time_ms: int, opened: list[list[int]]
    ) -> Sequence[Result]:
        """Moves the key's own time, and closes the key's windows that it passes; returns the final results."""
        spec, state = self.spec, self._state
        now_ms = self._time_after(known, time_ms)
        if self._triggers:  # a window that was sent early opens again, and may be known still
            opened = [each for each in opened if each not in known["open"]]
        left = sorted([*known["open"], *opened])
        closing = [each for each in left if each[1] + spec.grace_ms <= now_ms]
        if opened or closing or now_ms != known["time"]:
            state.set_own(KEY_TIME, {"time": now_ms, "open": [each for each in left if each not in closing]})
        results = []
        for start, end in closing:
            stored = state.get(window_key(start, end))
            if stored is None:
                continue  # a command cleared the key meanwhile
            if spec.final:
                results.append((spec.aggregation.result(start, end, stored), start))
            # Not before the stream time: the index has passed earlier places already.
            self._enter(max(end, self._stream.time_ms), start, end, raw_key)
        return results or _NONE

    def closing(self, limit: int) -> list[Closing]:
        """The next windows to close, in the order of their ends; at most ``limit``. ``closed`` counts them."""
        if not self._closes:
            return []
        entries = list(map(due_entry, self._due(limit, self._stream.time_ms)))
        held = repeat(None, len(entries)) if self.rows is None else self.rows.results(entries)
        return [
            Closing(entry.place, entry.message_key, result or self._result(entry), entry.start)
            for entry, result in zip(entries, held, strict=True)
        ]

    def _result(self, entry: DueEntry) -> dict[str, Any] | None:
        """The result of the window of an entry, from the store; None if a command deleted it meanwhile."""
        stored = self._of(entry.message_key, window_key(entry.start, entry.end))
        return None if stored is None else self.spec.aggregation.result(entry.start, entry.end, stored)
