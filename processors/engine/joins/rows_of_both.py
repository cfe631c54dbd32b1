"""The steps of a join of two tables, ``left.join(right)``. The result is a table, too.

    left table ───┐
                  ├──► left row ──► right row ──► joined row: merged, kept, sent
    right table ──┘

When a row of either table changes, the steps read the rows of both tables with this key. The joined table has its own
store, with the row under the state key ``row``, like every table. Queries, joins, audits and snapshots therefore treat
it like every other table. A pair is (left row, right row); None means no row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from holdfast.processors.engine.joins.merge import OnMerge, check_how, check_merge, merge_function, name_of
from holdfast.processors.engine.joins.table_rows import ROW
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.step import ROWS_READ, ROWS_WRITTEN, Step

TablesHow = Literal["inner", "left", "outer"]


class LeftRow(Step):
    """Reads the left table's row of a changed key. The value of the change itself is ignored."""

    __name__ = "join"
    store_use = ROWS_READ

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "row of the left table"

    def __call__(self, _: Any, state: State) -> Any:
        """Returns the row of the left table; None if it has no row. ``state`` is the state of the left table."""
        return state.get(ROW)


class RightRow(Step):
    """Reads the right table's row of the same key, and returns it together with the left row."""

    __name__ = "join"
    store_use = ROWS_READ

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "row of the right table"

    def __call__(self, left: Any, state: State) -> tuple[Any, Any]:
        """Returns the pair (left row, right row). ``state`` is the state of the right table."""
        return left, state.get(ROW)


class JoinedRow(Step):
    """Stores the joined row of a key. Sends the row when it changes, and None when it is deleted."""

    __name__ = "join"
    order = "feeds"
    store_use = ROWS_WRITTEN
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, how: TablesHow, on_merge: OnMerge) -> None:
        check_how(how, ("inner", "left", "outer"))
        check_merge(on_merge)
        self._merge = merge_function(on_merge)
        self._needs_left, self._needs_right = how != "outer", how == "inner"
        self._rule = f"tables, {how}, {name_of(on_merge)}"
        self.functions = (on_merge,) if callable(on_merge) else ()

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return self._rule

    def __call__(self, pair: tuple[Any, Any], state: State) -> list[Any]:
        """Returns a list with the changed joined row; the list is empty if nothing changed.

        ``state`` is the state of the joined table.
        """
        row = self._merge(*pair) if self._is_wanted(*pair) else None
        return changed(row, state)

    def _is_wanted(self, left: Any, right: Any) -> bool:
        if left is None and (self._needs_left or right is None):
            return False
        return right is not None or not self._needs_right


def changed(row: Any, state: State) -> list[Any]:
    """Sets the row of a joined table, or deletes it if ``row`` is None. Returns the row in a list.

    The list is empty if ``row`` is None and there was no row to delete.
    """
    if row is not None:
        state.set(ROW, row)
        return [row]
    if not state.exists(ROW):
        return []
    state.delete(ROW)
    return [None]
