"""Adds many messages at once to a built-in aggregation, with numpy. The results equal those of ``Aggregation``.

Consecutive messages that are computed together are a *run*. Each message key has a row in memory. A row is loaded from
the store at its first use. It is written back to the store's overlay (the uncommitted writes in memory) before a
commit. The row is also written back when ``Aggregation`` must process messages of the key one by one (the plain path)::

    messages   decode the needed fields      numpy, one step for each rank     encode all outputs
    k1 {...} ─► amount 3.0 ─┐                sort by row:  k1 k1 k2        ┌─► {"total":3.0}
    k2 {...} ─► amount 1.0 ─┼─► Segments ─►  kernels.running_sum(...)  ────┼─► {"total":1.0}
    k1 {...} ─► amount 2.0 ─┘                                              └─► {"total":5.0}

    rows       store.read_many ─► RowTable ─► (commit) ─► store.write_many

If numpy can't compute a run with exactly the same results as Python, ``Unfit`` is raised before anything changes. The
plain path then processes this run. Three modules contain the optimisations.
``tests/unit/processors/engine/aggregates/test_columnar.py`` fails if an optimisation gives wrong results.

- ``message_columns`` decodes only the needed fields.
- ``row_table`` fills a template of bytes, instead of encoding objects.
- ``kernels`` sorts small row numbers as 16-bit integers, for which numpy uses the faster radix sort.

Invariants:
    - A row is never older than the value of its key in the store's overlay.
    - The bytes of outputs and state are the same as those of ``Aggregation`` and ``State.set``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from holdfast.processors.engine.aggregates.aggregation import STATE_KEY, Aggregation
from holdfast.processors.engine.aggregates.columns import Unfit, as_json, struct_of
from holdfast.processors.engine.aggregates.kernels import Places, Segments
from holdfast.processors.engine.aggregates.message_columns import Picked, reader_of
from holdfast.processors.engine.aggregates.row_table import RowTable
from holdfast.processors.engine.expressions.steps import ColumnStep
from holdfast.processors.engine.record_size import UNLIMITED

#: Number of rows that are written back together. The number is small, so that the rows stay in the CPU's caches.
PIECE_ROWS = 1000


class RowStore(Protocol):
    """The store from which rows are loaded and to which they are written back; ``StoreState`` implements it."""

    def read_many(self, state_key: str, message_keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns stored values, uncommitted values included; None for a key without a value."""

    def write_many(self, state_key: str, message_keys: Iterable[bytes], values: Sequence[bytes]) -> None:
        """Writes the values of these message keys into the store's overlay, which holds uncommitted writes."""


class ColumnarAggregation:
    """Computes one aggregation of one task with numpy.

    Args:
        output_bytes_max: The maximum of key plus value of an output, in bytes.
        state_bytes_max: The maximum of changelog key plus value of a state value, in bytes.
        rows_bytes_max: The maximum memory of the rows, in bytes. If they need more, a commit evicts rows that were not
            used recently.
        steps: The column expressions before the aggregation.

    Raises:
        Unfit: The aggregation has a column that numpy does not support (``Collect``), or the steps can only process one
            message at a time.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        store: RowStore,
        *,
        output_bytes_max: int = UNLIMITED,
        state_bytes_max: int = UNLIMITED,
        rows_bytes_max: int = 64 << 20,
        steps: Sequence[ColumnStep] = (),
    ) -> None:
        self._store = store
        self._output_bytes_max, self._state_bytes_max = output_bytes_max, state_bytes_max
        self._table = RowTable(aggregation)
        self._read = reader_of(aggregation, steps)
        self._make_output = struct_of("Output", aggregation.columns)
        self.rows_bytes_max = rows_bytes_max
        self._index: dict[bytes, int] = {}

    def picked(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> Picked | None:
        """Reads from these messages the items (values of fields) that the aggregation's columns need.

        The column expressions before the aggregation run first.

        Returns None if the messages must be processed one by one.
        """
        if None in keys or None in values:
            return None
        try:
            return self._read(values)  # type: ignore[arg-type]
        except Unfit:
            return None

    def run(self, keys: Sequence[bytes | None], items: list[Any], timestamps: Sequence[int]) -> list[bytes] | None:
        """Adds consecutive messages with these ``items`` to the aggregation, and returns their outputs.

        Returns None, and changes nothing, if ``Aggregation`` must process the messages one by one.
        """
        try:
            return self._run(keys, items, timestamps) if keys else []  # type: ignore[arg-type]
        except Unfit:
            return None

    def leave(self, keys: Iterable[bytes | None]) -> None:
        """Writes the rows of these keys back to the store and drops the rows from memory.

        ``Aggregation`` can then process messages of these keys one by one.
        """
        found = [self._index.pop(key) for key in set(keys) if key is not None and key in self._index]
        if found:
            rows = np.array(found, np.int64)
            self._write_back(rows[self._table.dirty[rows]])
            self._table.release(found)

    def write_back(self) -> None:
        """Adds all changed rows to the store's overlay (its uncommitted writes), so the next commit contains them."""
        self._write_back(np.flatnonzero(self._table.dirty))

    def committed(self) -> None:
        """Evicts rows from memory if all rows need more memory than allowed.

        The caller must call it after each commit.
        """
        if len(self._index) > self._rows_max():
            self._forget_unused()

    def drop(self) -> None:
        """Discards all rows in memory, also changed ones. Later runs load the rows from the store again."""
        self._index.clear()
        self._table.forget_all()

    def dirty_bytes(self) -> int:
        """Estimated memory in bytes that the changed rows will need in the store's overlay (uncommitted writes)."""
        return self._table.dirty_bytes()

    # -- internal methods --------------------------------------------------------------------------------------

    def _run(self, keys: Sequence[bytes], items: list[Any], timestamps: Sequence[int]) -> list[bytes]:
        table = self._table
        longest_key = max(map(len, keys))
        table.check_state_size(items, longest_key + len(STATE_KEY) + 8, self._state_bytes_max)
        segments = Segments.of(self._rows_of(keys))
        ran = table.run(items, segments)
        raws = as_json(map(self._make_output, *table.shown(ran, segments)))
        if max(map(len, raws)) + longest_key > self._output_bytes_max:
            raise Unfit
        table.keep(ran, segments, np.array(timestamps, np.int64))
        return raws

    def _rows_of(self, keys: Sequence[bytes]) -> Places:
        rows: list[int | None] = list(map(self._index.get, keys))
        if None in rows:
            missing = list(dict.fromkeys(key for key, row in zip(keys, rows, strict=True) if row is None))
            loaded = self._table.add(missing, self._store.read_many(STATE_KEY, missing))
            self._index.update(zip(missing, loaded, strict=True))
            rows = list(map(self._index.get, keys))
        return np.array(rows, np.int64)

    def _write_back(self, rows: Places) -> None:
        keys = self._table.keys
        for first in range(0, len(rows), PIECE_ROWS):
            piece = rows[first : first + PIECE_ROWS]
            self._store.write_many(STATE_KEY, [keys[row] for row in piece.tolist()], self._table.stored(piece))

    def _rows_max(self) -> int:
        return max(1024, self.rows_bytes_max // self._table.row_bytes)

    def _forget_unused(self) -> None:
        """Evicts rows until at most three quarters of the allowed number of rows are left.

        Changed rows stay in memory, because they are not written back yet. Rows that were not used since the last
        eviction are evicted first, in the order in which they were added.
        """
        keys, table = list(self._index), self._table
        rows = np.fromiter(self._index.values(), np.int64, len(keys))
        clean, used = ~table.dirty[rows], table.used[rows]
        oldest = np.concatenate((np.flatnonzero(clean & ~used), np.flatnonzero(clean & used)))
        places = oldest[: len(keys) - self._rows_max() * 3 // 4].tolist()
        table.release([self._index.pop(keys[place]) for place in places])
        table.used[:] = False
