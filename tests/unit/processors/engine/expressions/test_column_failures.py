"""A message that does not fit a column expression fails with a clear error.

The failure policy applies, nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, HoldfastError, InMemoryCluster
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.generated_loop import compile_run
from holdfast.processors.engine.dataframe.plain_loop import loop_over
from holdfast.processors.engine.expressions.failures import ColumnInvalid, ColumnMissing, ColumnUnfit
from holdfast.processors.engine.expressions.tree import DEPTH_MAX
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.steps.topic import Topic

VALUE = {"price": 3, "n": 2, "user": {"name": "Ada"}, "list": [1, 2], "text": "abc", "none": None}


def frame() -> StreamingDataFrame:
    return StreamingDataFrame(Topic("in"))


def assign(column: Callable[[Any], Any]) -> Callable[[Any], None]:
    def declared(sdf: Any) -> None:
        sdf["made"] = column(sdf)

    return declared


def failed(declare: Callable[[Any], Any], value: Any) -> BaseException:
    """The error that a value causes. The generated loop and the plain loop must raise the same error."""
    errors = []
    for loop in (compile_run, loop_over):
        sdf = frame()
        declare(sdf)
        with pytest.raises(Exception) as caught:
            loop(sdf.source, {}, Outboxes(), {}).function(
                iter([value]), iter([b"k"]), iter([1]), iter([b"k"]), iter([None])
            )
        errors.append(caught.value)
    assert type(errors[0]) is type(errors[1])
    assert str(errors[0]) == str(errors[1])
    return errors[0]


@pytest.mark.parametrize(
    ("declare", "value", "kind", "told"),
    [
        (assign(lambda sdf: sdf["a"]), VALUE, ColumnMissing, r"`sdf\['made'\] = sdf\['a'\]` found no column 'a' in"),
        (assign(lambda sdf: sdf["a"].isnull()), VALUE, ColumnMissing, "which has 'price', 'n', 'user', 'list'"),
        (assign(lambda sdf: sdf["a"]), {}, ColumnMissing, "which has no fields"),
        (assign(lambda sdf: sdf["a"]), dict.fromkeys("bcdefghijklmnop", 1), ColumnMissing, "'m' and 3 more"),
        (assign(lambda sdf: sdf["a"]), [1], ColumnUnfit, "got a value of type list; expected an object"),
        (assign(lambda sdf: sdf["a"]), 5, ColumnUnfit, "got a value of type int; expected an object"),
        (
            assign(lambda sdf: sdf["a"]),
            None,
            ColumnUnfit,
            r"type NoneType.*sdf.filter\(lambda value: value is not None",
        ),
        (assign(lambda sdf: 1), [1], ColumnUnfit, "got a value of type list; expected an object with columns"),
        (assign(lambda sdf: 1), "text", ColumnUnfit, "got a value of type str; expected an object with columns"),
        (assign(lambda sdf: sdf.contains("a")), ["a"], ColumnUnfit, "got a value of type list; expected an object"),
        (
            assign(lambda sdf: sdf["user"]["age"]),
            VALUE,
            ColumnMissing,
            r"no field 'age' in `sdf\['user'\]`, which has 'name'",
        ),
        (
            assign(lambda sdf: sdf["list"]["a"]),
            VALUE,
            ColumnUnfit,
            r"`sdf\['list'\]` is of type list; expected an object",
        ),
        (
            assign(lambda sdf: sdf["none"]["a"]["b"]),
            VALUE,
            ColumnUnfit,
            r"`sdf\['none'\]\['a'\]` of .* is of type NoneType",
        ),
        (assign(lambda sdf: sdf["list"][2]), VALUE, ColumnMissing, r"no item 2 in `sdf\['list'\]`, which has 2"),
        (assign(lambda sdf: sdf["n"][0]), VALUE, ColumnUnfit, r"`sdf\['n'\]` is of type int; expected a list"),
        (assign(lambda sdf: sdf["n"][1:]), VALUE, ColumnUnfit, r"`sdf\['n'\]` is of type int; expected a list"),
        (
            assign(lambda sdf: sdf["n"] + sdf["text"] * 2),
            VALUE,
            ColumnUnfit,
            r"`\(sdf\['n'\] \+ \(sdf\['text'\] \* 2\)\)` .*: unsupported oper.* is of type int and .* is of type str",
        ),
        (assign(lambda sdf: sdf["n"] / 0), VALUE, ColumnUnfit, "division by zero"),
        (assign(lambda sdf: sdf["n"].isin(sdf["n"])), VALUE, ColumnUnfit, "not (a container or )?iterable"),
        (
            assign(lambda sdf: sdf["n"].apply(lambda n: None) + 1),
            VALUE,
            ColumnUnfit,
            "unsupported operand.*fit the expr",
        ),
        (lambda sdf: sdf[["n", "a"]], VALUE, ColumnMissing, "no column 'a'"),
        (lambda sdf: sdf[["n"]], [1], ColumnUnfit, "type list"),
        (lambda sdf: sdf[sdf["a"] > 1], VALUE, ColumnMissing, r"`sdf\[\(sdf\['a'\] > 1\)\]` found no column 'a'"),
        (lambda sdf: sdf[sdf["text"] > 1], VALUE, ColumnUnfit, "not supported between"),
        (lambda sdf: sdf.fill("a"), [1], ColumnUnfit, r"`sdf.fill\(a=None\)` got a value of type list"),
        (lambda sdf: sdf.fill("a"), None, ColumnUnfit, "type NoneType"),
        (lambda sdf: sdf.drop("a"), VALUE, ColumnMissing, r"`sdf.drop\(\['a'\]\)` found no column 'a'"),
        (lambda sdf: sdf.drop("a"), [1], ColumnUnfit, "type list"),
        (lambda sdf: sdf.drop("a", errors="ignore"), [1], ColumnUnfit, "type list"),
        (lambda sdf: sdf.rename({"a": "b"}), VALUE, ColumnMissing, "no column 'a'"),
        (lambda sdf: sdf.rename({"n": "price"}), VALUE, ColumnUnfit, "has a column 'price' already"),
        (lambda sdf: sdf.rename({"a": "b"}, errors="ignore"), "a", ColumnUnfit, "type str"),
        (lambda sdf: sdf.__setitem__("made", sdf.apply(lambda value: 1)), [1], ColumnUnfit, "type list"),
    ],
)
def test_a_value_that_does_not_fit(
    declare: Callable[[Any], Any], value: Any, kind: type[HoldfastError], told: str
) -> None:
    error = failed(declare, json.loads(json.dumps(value)))
    assert type(error) is kind
    assert isinstance(error, HoldfastError)
    assert error.action
    with pytest.raises(kind, match=told):
        raise error


def refuses(given: Any) -> Any:
    raise KeyError("of the user")


@pytest.mark.parametrize(
    ("function", "kind", "told"),
    [(refuses, KeyError, "of the user"), (int, ValueError, "invalid literal"), ([].index, ValueError, "not in list")],
)
def test_the_error_of_a_users_function_stays_its_own(function: Any, kind: type[Exception], told: str) -> None:
    for declare in (
        assign(lambda sdf: sdf["text"].apply(function) + sdf["a"]),
        lambda sdf: sdf[sdf["text"].apply(function)],
    ):
        error = failed(declare, dict(VALUE))
        assert type(error) is kind
        assert told in str(error)


def test_a_users_function_is_called_once_by_a_message_that_fails() -> None:
    seen: list[Any] = []

    def note(given: Any) -> Any:
        seen.append(given)
        return given

    failed(assign(lambda sdf: sdf["n"].apply(note) + sdf["a"]), dict(VALUE))
    assert seen == [2, 2]  # the function is called once in the generated loop and once in the plain loop


def test_a_list_fails_alone_and_goes_to_the_dead_letters_with_its_bytes() -> None:
    app = Application("localhost:9092", consumer_group="g", auto_offset_reset="earliest", dead_letter_topic="dead")
    sdf = app.dataframe(app.topic("in"))
    sdf["total"] = sdf["price"] * sdf["n"]
    sdf.to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for raw in (b'{"price":2,"n":3}', b"[1, 2]", b'{"price":2}', b"null", b'{"price":[],"n":{}}', b'{"n":1,"price":4}'):
        cluster.produce("in", raw, b"k")
    cluster.run(app)
    assert [json.loads(record.value)["total"] for _, record in cluster.read("out")] == [6, 4]
    dead = [record for _, record in cluster.read("dead")]
    assert [record.value for record in dead] == [b"[1, 2]", b'{"price":2}', b"null", b'{"price":[],"n":{}}']
    told = [b" ".join(value or b"" for _, value in record.headers or ()).decode() for record in dead]
    assert "got a value of type list; expected an object" in told[0]
    assert "found no column 'n'" in told[1]
    assert "can't multiply" in told[3]


@pytest.mark.parametrize(
    "declare",
    [
        lambda sdf: sdf["a"] and sdf["b"],
        lambda sdf: sdf["a"] or sdf["b"],
        lambda sdf: not sdf["a"],
        lambda sdf: 1 if sdf["a"] > 1 else 2,
        lambda sdf: 1 < sdf["a"] < 5,
        bool,
        lambda sdf: [1][0:0] or (sdf and 1),
    ],
)
def test_truth_is_refused_and_names_the_operators(declare: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="Write `&`, `|` and `~`"):
        declare(frame())


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda sdf: list(sdf["a"]), "can't be iterated now"),
        (lambda sdf: [*sdf], "A stream can't be iterated"),
        (lambda sdf: len(sdf["a"]), r"Write `sdf\['a'\].apply\(len\)`"),
        (lambda sdf: 1 in sdf["a"], r"Write `sdf\['a'\].contains\(1\)`"),
        (lambda sdf: "a" in sdf, r"Write `sdf.contains\('a'\)`"),
        (lambda sdf: sdf.__delitem__("a"), r"Write `sdf.drop\('a'\)`"),
        (lambda sdf: sdf["a"].__setitem__("b", 1), "can't be assigned: only a column of the message can"),
        (lambda sdf: sdf["a"][1.5], "got the item 1.5 of type float"),
        (lambda sdf: sdf["a"]["x":], "got the item slice"),
        (lambda sdf: sdf[0], "got 0 of type int; expected a column's name"),
        (lambda sdf: sdf[[]], "has no columns"),
        (lambda sdf: sdf[["a", 1]], "got 1 of type int; expected a column's name"),
        (lambda sdf: sdf.__setitem__(0, 1), "got 0 of type int; expected a column's name"),
        (lambda sdf: sdf.__setitem__("a", len), "got <built-in function len>"),
        (lambda sdf: sdf["a"] + frame()["b"], "column of another stream"),
        (lambda sdf: sdf["a"] + sdf.apply(len), "expected a constant or a column"),
        (lambda sdf: sdf.__setitem__("a", sdf.filter(bool)["b"]), "column of another stream"),
        (lambda sdf: sdf[frame()["b"]], "a column of another stream"),
        (lambda sdf: sdf["a"].isin(5), "expected a list, a set, a text or a column"),
        (lambda sdf: sdf["a"].isin(each for each in "ab"), "expected a list, a set"),
        (lambda sdf: sdf.contains([]), "got no columns"),
        (lambda sdf: sdf.fill(), "got no columns"),
        (lambda sdf: sdf.fill(5), "expected a column's name"),
        (lambda sdf: sdf.fill(a=sdf["b"]), "expected a constant"),
        (lambda sdf: sdf.drop(5), "expected a column's name"),
        (lambda sdf: sdf.drop("a", errors="warn"), "is 'warn'; expected `raise` or `ignore`"),
        (lambda sdf: sdf.rename("a"), "expected new names by the present ones"),
        (lambda sdf: sdf.rename({"a": "x", "b": "x"}), "two columns the same name"),
        (lambda sdf: sdf.rename({"a": 1}), "got 1 of type int"),
        (lambda sdf: sdf[sdf.filter(bool)], "a step other than `apply` of one result"),
        (lambda sdf: sdf[sdf.apply(list, expand=True)], "a step other than `apply` of one result"),
        (lambda sdf: sdf[sdf], "not made by `apply` from the same stream"),
        (lambda sdf: sdf.__setitem__("a", frame().apply(len)), "not made by `apply` from the same stream"),
    ],
)
def test_a_declaration_that_can_not_run_is_refused(declare: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(ColumnInvalid, match=told) as caught:
        declare(frame())
    assert isinstance(caught.value, TypeError)
    assert caught.value.action


def test_results_are_used_once_and_have_no_steps_of_their_own() -> None:
    sdf = frame()
    made = sdf.apply(len)
    sdf["a"] = made
    with pytest.raises(ColumnInvalid, match="or was used so before"):
        sdf["b"] = made
    other = frame()
    branched = other.apply(len)
    branched.filter(bool)
    with pytest.raises(ColumnInvalid, match="has further steps or branches"):
        other["a"] = branched


def test_functions_of_columns_are_checked_as_those_of_steps() -> None:
    with pytest.raises(StepInvalid, match="which can't be called with"):
        frame()["a"].apply(lambda value, state: value)


def test_an_expression_that_is_too_deep_is_refused_and_the_deepest_one_runs() -> None:
    sdf = frame()
    made = sdf["n"]
    while made.expression.depth < DEPTH_MAX:
        made = made + 1
    with pytest.raises(ColumnInvalid, match=f"nested {DEPTH_MAX + 1} deep"):
        made + 1
    sdf["made"] = made
    value = {"n": 0}
    run = compile_run(sdf.source, {}, Outboxes(), {})
    run.function(iter([value]), iter([b"k"]), iter([1]), iter([b"k"]), iter([None]))
    assert value["made"] == made.expression.depth - 2
