"""The steps of tables that are made of another table: its rows filtered, mapped, or aggregated by another key.

    table ──► row filter ──► kept rows, sent when they change
    table ──► row map    ──► mapped rows, sent when they change

    table ──► moved rows ──► …-repartition ──► group rows
              (1)            topic, by group   (2)
    (1) stores by row key: the group that the row was added to, and the row's *items* (the values to aggregate).
    (2) stores by group: the number of its rows, the sums, and the row of the result.

If a row changes, its former group gets the former items and subtracts them. Its present group gets the present items
and adds them. Both records are in the transaction that commits the change of the row. If the group stays the same, one
record contains the former and the present items.

Invariants:
    - A group removes exactly the items that it has added, even if a user function has changed since. For this reason,
      (1) stores the items that it has sent. It can't read them from the table, because the table's changelog may be a
      topic that lacks older rows.
    - All records about one row come from one task, in the order of the changes of the row. A group therefore never
      removes a row before it has added the row.
    - A changed row that leaves the result equal sends no record. If a group loses its last row, None is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.aggregates.aggregation import STATE_KEY
from holdfast.processors.engine.aggregates.retractable import RetractableColumns
from holdfast.processors.engine.changelog.format import encode_value
from holdfast.processors.engine.formats.typed import field_of, stored
from holdfast.processors.engine.joins.table_rows import ROW
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.group_key import text_of_key
from holdfast.processors.engine.steps.step import ROWS_WRITTEN, RowColumns, Step, StoreForm, StoreUse

#: The source of the group's key: the name of a field of the row, or a function of the row. None means no group.
Key = str | Callable[[Any], Any]

_SENT = "sent"
#: The prefix of the state keys under which a group stores, for each of its rows, the values that ``Collect`` shows.
_ITEMS = "items/"


class RowKeyInvalid(HoldfastError):
    """A row has a value that can't be the key of a group."""


class _RowStep(Step):
    """Base class of steps that store rows and send their changes.

    One user function, which gets the row, decides what is stored.
    """

    order = "feeds"
    store_use = ROWS_WRITTEN
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, func: Callable[[Any], Any]) -> None:
        self.functions = (func,)
        self._func = func


class RowFilter(_RowStep):
    """Stores the rows for which a function returns a true value. Sends each changed row, and None for a deleted row."""

    __name__ = "filter"

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "filter of rows"

    def __call__(self, row: Any, state: State) -> list[Any]:
        """Returns a list with the changed row (None: deleted). The list is empty if nothing changed.

        ``state`` is the state of the filtered table.
        """
        return changed(row if row is not None and self._func(row) else None, state)


class RowMap(_RowStep):
    """Stores the result of a function for each row. Sends each changed result, and None for a deleted row."""

    __name__ = "map"

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "map of rows"

    def __call__(self, row: Any, state: State) -> list[Any]:
        """Returns a list with the changed row (None: deleted). The list is empty if nothing changed.

        ``state`` is the state of the mapped table.
        """
        return changed(None if row is None else stored(self._func(row)), state)


class MovedRows(Step):
    """When a row changes, sends its former items to its former group, and its present items to its present group.

    The items of a row are the values that the aggregation's columns read from it.
    """

    __name__ = "group_by"
    store_use = StoreUse(StoreForm.OWN)
    retracts = True
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, key: Key, columns: RetractableColumns) -> None:
        self._key, self._columns = key, columns
        self.functions = (*((key,) if callable(key) else ()), *columns.functions)

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return f"group rows by {'function' if callable(self._key) else self._key}"

    def __call__(self, row: Any, state: State) -> list[list[Any]]:
        """Returns the records for the repartition topic; each is [group, row key, former items, present items].

        The former items are inside a list, which is empty if no items must be removed. The present items are inside a
        list, too, which is empty if no items must be added. ``state`` has the group and the items that were sent last
        for this row.
        """
        former, present = state.get(_SENT), self._place_of(row)
        if _is_equal(former, present):
            return []
        if present is None:
            state.delete(_SENT)
        else:
            state.set(_SENT, present)
        row_key = state.message_key.decode("latin-1")  # type: ignore[attr-defined]
        if former is None:
            return [[present[0], row_key, [], [present[1]]]]
        if present is None:
            return [[former[0], row_key, [former[1]], []]]
        if former[0] == present[0]:
            return [[present[0], row_key, [former[1]], [present[1]]]]
        return [[former[0], row_key, [former[1]], []], [present[0], row_key, [], [present[1]]]]

    def _place_of(self, row: Any) -> Any:
        """Returns [group, items] of a row; None for a row that belongs to no group."""
        if row is None:
            return None
        made = self._key(row) if callable(self._key) else field_of(row, self._key)
        if made is None:
            return None
        try:
            group = text_of_key(made)
        except TypeError as failure:
            raise RowKeyInvalid(
                f"A row has a group that can't be a key: {failure}.",
                action="Write the key of `group_by` as a function that returns a text, bytes or a whole number.",
                seen=repr(made)[:80],
            ) from failure
        return [group.decode("latin-1"), self._columns.items(row)]


class GroupRows(Step):
    """Stores the aggregates of each group. Sends the row of the group when it changes, and None if no row is left."""

    __name__ = "aggregate"
    order = "feeds"
    store_use = ROWS_WRITTEN
    retracts = True
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, columns: RetractableColumns) -> None:
        self._columns, self.functions = columns, columns.functions

    @property
    def row_columns(self) -> RowColumns:
        """The state key under which a group's row is stored, and the aggregates that are the columns of this row."""
        return RowColumns(ROW, self._columns.columns)

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "; ".join(f"{name} = {column}" for name, column in self._columns.described.items())

    def __call__(self, moved: list[Any], state: State) -> list[Any]:
        """Returns a list with the changed row of the group (None: deleted). The list is empty if nothing changed.

        ``state`` is the state of the aggregated table.
        """
        _, row_key, former, present = moved
        columns = self._columns
        out, into = former[0] if former else None, present[0] if present else None
        held = columns.moved(state.get(STATE_KEY), out, into)
        if held is None:
            state.delete(STATE_KEY)
        else:
            state.set(STATE_KEY, held)
        collected: list[Any] = []
        if columns.collected:
            if into is not None:
                state.set(_ITEMS + row_key, columns.of_collected(into))
            else:
                state.delete(_ITEMS + row_key)
            collected = [items for _, items in state.items(prefix=_ITEMS, limit=columns.shown)]
        return changed(columns.row(held, collected), state)


# The source code of the next function, with its docstring, is a part of the code version of each processor that groups
# a table. If it changes, every such processor has a new code version.
def moved_key(value: list[Any]) -> bytes:
    """The group of a moved row."""
    group: str = value[0]
    return group.encode("latin-1")


def changed(row: Any, state: State) -> list[Any]:
    """Stores ``row`` as the row of a table; None deletes the row.

    Returns the row in a list. The list is empty if the stored row already was equal.
    """
    former, plain = state.get(ROW), stored(row)
    if _is_equal(former, plain):
        return []
    if plain is None:
        state.delete(ROW)
    else:
        state.set(ROW, plain)
    return [row]


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values have the same stored form. Unlike in Python, 1, 1.0 and true are different values."""
    if one is None or other is None:
        return one is other
    return encode_value(one, 0) == encode_value(other, 0)
