"""Adds many messages at once to tumbling or hopping windows with numpy. The results equal those of ``WindowStore``.

Consecutive messages that are computed together are a *run*. Each window of a key has one row in memory. Rows stay in
memory between commits, so a window is read once, and written once per commit::

    messages          windows that contain them, in message order             rows: (start, key)
    k1 at 12:00:59 ─┐ last start = time - time % step                         12:00 k1 ─┐
    k2 at 12:01:00 ─┼─► late? by stream time before each message   ─► keep ─► 12:01 k2 ─┼─► Segments ─► columns
    k1 at 12:00:58 ─┘ (a running maximum), and by closed windows              12:00 k1 ─┘

The method ``computed`` changes nothing. The method ``keep`` then changes the rows, the index, stream time and the count
of late windows together. ``WindowStore`` processes a run one message at a time in two cases: if numpy would not give
exactly the same results as Python, or if a message is late and ``on_late`` is not ``drop``.

Invariants:
    - A row is never older than the value of its window in the store's overlay (the uncommitted writes in memory).
    - ``WindowStore`` would give the same results and stored bytes, and would find the same messages late.
    - Either all rows of a key are in memory, or none: ``leave`` writes back all rows of a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from holdfast.processors.engine.aggregates.columnar import PIECE_ROWS, RowStore
from holdfast.processors.engine.aggregates.columns import Unfit, as_json, struct_of
from holdfast.processors.engine.aggregates.kernels import Marks, Places, Segments
from holdfast.processors.engine.aggregates.message_columns import reader_of
from holdfast.processors.engine.aggregates.row_table import RowTable
from holdfast.processors.engine.aggregates.window_aggregates import Reduce
from holdfast.processors.engine.changelog.format import CODEC_JSON, VALUE_VERSION, encode_json, pack_head
from holdfast.processors.engine.expressions.steps import ColumnStep
from holdfast.processors.engine.record_size import UNLIMITED
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime
from holdfast.processors.engine.state.time.window_keys import OWN_KEY, DueEntry, due_key, window_key
from holdfast.processors.engine.windows.bounds import is_closed, starts_of_column
from holdfast.processors.engine.windows.fixed import WindowStore
from holdfast.processors.engine.windows.spec import WindowSpec

#: Maximum bytes of a window's changelog key besides the message key: the window's state key, and 8 bytes for the key's
#: format version and the length of the message key.
KEY_BYTES = len(window_key(0, 0)) + 8
_ENTRY = encode_json(1)
_NOTHING: Mapping[bytes, int] = {}


class WindowRowStore(RowStore, Protocol):
    """The store that holds the rows of windows, and the index of windows by time; ``StoreState`` implements it."""

    def write_scattered(self, message_key: bytes, state_keys: Iterable[str], values: Sequence[bytes]) -> None:
        """Writes values of one message key into the store's overlay, one value for each state key."""


@dataclass(frozen=True, slots=True)
class WindowRun:
    """Consecutive messages whose results are computed, but are not in the state yet.

    ``ColumnarWindows.keep`` adds them to the state.

    Attributes:
        results: The results to send, encoded as JSON.
        keys: The message key of each result.
        starts: The start of the window of each result.
    """

    results: list[bytes]
    keys: list[bytes]
    starts: list[int]
    _ran: Sequence[Any]
    _segments: Segments | None
    _window_times: Places
    _times: Places
    _late: int


class ColumnarWindows:
    """The tumbling or hopping windows of one step in one task, closed by stream time.

    Args:
        windows: The object that processes messages of the same windows one by one.
        store: The store of the step.
        stream: The stream time of the task.
        max_ahead_ms: Maximum milliseconds by which event times may be ahead of the worker's clock.
        output_bytes_max: The maximum of key plus value of an output, in bytes.
        state_bytes_max: The maximum of changelog key plus value of a state value, in bytes.
        rows_bytes_max: The maximum memory of the rows, in bytes. If they need more, a commit evicts rows that were not
            used recently.
        steps: The column expressions before the windows.

    Raises:
        Unfit: These windows or their aggregates can't be computed with numpy.
    """

    def __init__(  # tidy: allow-wide because these are the parts and the limits of a task
        self,
        windows: WindowStore,
        store: WindowRowStore,
        stream: StreamTime,
        max_ahead_ms: int,
        *,
        output_bytes_max: int = UNLIMITED,
        state_bytes_max: int = UNLIMITED,
        rows_bytes_max: int = 64 << 20,
        steps: Sequence[ColumnStep] = (),
    ) -> None:
        spec = windows.spec
        if not has_columns(spec):
            raise Unfit
        self._windows, self._spec, self._store, self._stream = windows, spec, store, stream
        self._max_ahead_ms = max_ahead_ms
        self._output_bytes_max, self._state_bytes_max = output_bytes_max, state_bytes_max
        self.rows_bytes_max = rows_bytes_max
        self._table = RowTable(spec.aggregation)
        self._read = reader_of(spec.aggregation, steps)
        self._make_result = struct_of("Result", ("start", "end", *spec.aggregation.columns))
        #: Maps each start of a window to a dict of message keys and the numbers of their rows.
        self._index: dict[int, dict[bytes, int]] = {}
        #: For each row number, the start of the row's window.
        self._starts = np.zeros(0, np.int64)
        #: Start and message key of each window whose result was sent since the last commit. After the next commit, the
        #: rows of these windows are dropped.
        self._leaving: list[tuple[int, bytes]] = []

    # -- methods for each run of messages --------------------------------------------------------------------------

    def computed(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Sequence[int]
    ) -> WindowRun | None:
        """Computes the results of messages without changing the state.

        Returns None if ``WindowStore`` must process the messages one by one.
        """
        try:
            return self._computed(keys, values, np.array(timestamps, np.int64))
        except Unfit:
            return None

    def keep(self, run: WindowRun) -> None:
        """Applies the computed results to the state. ``run`` must be what ``computed`` returned last."""
        segments, stream = run._segments, self._stream
        if segments is not None:
            self._enter(segments, run._window_times)
            self._table.keep(run._ran, segments, run._window_times)
        self._windows.late += run._late
        times = run._times
        ahead = times > stream.reach_ms
        if not ahead.all():
            stream.advance(int(times[~ahead].max()))
        if ahead.any():
            for time_ms in times[ahead].tolist():
                stream.advance(time_ms)

    def leave(self, keys: Iterable[bytes | None]) -> None:
        """Writes all rows of these keys back to the store and drops the rows.

        ``WindowStore`` can then process messages of these keys one by one.
        """
        asked, found = set(keys), []
        for index in self._index.values():
            found += [index.pop(key) for key in index.keys() & asked]
        if found:
            rows = np.array(found, np.int64)
            self._write_back(rows[self._table.dirty[rows]])
            self._table.release(found)

    # -- methods for the close and the deletion of windows ---------------------------------------------------------

    def results(self, entries: Sequence[DueEntry]) -> list[dict[str, Any] | None]:
        """Returns the results of these index entries' windows; None for a window that has no row in memory."""
        length_ms = self._spec.duration_ms
        rows = np.array(
            [
                self._index.get(start, _NOTHING).get(key, -1) if end == start + length_ms else -1
                for _, _, start, end, key in entries
            ],
            np.int64,
        )
        # The row has no value, because ``WindowStore`` processed the window's messages. The value may be in the store.
        places = np.flatnonzero((rows >= 0) & self._table.there[rows]) if len(self._table.there) else rows[:0]
        made: list[dict[str, Any] | None] = [None] * len(entries)
        names = ("start", "end", *self._spec.aggregation.columns)
        columns = self._table.results(rows[places])
        for place, *held in zip(places.tolist(), *columns, strict=True):
            entry = entries[place]
            self._leaving.append((entry.start, entry.message_key))
            made[place] = dict(zip(names, (entry.start, entry.end, *held), strict=True))
        return made

    def forget(self, entry: DueEntry) -> None:
        """Drops the row of a window that was deleted from the store."""
        index = self._index.get(entry.start) if entry.end == entry.start + self._spec.duration_ms else None
        row = None if index is None else index.pop(entry.message_key, None)
        if row is not None:
            self._table.release([row])

    # -- methods that the store calls (``Rows``) -------------------------------------------------------------------

    def write_back(self) -> None:
        """Writes all changed rows into the store's overlay."""
        self._write_back(np.flatnonzero(self._table.dirty))

    def committed(self) -> None:
        """Must be called after a commit: drops rows of closed windows, and rows above the memory limit."""
        gone = [self._index[start].pop(key, None) for start, key in self._leaving if start in self._index]
        self._table.release([row for row in gone if row is not None])
        self._leaving.clear()
        closes_ms = self._spec.duration_ms + self._spec.grace_ms
        for start in list(self._index):
            if not self._spec.final and start + closes_ms <= self._stream.time_ms:
                self._table.release(list(self._index[start].values()))
                del self._index[start]
            elif not self._index[start]:
                del self._index[start]
        self._make_room()

    def drop(self) -> None:
        """Discards all rows in memory, even changed ones."""
        self._index.clear()
        self._leaving.clear()
        self._table.forget_all()

    def dirty_bytes(self) -> int:
        """Estimated bytes that the changed rows will need in the store's overlay when they are written back."""
        return self._table.dirty_bytes()

    # -- internal methods ------------------------------------------------------------------------------------------

    def _computed(self, keys: Sequence[bytes | None], values: Sequence[bytes | None], times: Places) -> WindowRun:
        latest_ms = self._stream.latest_ms(self._max_ahead_ms)
        if None in keys or None in values or times.min() < 0 or times.max() > latest_ms:
            raise Unfit
        table = self._table
        items, kept = self._read(values)  # type: ignore[arg-type]
        longest_key = max(map(len, keys))  # type: ignore[arg-type]
        if longest_key > self._windows.key_bytes_max:
            raise Unfit  # a key is too long; ``WindowStore`` refuses only its message
        of, starts, late = self._in_time(times, kept)
        if not len(starts):
            return WindowRun([], [], [], (), None, starts, times, late)
        table.check_state_size(items, longest_key + KEY_BYTES, self._state_bytes_max)
        counted: Sequence[Any] = keys
        window_times = times
        if of is not None:
            places = of.tolist()
            counted = [keys[place] for place in places]
            own = of if kept is None else np.searchsorted(kept, of)  # ``items`` has no items of filtered messages
            items = [_at(item, own, own.tolist()) for item in items]
            window_times = times[of]
        segments = Segments.of(self._rows_of(counted, starts))
        ran = table.run(items, segments, self._state_bytes_max - longest_key - KEY_BYTES)
        if self._spec.final:
            return WindowRun([], [], [], ran, segments, window_times, times, late)
        begins = starts.tolist()
        ends = (starts + self._spec.duration_ms).tolist()
        raws = as_json(map(self._make_result, begins, ends, *table.shown(ran, segments)))
        if max(map(len, raws)) + longest_key > self._output_bytes_max:
            raise Unfit
        return WindowRun(raws, list(counted), begins, ran, segments, window_times, times, late)

    def _in_time(self, times: Places, kept: Sequence[int] | None) -> tuple[Places | None, Places, int]:
        """Returns for each window the index of its message and its start (two arrays), and the number of late windows.

        Late windows are left out of the arrays. The indexes are None if each message has exactly one window and no
        window is late. Only messages whose indexes are in ``kept`` have windows; None means all messages. The other
        messages have no window, but they also advance stream time.
        """
        spec, stream = self._spec, self._stream
        before = np.empty_like(times)
        before[0] = stream.time_ms
        before[1:] = (
            times[:-1] if times.max() <= stream.reach_ms else np.where(times <= stream.reach_ms, times, NO_TIME)[:-1]
        )
        np.maximum.accumulate(before, out=before)
        of, starts = starts_of_column(times, spec.duration_ms, spec.step_ms)
        if kept is not None:
            is_kept = np.zeros(len(times), bool)
            is_kept[kept] = True
            of = np.arange(len(times)) if of is None else of
            of, starts = of[is_kept[of]], starts[is_kept[of]]
        if of is not None:
            before = before[of]
        ends = starts + spec.duration_ms
        late = is_closed(ends, spec.grace_ms, before, self._windows.over_ms)
        if not late.any():
            return of, starts, 0
        counted = np.flatnonzero(~late)
        of = counted if of is None else of[counted]
        if callable(spec.on_late) or (
            spec.on_late == "dead-letter" and len(np.unique(of)) < (len(times) if kept is None else len(kept))
        ):
            raise Unfit
        return of, starts[counted], int(np.count_nonzero(late))

    def _rows_of(self, keys: Sequence[bytes], starts: Places) -> Places:
        first = int(starts[0])
        if (starts == first).all():
            return np.array(self._rows_in(first, keys), np.int64)
        rows = np.empty(len(keys), np.int64)
        for start in np.unique(starts).tolist():
            places = np.flatnonzero(starts == start)
            rows[places] = self._rows_in(start, [keys[place] for place in places.tolist()])
        return rows

    def _rows_in(self, start: int, keys: Sequence[bytes]) -> list[Any]:
        """Returns for each window the number of its row in memory.

        A window is given by its key and its start. A window without a row is read from the store first.
        """
        index = self._index.setdefault(start, {})
        rows = list(map(index.get, keys))
        new = [place for place, row in enumerate(rows) if row is None]
        if not new:
            return rows
        missing = list(dict.fromkeys([keys[place] for place in new]))
        raws = self._store.read_many(window_key(start, start + self._spec.duration_ms), missing)
        loaded = self._table.add(missing, raws)
        index.update(zip(missing, loaded, strict=True))
        if len(self._starts) < len(self._table.keys):
            self._starts = np.append(self._starts, np.zeros(len(self._table.keys) - len(self._starts), np.int64))
        self._starts[loaded] = start
        for place in new:
            rows[place] = index[keys[place]]
        return rows

    def _enter(self, segments: Segments, window_times: Places) -> None:
        """Writes an entry in the index by time for each new window, at the event time of the window's first message."""
        opens = np.flatnonzero(~self._table.there[segments.rows])
        if not len(opens):
            return
        rows, keys, length_ms = segments.rows[opens], self._table.keys, self._spec.duration_ms
        starts = self._starts[rows].tolist()
        before = {start: due_key(start + length_ms, start, start + length_ms, b"") for start in set(starts)}
        places = [before[start] + keys[row].hex() for start, row in zip(starts, rows.tolist(), strict=True)]
        opened_ms = window_times[segments.order[segments.starts[opens]]].tolist()
        heads = map(pack_head, repeat(VALUE_VERSION), repeat(CODEC_JSON), opened_ms)
        self._store.write_scattered(OWN_KEY, places, [head + _ENTRY for head in heads])

    def _write_back(self, rows: Places) -> None:
        keys, length_ms = self._table.keys, self._spec.duration_ms
        of = self._starts[rows]
        for start in np.unique(of).tolist():
            own = rows[of == start]
            for first in range(0, len(own), PIECE_ROWS):
                piece = own[first : first + PIECE_ROWS]
                message_keys = [keys[row] for row in piece.tolist()]
                self._store.write_many(window_key(start, start + length_ms), message_keys, self._table.stored(piece))

    def _make_room(self) -> None:
        rows_max, table = max(1024, self.rows_bytes_max // self._table.row_bytes), self._table
        count = sum(map(len, self._index.values()))
        if count <= rows_max:
            return
        used: Marks = table.used.copy()
        if np.count_nonzero(used) > rows_max // 2:
            used[:] = False  # Too many rows would stay in memory, so all are evicted and later read again.
        for index in self._index.values():
            gone = [key for key, row in index.items() if not used[row]]
            table.release([index.pop(key) for key in gone])
        table.used[:] = False


def has_columns(spec: WindowSpec) -> bool:
    """Whether windows of this kind can be computed with numpy. The aggregates of the windows are not checked."""
    reduces = any(isinstance(made, Reduce) for made in spec.aggregation.columns.values())
    return (
        spec.kind in ("tumbling", "hopping")
        # A reducer may change the message object. With overlapping windows, the message's next window needs it
        # unchanged.
        and not (reduces and spec.step_ms < spec.duration_ms)
        and spec.closing == "partition"
        and spec.before_update is None
        and spec.after_update is None
        and spec.every_ms is None
    )


def _at(item: Any, of: Places, places: Sequence[int]) -> Any:
    """Returns for each window the item that the column has read from the window's message."""
    if item is None:
        return None
    return [item[place] for place in places] if isinstance(item, list) else item.take(of)
