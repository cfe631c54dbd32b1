"""The grammar of `tests/combinations` has each public step of the engine, so it is tested together with other steps."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from holdfast import Application, State
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.joins.table_changes import GroupedTable
from holdfast.processors.engine.joins.tables import Table
from holdfast.processors.engine.steps.processing import Context
from holdfast.processors.engine.windows.columns import Window
from holdfast.processors.engine.windows.results import AggregatedCountWindow, AggregatedWindow
from tests.combinations import added_sources, functions
from tests.combinations.grammar import CHOICES, SOURCES, STEPS, TOPICS

CLASSES = (
    *(Application, StreamingDataFrame, Table, GroupedTable, Window, AggregatedWindow, AggregatedCountWindow),
    *(State, Context),
)
#: Public methods that are not steps, each with the reason.
NO_STEPS = {
    "print": "it changes nothing, and is for development",
    "print_table": "it changes nothing, and is for development",
    "test": "it runs steps without Kafka",
    "cron": "it is `every` with other slots, and these are of the clock",
    "get_consumer": "it reads outside of streams",
    "get_consumer_on": "it reads outside of streams",
    "get_producer": "it sends outside of streams",
    "get_producer_on": "it sends outside of streams",
    "now": "the worker's clock differs between runs",
    "run": "it runs an application",
    "run_on": "it runs an application",
    "stop": "it ends a run",
    "topology": "it describes an application",
    "cluster": "it connects an application",
    "state_client": "other programs read state with it; `test_queries_of_topologies.py` compares what they see",
    "clear_state": "it is a verb",
    "clear_state_on": "it is a verb",
    "shadow": "it is a run of a verb",
    "configure_logging": "it is about logs",
    "with_run_overrides": "it is about one run",
}
HOW = "add a line to `STEPS` in `tests/combinations/grammar.py`, or to `functions.py` for a call of state or context"


def test_each_public_step_is_in_the_grammar() -> None:
    codes = [step.code for step in (*STEPS, *SOURCES)] + list(TOPICS)
    codes += [choice for choices in CHOICES.values() for choice in choices]
    files = [Path(inspect.getfile(each)) for each in (functions, added_sources)]
    codes.append("\n".join(file.read_text(encoding="utf-8") for file in files))
    used = set(re.findall(r"\b([a-z_]+)\(", "\n".join(codes))) | set(re.findall(r"\.([a-z_]+)\b", codes[-1]))
    missing = {
        f"{each.__name__}.{name}"
        for each in CLASSES
        for name, made in inspect.getmembers(each, callable)
        if not name.startswith("_") and name not in used and name not in NO_STEPS
    }
    assert missing == set(), HOW


def test_what_is_no_step_is_there() -> None:
    names = {name for each in CLASSES for name, _ in inspect.getmembers(each)}
    assert set(NO_STEPS) - names == set()
