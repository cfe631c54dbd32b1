"""Aggregates of the rows of a table. A row can be added to its group, and removed from it again.

All columns of a group are stored together, in one value. The field ``rows`` is the number of rows in the group. The
form of a column depends on its aggregator::

    {"format": 1, "rows": 2, "columns": {"total": [3, 1, 1], "average": [12, 0, 0], "all": [value]}}

    Sum, Mean     [numerator, exponent, floats]: the exact sum, numerator / 2**exponent, and how many of its items are
                  floats
    Reduce        a list with the reduced value; absent for a group without rows
    Count         nothing, because the count is ``rows``
    Collect       nothing, because its items are stored by row, outside of this value

Invariants:
    - A row that is added and removed again leaves no trace in the stored value. Sums are exact, so the order in which
      rows are added does not matter.
    - A sum of whole numbers is a whole number; as soon as one item is a float, the sum is a float, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.processors.engine.aggregates.aggregation import (
    FORMAT,
    FORMAT_VERSION,
    Aggregation,
    AggregationFailed,
    AggregationInvalid,
    Aggregator,
    Collect,
    Count,
    Mean,
    Sum,
)
from holdfast.processors.engine.aggregates.window_aggregates import Reduce
from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.formats.typed import given_back, kept, stored

ROWS, COLUMNS = "rows", "columns"

#: The aggregators that can undo the effect of a row, when the row changes or is deleted.
RETRACTABLE: tuple[type[Aggregator], ...] = (Count, Sum, Mean, Collect, Reduce)
_EXPECTED = "Count, Sum, Mean, Collect, or Reduce with a subtractor"

#: The items that one row adds to its group. A row has one item for each column except counts, sorted by column name.
Items = Sequence[Any]


class RetractableColumns(Aggregation):
    """The columns of an aggregation of rows that change and are deleted.

    Raises:
        AggregationInvalid: There is no column, or a column can't undo the effect of a removed row.
    """

    aggregators = RETRACTABLE
    expected = _EXPECTED
    written = 'aggregate({"total": Sum("amount")})'

    def __init__(self, columns: Mapping[str, Aggregator]) -> None:
        super().__init__(columns)
        self._read = [(name, made) for name, made in sorted(self.columns.items()) if not isinstance(made, Count)]
        self._places = {name: at for at, (name, _) in enumerate(self._read)}
        self._row: Callable[[Any], Any] | None = None
        self._keep: Callable[[Any], Any] | None = None
        #: The names of the ``Collect`` columns. Their items are stored by row, outside of the group's stored value.
        self.collected = tuple(name for name, made in self._read if isinstance(made, Collect))
        #: The largest ``limit`` of all ``Collect`` columns. A result needs the collected items of at most this many
        #: rows.
        self.shown = max((made.limit for made in self.columns.values() if isinstance(made, Collect)), default=0)

    def _check_column(self, name: Any, made: Any) -> None:
        if isinstance(made, Aggregator) and not isinstance(made, RETRACTABLE):
            raise AggregationInvalid(
                f"Column {name!r} of a table is {made.describe()}: when a row changes or is deleted, it can't give the "
                f"former row back. Expected {_EXPECTED}.",
                action="Keep the values of the rows, and take the column from them (`from holdfast import Collect`): "
                "`aggregate(all=Collect('amount', limit=1000)).map(lambda group: max(group['all']))`.",
                column=name,
            )
        super()._check_column(name, made)
        if isinstance(made, Reduce) and made.subtractor is None:
            raise AggregationInvalid(
                f"Column {name!r} of a table is {made.describe()} without a subtractor: when a row changes or is "
                "deleted, its former value has to be taken out.",
                action="Write, for example, `Reduce(reducer=lambda total, row: total + row['n'], "
                "initializer=lambda row: row['n'], subtractor=lambda total, row: total - row['n'])`.",
                column=name,
            )

    def take_instances(self, kind: Any) -> None:
        """Says that the rows are instances of ``kind``. The functions of ``Reduce`` then get instances."""
        self._row, self._keep = given_back(kind), kept(kind)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions that read a row, and the user functions of the ``Reduce`` columns."""
        reduced = [made for made in self.columns.values() if isinstance(made, Reduce)]
        own = [code for made in reduced for code in (made.reducer, made.initializer, made.subtractor) if code]
        return (*super().functions, *own)

    @property
    def described(self) -> dict[str, str]:
        """Each column as text, for example ``sum(amount)``, by name."""
        return {name: made.describe() for name, made in self.columns.items()}

    def items(self, row: Any) -> list[Any]:
        """Returns the items of one row: the value that each column, except counts, reads from the row.

        Raises:
            AggregationFailed: The row lacks a field, or has a value that can't be aggregated.
        """
        keep = self._keep
        return [
            made.read(row, name) if keep is None or not isinstance(made, Reduce) else keep(row)
            for name, made in self._read
        ]

    def of_collected(self, items: Items) -> list[Any]:
        """Returns the items of a row that are for ``Collect`` columns. Only these items are stored by row."""
        return [items[self._places[name]] for name in self.collected]

    def moved(self, held: Any, out: Items | None, into: Items | None) -> dict[str, Any] | None:
        """Returns a group's stored value after one row was removed and another row was added.

        Returns None for a group without rows.

        Args:
            held: The stored value before; None if the group has no stored value.
            out: The items of the row to remove; None if no row is removed.
            into: The items of the row to add; None if no row is added.

        Raises:
            AggregationFailed: A function of a column raised an error.
            FormatUnknown: The stored value has another format version.
        """
        rows, columns = self._read_held(held)
        for items, sign in ((out, -1), (into, 1)):
            if items is None:
                continue
            rows += sign
            for item, (name, made) in zip(items, self._read, strict=True):
                after = self._changed(made, columns.get(name), item, name, sign)
                if after is None or (rows == 0 and isinstance(made, Reduce)):
                    columns.pop(name, None)
                else:
                    columns[name] = after
        if rows == 0 and not columns:
            return None
        # The columns are always stored in the same order, so that the same rows give the same stored bytes.
        ordered = {name: columns[name] for name, _ in self._read if name in columns}
        return {FORMAT: FORMAT_VERSION, ROWS: rows, COLUMNS: ordered}

    def row(self, held: Any, collected: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
        """Returns the result of a group, in the order of the columns; None for a group without rows.

        Args:
            held: The stored value.
            collected: The items of the ``Collect`` columns, for the group's first rows in the order of their keys.

        Raises:
            AggregationFailed: JSON can't hold a result.
        """
        rows, columns = self._read_held(held)
        if rows <= 0:
            return None
        return {name: self._result(made, name, rows, columns, collected) for name, made in self.columns.items()}

    @staticmethod
    def _read_held(held: Any) -> tuple[int, dict[str, Any]]:
        if held is None:
            return 0, {}
        if held.get(FORMAT) != FORMAT_VERSION:
            action = "Run the Holdfast version that wrote it, or set another `name` for the aggregation."
            raise unknown_version("A stored group", held.get(FORMAT), FORMAT_VERSION, action=action)
        return held[ROWS], dict(held[COLUMNS])

    def _changed(self, made: Aggregator, held: Any, item: Any, column: str, sign: int) -> Any:
        """Returns the stored value of a column after an item was added (``sign`` 1) or removed (``sign`` -1)."""
        if isinstance(made, Collect):
            return None
        if not isinstance(made, Reduce):
            return _sum(held, item, sign)
        try:
            if self._row is not None:
                item = self._row(item)
            if sign > 0:
                after = made.add(held, item, column)[0]
                return [after if self._row is None else stored(after)]
            assert made.subtractor is not None
            # ``held`` is None if the message that should have added this row failed. The row was then never added, so
            # nothing is removed.
            if held is None:
                return None
            after = made.subtractor(held[0], item)
            return [after if self._row is None else stored(after)]
        except Exception as failure:
            done = "be added" if sign > 0 else "be taken out"
            raise made.failed(column, f"can't {done}: {type(failure).__name__}: {failure}", "") from failure

    def _result(
        self, made: Aggregator, column: str, rows: int, columns: Mapping[str, Any], collected: Sequence[Sequence[Any]]
    ) -> Any:
        if isinstance(made, Count):
            return rows
        if isinstance(made, Collect):
            place = self.collected.index(column)
            return [items[place] for items in collected[: made.limit]]
        held = columns.get(column)
        if isinstance(made, Reduce):
            return None if held is None else held[0]
        total, exponent, floats = held or (0, 0, 0)
        try:
            if isinstance(made, Mean):
                return total / (rows << exponent)
            return total / (1 << exponent) if floats else total >> exponent
        except OverflowError as failure:
            raise AggregationFailed(
                f"Column {column!r} is {made.describe()}, and the total of its group is one that no float can hold.",
                action="Leave out such rows by `table.filter(...)` before `group_by`, and build all state again: "
                "`holdfast apply stop PROCESSOR`, then `holdfast apply clear PROCESSOR --all --rewind earliest`.",
                column=column,
                seen="float",
            ) from failure


def _sum(held: Any, item: int | float, sign: int) -> list[int] | None:
    """Returns an exact sum after an item was added (``sign`` 1) or removed (``sign`` -1).

    Returns None for a sum without items.
    """
    total, exponent, floats = held or (0, 0, 0)
    top, bottom = item.as_integer_ratio()
    power = bottom.bit_length() - 1
    shared = max(exponent, power)
    total = (total << (shared - exponent)) + sign * (top << (shared - power))
    # The fraction is reduced to lowest terms, so that the same rows give the same stored value.
    spare = min(shared, (total & -total).bit_length() - 1) if total else shared
    made = [total >> spare, shared - spare, floats + sign * (type(item) is float)]
    return made if any(made) else None
