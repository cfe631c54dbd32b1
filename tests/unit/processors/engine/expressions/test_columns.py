"""Programs with columns, as users of Quix Streams write them, and their effect on the processor's code version."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Sum
from holdfast.processors.engine.expressions.failures import ColumnInvalid

T = 1_690_000_000_000


def application() -> Application:
    return Application("localhost:9092", consumer_group="columns", auto_offset_reset="earliest")


def made(declare: Callable[[Any, Application], Any], values: list[Any]) -> list[Any]:
    """The outputs of an application for these input values."""
    app = application()
    sdf = app.dataframe(app.topic("in"))
    declared = declare(sdf, app)
    (sdf if declared is None else declared).to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for at, value in enumerate(values):
        cluster.produce("in", json.dumps(value).encode(), b"k", timestamp_ms=T + at * 1000)
    cluster.run(app)
    return [json.loads(record.value) for _, record in cluster.read("out")]


def version(declare: Callable[[Any, Application], Any]) -> str:
    app = application()
    declare(app.dataframe(app.topic("in")), app)
    return app.topology().code_version


def test_a_column_of_columns() -> None:
    def declare(sdf: Any, app: Application) -> None:
        sdf["total"] = sdf["price"] * sdf["n"]
        sdf["net"] = (sdf["total"] * 100 - 5) / 100
        sdf["name"] = "order " + sdf["id"].apply(str)

    assert made(declare, [{"id": 7, "price": 3, "n": 2}]) == [
        {"id": 7, "price": 3, "n": 2, "total": 6, "net": 5.95, "name": "order 7"}
    ]


def test_the_chained_forms_of_filters() -> None:
    def declare(sdf: Any, app: Application) -> Any:
        sdf = sdf[(sdf["temperature"] > 60) & (sdf["country"] == "US")]
        sdf = sdf[sdf["temperature"].apply(lambda temp: temp < 100)]
        sdf = sdf[sdf.apply(lambda value: value["temperature"] != 70)]
        return sdf[["temperature", "at"]]

    rows = [(61, "US"), (60, "US"), (70, "US"), (80, "DE"), (99, "US"), (100, "US")]
    values = [{"temperature": temp, "country": country, "at": at} for at, (temp, country) in enumerate(rows)]
    assert made(declare, values) == [{"temperature": 61, "at": 0}, {"temperature": 99, "at": 4}]


def test_results_of_apply_become_columns_also_with_metadata_and_state() -> None:
    def count(value: Any, state: Any) -> int:
        return int(state.increment("count"))

    def declare(sdf: Any, app: Application) -> None:
        sdf["double"] = sdf.apply(lambda value: value["n"] * 2)
        sdf["at"] = sdf.apply(lambda value, key, timestamp, headers: timestamp - T, metadata=True)
        sdf["count"] = sdf.apply(count, stateful=True)
        sdf["tenfold"] = sdf.apply(count, stateful=True, store="other").apply(lambda number: number * 10)

    assert made(declare, [{"n": 1}, {"n": 2}]) == [
        {"n": 1, "double": 2, "at": 0, "count": 1, "tenfold": 10},
        {"n": 2, "double": 4, "at": 1000, "count": 2, "tenfold": 20},
    ]


def test_a_filter_with_state_keeps_the_first_of_each() -> None:
    def first(value: Any, state: Any) -> bool:
        known = state.exists(value["id"])
        state.set(value["id"], 1)
        return not known

    def declare(sdf: Any, app: Application) -> Any:
        return sdf[sdf.apply(first, stateful=True)]

    assert made(declare, [{"id": "a"}, {"id": "b"}, {"id": "a"}]) == [{"id": "a"}, {"id": "b"}]


def test_nested_columns_members_and_nulls() -> None:
    def declare(sdf: Any, app: Application) -> None:
        sdf["city"] = sdf["user"]["address"]["city"]
        sdf["last"] = sdf["readings"][-1]
        sdf["rest"] = sdf["readings"][1:]
        sdf["which"] = sdf["readings"][sdf["index"]]
        sdf["known"] = sdf["city"].isin(["Bonn", "Rom"]) & ~sdf["readings"].contains(9)
        sdf["null"] = sdf["nothing"].isnull() & sdf["user"].notnull() & (sdf["nothing"] == None)  # noqa: E711
        sdf["same"] = sdf["nothing"].is_(None) & sdf["index"].isnot(None)
        sdf["has"] = sdf.contains("user") & ~sdf.contains(["user", "other"])
        sdf["off"] = abs(-sdf["index"]) + sdf["index"].abs()

    value = {"user": {"address": {"city": "Bonn"}}, "readings": [4, 5, 6], "index": 1, "nothing": None}
    (seen,) = made(declare, [value])
    assert {name: each for name, each in seen.items() if name not in value} == {
        "city": "Bonn", "last": 6, "rest": [5, 6], "which": 5, "known": True,
        "null": True, "same": True, "has": True, "off": 2,
    }  # fmt: skip


def test_fill_drop_and_rename_work_in_place_and_in_chains() -> None:
    def declare(sdf: Any, app: Application) -> None:
        sdf.fill("z", x=1, y=2).drop(["w"]).drop("none", errors="ignore")
        sdf.drop([])
        sdf.rename({"x": "y", "y": "x"}).rename({"z": "end", "none": "n"}, errors="ignore")

    assert made(declare, [{"x": None, "w": 0}, {"x": 0, "y": [], "w": 1}]) == [
        {"y": 1, "x": 2, "end": None},
        {"y": 0, "x": [], "end": None},
    ]


def test_a_branch_has_its_own_columns() -> None:
    app = application()
    sdf = app.dataframe(app.topic("in"))
    hot = sdf[sdf["n"] > 1]
    hot["kind"] = "hot"
    hot.to_topic(app.topic("hot"))
    sdf["kind"] = "all"
    sdf.to_topic(app.topic("all"))
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in (1, 2):
        cluster.produce("in", json.dumps({"n": number}).encode(), b"k")
    cluster.run(app)
    assert [json.loads(record.value) for _, record in cluster.read("hot")] == [{"n": 2, "kind": "hot"}]
    assert [json.loads(record.value) for _, record in cluster.read("all")] == [
        {"n": 1, "kind": "all"},
        {"n": 2, "kind": "all"},
    ]


def test_columns_before_and_behind_a_window_and_a_group() -> None:
    def declare(sdf: Any, app: Application) -> Any:
        sdf["total"] = sdf["price"] * sdf["n"]
        sdf = sdf[sdf["total"] > 0].group_by("user")
        sdf = sdf.tumbling_window(10_000).agg(total=Sum("total")).current()
        sdf["size"] = sdf["end"] - sdf["start"]
        return sdf[["total", "size"]]

    values = [{"user": user, "price": 2, "n": n} for user, n in (("a", 1), ("b", 0), ("a", 3))]
    assert made(declare, values) == [{"total": 2, "size": 10_000}, {"total": 8, "size": 10_000}]


def test_many_conditions_become_one() -> None:
    def declare(sdf: Any, app: Application) -> Any:
        return sdf[reduce(operator.or_, [sdf["n"] == number for number in range(0, 80, 2)])]

    assert made(declare, [{"n": 3}, {"n": 78}]) == [{"n": 78}]


def test_columns_before_a_call_of_another_system() -> None:
    async def asked(value: Any) -> Any:
        return {**value, "asked": True}

    def declare(sdf: Any, app: Application) -> Any:
        sdf["n"] = sdf["n"] + 1
        sdf = sdf[sdf["n"] > 1].apply_async(asked)
        sdf["m"] = sdf["n"] + 1
        return sdf

    assert made(declare, [{"n": 0}, {"n": 1}]) == [{"n": 2, "asked": True, "m": 3}]


def _assigns(column: Callable[[Any], Any], name: str = "made") -> Callable[[Any, Application], None]:
    def declare(sdf: Any, app: Application) -> None:
        sdf[name] = column(sdf)

    return declare


def _plus_one(value: Any) -> Any:
    return value + 1


def _changed_version(declare: Any, other: Any) -> bool:
    assert version(declare) == version(declare)
    return version(declare) != version(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda sdf: sdf["a"] + 1, lambda sdf: sdf["a"] + 2),
        (lambda sdf: sdf["a"] + 1, lambda sdf: sdf["a"] - 1),
        (lambda sdf: sdf["a"] + 1, lambda sdf: sdf["b"] + 1),
        (lambda sdf: sdf["a"] + 1, lambda sdf: 1 + sdf["a"]),
        (lambda sdf: sdf["a"] + 1, lambda sdf: sdf["a"] + 1.0),
        (lambda sdf: sdf["a"] & sdf["b"], lambda sdf: sdf["a"] | sdf["b"]),
        (lambda sdf: sdf["a"].isin({1, 2}), lambda sdf: sdf["a"].isin({1, 3})),
        (lambda sdf: sdf["a"].isin([1, 2]), lambda sdf: sdf["a"].isin((1, 2))),
        (lambda sdf: sdf["a"].isnull(), lambda sdf: sdf["a"].notnull()),
        (lambda sdf: sdf["a"][0], lambda sdf: sdf["a"][0:]),
        (lambda sdf: sdf["a"].apply(_plus_one), lambda sdf: sdf["a"].apply(str)),
        (lambda sdf: sdf["a"].apply(_plus_one), lambda sdf: sdf.apply(_plus_one)),
    ],
)
def test_another_expression_is_another_version(one: Any, other: Any) -> None:
    assert _changed_version(_assigns(one), _assigns(other))
    assert _changed_version(_assigns(one), _assigns(one, "other"))
    assert _changed_version(_assigns(one), lambda sdf, app: sdf[one(sdf)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda sdf: sdf.fill("a"), lambda sdf: sdf.fill(a=0)),
        (lambda sdf: sdf.drop("a"), lambda sdf: sdf.drop("a", errors="ignore")),
        (lambda sdf: sdf.rename({"a": "b"}), lambda sdf: sdf.rename({"b": "a"})),
        (lambda sdf: sdf[["a", "b"]], lambda sdf: sdf[["a"]]),
        (lambda sdf: sdf.drop("a").fill("a"), lambda sdf: sdf.fill("a").drop("a")),
        # The functions are the same, and so are the expressions. Only their order differs.
        (lambda sdf: sdf.drop("a").update(_plus_one), lambda sdf: sdf.update(_plus_one).drop("a")),
    ],
)
def test_other_steps_and_another_order_are_another_version(one: Any, other: Any) -> None:
    assert _changed_version(lambda sdf, app: one(sdf), lambda sdf, app: other(sdf))


def test_the_rule_of_a_step_is_its_text() -> None:
    app = application()
    sdf = app.dataframe(app.topic("in"))
    sdf["made"] = (sdf["a"]["b"] * 2 > 10) & ~sdf["c"].isin(["x"]) | sdf["d"].apply(_plus_one)
    kept = sdf[sdf["e"][1:].notnull()]
    kept["f"] = kept.apply(len)
    assert [node.rule for node in sdf.source.walk()[1:]] == [
        "sdf['made'] = ((((sdf['a']['b'] * 2) > 10) & ~(sdf['c'] in ['x'])) | sdf['d'].apply(_plus_one))",
        "sdf[(sdf['e'][1:] is not None)]",
        "sdf['f'] = sdf.apply(len)",
    ]


@pytest.mark.parametrize("part", [lambda sdf: {"a": [sdf["a"]]}, lambda sdf: (sdf["a"],), lambda sdf: [sdf]])
def test_a_column_inside_a_constant_is_refused_and_the_named_line_helps(part: Callable[[Any], Any]) -> None:
    sdf = application().dataframe(application().topic("in"))
    with pytest.raises(ColumnInvalid, match=r"that contains (<column sdf\['a'\]>|a StreamingDataFrame)") as refused:
        sdf["q"] = part(sdf)
    with pytest.raises(ColumnInvalid, match="`fill` got a"):
        sdf.fill(q=part(sdf))
    with pytest.raises(ColumnInvalid, match="contains"):
        sdf["a"].isin([part(sdf)])
    written = re.search(r"`(sdf\[.*)`", refused.value.action)
    assert written is not None
    line = written[1]

    def declare(sdf: Any, app: Application) -> None:
        exec(line, {"sdf": sdf})

    assert made(declare, [{"a": 1}]) == [{"a": 1, "q": {"a": 1}}]
