"""The methods that make a table of another table: ``filter``, ``map``, and ``group_by(...).aggregate(...)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn, TypeVar, cast

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.aggregates.aggregation import Aggregator
from holdfast.processors.engine.aggregates.retractable import RetractableColumns
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.formats.typed import row_model
from holdfast.processors.engine.joins.row_changes import GroupRows, Key, MovedRows, RowFilter, RowMap, moved_key
from holdfast.processors.engine.steps.checked_arguments import check_function
from holdfast.processors.engine.steps.meaning import field_or_function, functions_of, lines_of
from holdfast.processors.engine.steps.node import Node

Made = TypeVar("Made", bound="TableChanges[Any]")


class TableInvalid(BadConfiguration):
    """The declaration of a table that is made of another table has an invalid argument."""


class AggregateExpected(TableInvalid, AttributeError):
    """A table with ``group_by`` was given a method of streams or of Kafka Streams in place of ``aggregate``."""


#: For methods that users of other libraries expect on a grouped table: arguments of ``aggregate`` that do the same.
_EXAMPLES = {
    **dict.fromkeys(("agg", "count"), "n=Count()"),
    "sum": 'total=Sum("amount")',
    "mean": 'average=Mean("amount")',
    "collect": "rows=Collect(limit=100)",
    "reduce": "total=Reduce(add, first, subtractor=subtract)",
}


class TableChanges(Generic[Made]):
    """The methods of a table that make another table from it.

    Changes and deletions of rows also update the other table.
    """

    name: str
    stream: Any

    def filter(self, func: Callable[[Any], Any], name: str | None = None, *, model: Any = None) -> Made:
        """Returns a table of the rows for which ``func`` returns a true value.

        A row is deleted from the result if it no longer matches, or if it is deleted from this table.

        Args:
            func: A function of the row.
            name: The store of the result; None means ``<store>-filter``.
            model: The model of the rows, which gives typed columns in the warehouse.

        Raises:
            TableInvalid: ``func`` is not a function.
            StepInvalid: The function takes other arguments, or the store's name is invalid.
        """
        _check_function(func, "filter", "`table.filter(lambda row: row['amount'] > 0)`")
        kept = self.stream._store(name, f"{self.name}-filter")
        means = lines_of("table_filter", kept, func=func)
        model = row_model(self.stream._model) if model is None else model
        made = self.stream._then(Node("apply", RowFilter(func), kept, expand=True, model=model, meaning=means))
        # The filtered table's rows have the same type as before, because a filter does not change the rows.
        made._model, made._mixed = self.stream._model, self.stream._mixed
        return self._derived(kept, made)

    def map(self, func: Callable[[Any], Any], name: str | None = None, *, model: Any = None) -> Made:
        """Returns a table that has, for each row of this table, the result of ``func`` under the same key.

        Args:
            func: A function of the row that returns the row of the result. None means no row.
            name: The store of the result; None means ``<store>-map``.
            model: The model of the rows of the result, which gives typed columns in the warehouse.

        Raises:
            TableInvalid: ``func`` is not a function.
            StepInvalid: The function takes other arguments, or the store's name is invalid.
        """
        _check_function(func, "map", "`table.map(lambda row: row['amount'])`")
        kept = self.stream._store(name, f"{self.name}-map")
        means = lines_of("table_map", kept, func=func)
        return self._derived(
            kept, self.stream._then(Node("apply", RowMap(func), kept, expand=True, model=model, meaning=means))
        )

    def group_by(self, key: Key, name: str | None = None) -> GroupedTable[Made]:
        """Groups the rows of this table by another key. Call ``aggregate`` on the result.

        If a row changes or is deleted, it is removed from its former group.

        Args:
            key: A field of the row, or a function of the row, that gives a text, bytes or a whole number. A row whose
                key is None is in no group.
            name: The name of the grouping; None means the field's name. A function needs a name.

        Raises:
            TableInvalid: The key is neither a field nor a function, or the name is missing.
            StepInvalid: The function takes other arguments.
        """
        if not isinstance(key, str):
            _check_function(key, "group_by", "`table.group_by('status')`", "a field's name or a function of the row")
            if name is None:
                raise TableInvalid(
                    "`group_by` of a table got a function and no name, which names its topic and stores.",
                    action="Add one: `table.group_by(function, name='by-status')`.",
                )
        grouping = check_name(cast(str, key) if name is None else name, "name of a `group_by`")
        return GroupedTable(cast(Made, self), key, grouping)

    def _derived(self, name: str, stream: Any) -> Made:
        return cast(Made, replace(cast(Any, self), name=name, stream=stream, has_history=False))


@dataclass(frozen=True, slots=True)
class GroupedTable(Generic[Made]):
    """The rows of a table, grouped by another key. Its method ``aggregate`` returns a table.

    Attributes:
        table: The table whose rows are grouped.
        key: A field of the row, or a function of the row.
        name: The name of the grouping.
    """

    table: Made
    key: Key
    name: str

    def __getattr__(self, name: str) -> NoReturn:
        example = _EXAMPLES.get(name)
        if example is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        grouped = f"`group_by({self.key!r})`" if isinstance(self.key, str) else "`group_by` with a function"
        raise AggregateExpected(
            f"A {grouped} of a table has no method `{name}`; expected `aggregate`, with a name for each column.",
            action=f"Write `.aggregate({example})`.",
            method=name,
        )

    def aggregate(
        self,
        columns: Mapping[str, Aggregator] | None = None,
        *,
        name: str | None = None,
        model: Any = None,
        **named: Aggregator,
    ) -> Made:
        """Returns a table with one row for each group: a dict with one entry for each column.

        When a row of the grouped table changes or is deleted, its former values are removed from its former group. A
        group without rows has no row in the result.

        Args:
            columns: An aggregator for each column name: ``Count``, ``Sum``, ``Mean``, ``Collect``, or ``Reduce`` with a
                ``subtractor``.
            name: The store of the result; None means ``<store>-by-<grouping>-aggregate``.
            model: The model of the rows of the result, which gives typed columns in the warehouse.
            named: More columns, for example ``orders=Count()``.

        Raises:
            AggregationInvalid: There is no column, or a column can't undo the effect of a removed row.
            StepInvalid: The store's name is invalid.
            GroupByInvalid: The table belongs to no application, or the name is already in use.
        """
        for taken, given in (("name", name), ("model", model)):
            # a user's column may have the name "name" or "model", so the argument may be an aggregator
            if isinstance(given, Aggregator):
                named = {**named, taken: given}
        name, model = (None if isinstance(each, Aggregator) else each for each in (name, model))
        made = RetractableColumns({**(columns or {}), **named})
        stream = self.table.stream
        if stream._model is not None:
            made.take_instances(stream._model)
        kept = stream._store(name, f"{self.table.name}-by-{self.name}-aggregate")
        sent = stream._store(None, f"{kept}-rows")
        means = (
            *lines_of("table_group_by", kept, key=field_or_function(self.key)),
            *lines_of("table_aggregate", kept, columns=made.described, of=functions_of(made.columns)),
        )
        moved = stream._then(Node("apply", MovedRows(self.key, made), sent, expand=True, meaning=means))
        grouped = moved._between(moved_key, kept, f"{self.table.name}-by-{self.name}")
        rows = grouped._then(Node("apply", GroupRows(made), kept, expand=True, model=model))
        return cast(Made, self.table._derived(kept, rows))


def _check_function(func: Any, step: str, example: str, expected: str = "a function of the row") -> None:
    if not callable(func):
        raise TableInvalid(
            f"`{step}` of a table got {func!r}, expected {expected}.",
            action=f"Write, for example, {example}.",
            seen=repr(func)[:80],
        )
    check_function(func, f"`{step}` of a table", ("row",))
