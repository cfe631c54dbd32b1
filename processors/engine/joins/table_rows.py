"""The steps of tables: ``TablePut`` stores the row of each key under the state key ``row``, ``TableRead`` reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from holdfast.processors.engine.formats.typed import stored
from holdfast.processors.engine.joins.merge import OnMerge, check_how, check_merge, merge_function, name_of
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.step import ROWS_READ, ROWS_WRITTEN, Step

#: The state key of a table's row.
ROW = "row"


class TablePut(Step):
    """Stores the newest value of each key as the row of a table. A value of None deletes the row."""

    __name__ = "table"
    order = "feeds"
    store_use = ROWS_WRITTEN

    def __call__(self, value: Any, state: State) -> None:
        """Stores the value of one message as the row of the message's key."""
        if value is None:
            state.delete(ROW)
        else:
            state.set(ROW, stored(value))


class TableRead(Step):
    """Joins each message with the row of its key."""

    __name__ = "join_table"
    order = "reads"
    store_use = ROWS_READ
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, how: Literal["inner", "left"], on_merge: OnMerge) -> None:
        check_how(how, ("inner", "left"))
        check_merge(on_merge)
        self._merge, self._inner = merge_function(on_merge), how == "inner"
        self._rule = f"table, {how}, {name_of(on_merge)}"
        self.functions = (on_merge,) if callable(on_merge) else ()

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return self._rule

    def __call__(self, value: Any, state: State) -> list[Any]:
        """Returns the joined value in a list. An empty list drops the message."""
        return self.joined(value, state.get(ROW))

    def joined(self, value: Any, row: Any) -> list[Any]:
        """Joins a value with a row (None: the key has no row).

        Returns a list with the result; an empty list drops the value.
        """
        if row is not None:
            return [self._merge(value, row)]
        return [] if self._inner else [self._merge(value, None)]
