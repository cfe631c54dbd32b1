"""A table says for each argument of each step how a change of the argument affects stored state.

No step and no argument is missing in the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from holdfast.processors.application.tables import ApplicationTables
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.joins.table_changes import GroupedTable
from holdfast.processors.engine.joins.tables import Table
from holdfast.processors.engine.steps.meaning import ARGUMENTS
from holdfast.processors.engine.windows.results import AggregatedCountWindow, AggregatedWindow

#: Methods that a table and a stream share, with the names of the table's steps.
OF_TABLES = {name: f"table_{name}" for name in ("filter", "map", "group_by", "aggregate")}
#: Methods that declare no step. They look up topics and rows.
NO_STEPS = {"dataframe", "global_table", "store", "test", "topic"}


def declared() -> Iterator[tuple[str, set[str]]]:
    """Each public method that declares a step, with its arguments."""
    for kind in (StreamingDataFrame, Table, GroupedTable, AggregatedWindow, AggregatedCountWindow, ApplicationTables):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in NO_STEPS:
                step = OF_TABLES.get(name, name) if kind in (Table, GroupedTable) else name
                yield step, set(inspect.signature(method).parameters) - {"self"}


def test_each_argument_of_each_step_is_classed() -> None:
    steps: dict[str, set[str]] = {}
    for name, arguments in declared():
        steps.setdefault(name, set()).update(arguments)
    assert set(steps) == set(ARGUMENTS), "processors/engine/steps/meaning.py has other steps"
    for name, arguments in steps.items():
        # `of` is an argument of the columns of a window or an aggregation, not of the step.
        classed = set(ARGUMENTS[name]) - ({"of"} if name.endswith(("aggregate", "_window")) else set())
        assert classed == arguments, f"class the arguments of `{name}` in processors/engine/steps/meaning.py"
