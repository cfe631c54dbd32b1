"""The changes of a table cannot be grouped, because a row that moves to another key would count under both keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, Collect, Count, InMemoryCluster, Mean, Sum
from holdfast.dataframe.windows import Reduce
from holdfast.processors.engine.dataframe.groups import GroupByInvalid
from holdfast.processors.engine.joins.table_changes import TableInvalid


def application() -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None)


def rows(app: Application) -> Any:
    return app.table(app.topic("rows"))


def other(app: Application) -> Any:
    return app.table(app.topic("others"))


CHANGES: dict[str, Callable[[Application], Any]] = {
    "table": lambda app: rows(app).to_stream(),
    "with a history": lambda app: app.table(app.topic("rows"), history_retention=timedelta(days=1)).to_stream(),
    "of a stream": lambda app: app.dataframe(app.topic("rows")).to_table().to_stream(),
    "joined": lambda app: rows(app).join(other(app)).to_stream(),
    "by a foreign key": lambda app: rows(app).join(other(app), on="other").to_stream(),
    "behind functions": lambda app: rows(app).to_stream().filter(lambda row: row is not None).apply(lambda row: row),
    "with the row of another table": lambda app: rows(app).to_stream().join_table(other(app)),
    "beside messages": lambda app: app.dataframe(app.topic("in")).concat(rows(app).to_stream()),
}


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("key", ["place", lambda row: row["place"]], ids=["field", "function"])
def test_the_changes_of_a_table_are_not_grouped(changes: str, key: Any) -> None:
    with pytest.raises(GroupByInvalid, match="A row that moves to another key would count under both") as refused:
        CHANGES[changes](application()).group_by(key, name="by-place")
    assert "`messages.filter(lambda value: value is not None).group_by(" in refused.value.action


def test_the_lines_of_the_error_group_the_messages() -> None:
    app = application()
    messages = app.dataframe(app.topic("rows"))
    grouped = messages.filter(lambda value: value is not None).group_by("place")
    grouped.aggregate(n=Count()).to_topic(app.topic("out"))
    table = messages.to_table()
    app.dataframe(app.topic("in")).join_table(table, on_merge=lambda _, row: row).to_topic(app.topic("joined"))
    cluster = InMemoryCluster()
    for topic in ("rows", "in"):
        cluster.create_topic(topic)
    for number, row in enumerate(({"place": "a"}, {"place": "b"}, None, {"place": "b"})):
        cluster.produce("rows", json.dumps(row).encode(), b"k", timestamp_ms=1_000 + number)
    cluster.produce("in", b"1", b"k", timestamp_ms=2_000)
    cluster.run(app)
    newest = {record.key: json.loads(record.value or b"")["n"] for _, record in cluster.read("out")}
    assert newest == {b"a": 1, b"b": 2}
    assert [json.loads(record.value or b"") for _, record in cluster.read("joined")] == [{"place": "b"}]


def test_a_function_that_takes_the_former_row_back_may_stand_between() -> None:
    def moved(row: Any, state: Any) -> list[Any]:
        former = state.get("row")
        made = [] if former is None else [{**former, "add": -1}]
        if row is None:
            state.delete("row")
            return made
        state.set("row", row)
        return [*made, {**row, "add": 1}]

    app = application()
    counted = rows(app).to_stream().apply(moved, stateful=True, expand=True, store="former").group_by("place")
    counted.apply(lambda row, state: state.increment("n", row["add"]), stateful=True, store="n").to_topic(
        app.topic("out")
    )
    cluster = InMemoryCluster()
    cluster.create_topic("rows")
    for number, row in enumerate(({"place": "a"}, {"place": "b"}, None, {"place": "b"})):
        cluster.produce("rows", json.dumps(row).encode(), b"k", timestamp_ms=1_000 + number)
    cluster.run(app)
    newest = {record.key: json.loads(record.value or b"") for _, record in cluster.read("out")}
    assert newest == {b"a": 0, b"b": 1}


def test_the_changes_of_a_table_go_on_as_a_stream() -> None:
    app = application()
    table = rows(app)
    table.to_stream().update(lambda row: row).to_topic(app.topic("first"))
    table.to_stream().to_topic(app.topic("second"))
    cluster = InMemoryCluster()
    cluster.create_topic("rows")
    cluster.produce("rows", b'{"n":1}', b"k", timestamp_ms=1_000)
    cluster.run(app)
    for topic in ("first", "second"):
        assert [record.value for _, record in cluster.read(topic)] == [b'{"n":1}']


def _sum(value: int, row: Any) -> int:
    return int(value + row["amount"])


@pytest.mark.parametrize("method", ["count", "agg", "sum", "mean", "collect", "reduce"])
def test_a_word_of_other_libraries_names_aggregate(method: str) -> None:
    app = application()
    grouped = rows(app).group_by("status")
    with pytest.raises(TableInvalid, match=f"no method `{method}`; expected `aggregate`") as failed:
        getattr(grouped, method)()
    written = re.search(r"`\.(aggregate\(.*\))`", failed.value.action)
    assert written is not None
    names = {"Count": Count, "Sum": Sum, "Mean": Mean, "Collect": Collect, "Reduce": Reduce}
    functions = {"add": _sum, "first": lambda row: row["amount"], "subtract": lambda value, row: value - row["amount"]}
    made = eval(f"grouped.{written[1]}", {"grouped": grouped, **names, **functions})
    made.to_stream().to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for name in ("rows", "out"):
        cluster.create_topic(name)
    cluster.produce("rows", b'{"status":"paid","amount":2}', b"k")
    cluster.run(app)
    assert [record.key for _, record in cluster.read("out")] == [b"paid"]


def test_other_attributes_of_a_grouping_are_missing_as_usual() -> None:
    grouped = rows(application()).group_by(lambda row: row["status"], "by-status")
    assert not hasattr(grouped, "count")
    with pytest.raises(AttributeError, match="has no attribute 'counts'"):
        grouped.counts()
    with pytest.raises(TableInvalid, match="A `group_by` with a function of a table"):
        grouped.count()
