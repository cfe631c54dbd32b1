"""Each column expression gives the result of plain Python, in the generated loop and in the plain loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.generated_loop import compile_run, run_text
from holdfast.processors.engine.dataframe.plain_loop import loop_over
from holdfast.processors.engine.expressions.failures import ColumnMissing, ColumnUnfit
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.steps.topic import Topic
from tests.mechanics.tiers import examples

UNFIT = (LookupError, TypeError, AttributeError, ArithmeticError, ValueError)


class Odd(Exception):
    """Raised by a function of a user."""


class Drawn(NamedTuple):
    """An expression in two forms: as a column, and as a plain Python function."""

    column: Callable[[Any], Any]
    plain: Callable[[Any], Any]


def _odd(given: Any) -> Any:
    if given == 3:
        raise Odd(given)
    if given is None:
        raise KeyError("of the user")
    return given


JSON = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 2, 3, 7, 2**70, 0.0, -2.5, 1e308, "", "a", "ab", "%d", "é\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c", "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)
#: Values of messages. Most of them are objects with the columns of the expressions.
VALUES = st.one_of(
    st.fixed_dictionaries({"a": JSON, "b": JSON}),
    st.fixed_dictionaries(
        {"a": st.integers(-3, 9), "b": st.integers(-3, 9) | st.floats(allow_nan=False, allow_infinity=False), "c": JSON}
    ),
    JSON,
)

_BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "+": (lambda x, y: x + y, lambda x, y: x + y),
    "-": (lambda x, y: x - y, lambda x, y: x - y),
    "/": (lambda x, y: x / y, lambda x, y: x / y),
    "//": (lambda x, y: x // y, lambda x, y: x // y),
    "%": (lambda x, y: x % y, lambda x, y: x % y),
    "==": (lambda x, y: x == y, lambda x, y: x == y),
    "!=": (lambda x, y: x != y, lambda x, y: x != y),
    "<": (lambda x, y: x < y, lambda x, y: x < y),
    "<=": (lambda x, y: x <= y, lambda x, y: x <= y),
    ">": (lambda x, y: x > y, lambda x, y: x > y),
    ">=": (lambda x, y: x >= y, lambda x, y: x >= y),
    "&": (lambda x, y: x & y, lambda x, y: x and y),
    "|": (lambda x, y: x | y, lambda x, y: x or y),
    "in": (lambda x, y: x.isin(y), lambda x, y: x in y),
    "contains": (lambda x, y: x.contains(y), lambda x, y: y in x),
    "is": (lambda x, y: x.is_(y), lambda x, y: x is y),
    "is not": (lambda x, y: x.isnot(y), lambda x, y: x is not y),
}
_LAZY = {"&": (lambda x: not x), "|": bool}
_UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "-": (lambda x: -x, lambda x: -x),
    "~": (lambda x: ~x, lambda x: not x),
    "abs": (lambda x: x.abs(), abs),
    "isnull": (lambda x: x.isnull(), lambda x: x is None),
    "notnull": (lambda x: x.notnull(), lambda x: x is not None),
    "str": (lambda x: x.apply(str), str),
    "odd": (lambda x: x.apply(_odd), _odd),
    "a": (lambda x: x["a"], lambda x: x["a"]),
    "0": (lambda x: x[0], lambda x: x[0]),
    "-1": (lambda x: x[-1], lambda x: x[-1]),
    "1:": (lambda x: x[1:], lambda x: x[1:]),
}
CONSTANTS = st.one_of(
    JSON,
    st.sampled_from([(1, 2), frozenset({1, 2}), [*range(100)], float("inf"), b"x", {"k": [1]}]),
)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Drawn:
    """Draws a column, or an operation on columns and constants."""
    kind = draw(st.sampled_from(("column", "column", "contains", "unary", "binary", "binary", "binary", "reflected")))
    if kind == "contains" and depth < 3:
        return Drawn(lambda sdf: sdf.contains(["a", "c"]), _has_both)
    if depth == 0 or kind in ("column", "contains"):
        name = draw(st.sampled_from(("a", "b", "c")))
        return Drawn(lambda sdf: sdf[name], lambda value: value[name])
    first = draw(expressions(depth - 1))
    if kind == "unary":
        column, plain = _UNARY[draw(st.sampled_from(sorted(_UNARY)))]
        return Drawn(lambda sdf: column(first.column(sdf)), lambda value: plain(first.plain(value)))
    name = draw(st.sampled_from(sorted(_BINARY)))
    column2, plain2 = _BINARY[name]
    if kind == "reflected" and name in ("+", "-", "/", "//", "%", "<", ">="):
        left = draw(st.integers(-3, 9) | st.floats(-2, 2) | st.sampled_from(["a", "%d"]))
        if not (name == "%" and isinstance(left, str)):  # a text on the left of `%` would format the column itself
            return Drawn(lambda sdf: column2(left, first.column(sdf)), lambda value: plain2(left, first.plain(value)))
    constant = draw(st.booleans())
    second = draw(CONSTANTS if constant else expressions(depth - 1))
    if constant and name in ("in", "contains") and not hasattr(type(second), "__contains__"):
        second = [second]

    def computed(value: Any) -> Any:
        left = first.plain(value)
        if name in _LAZY and _LAZY[name](left):
            return left
        return plain2(left, second if constant else second.plain(value))

    return Drawn(
        lambda sdf: column2(first.column(sdf), second if constant else second.column(sdf)),
        computed,
    )


def _has_both(value: Any) -> bool:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return "a" in value and "c" in value


def outcome(function: Callable[[Any], Any], value: Any) -> Any:
    """The result with its types, or the error."""
    try:
        return repr(function(value))
    except Odd as error:
        return error
    except KeyError as error:
        return error if error.args == ("of the user",) else "unfit"
    except (*UNFIT, HoldfastError) as error:
        return "unfit" if not isinstance(error, HoldfastError) or _is_ours(error) else error


def _is_ours(error: HoldfastError) -> bool:
    return isinstance(error, (ColumnMissing, ColumnUnfit))


def through(loop: Any, frame: StreamingDataFrame, value: Any) -> tuple[Any, str]:
    """The values that pass a loop for one input value, and the text of its error. A filtered value is left out."""
    seen: list[Any] = []
    frame.update(seen.append)
    run = loop(frame.source, {}, Outboxes(), {})
    told = ""

    def made(given: Any) -> Any:
        nonlocal told
        try:
            run.function(iter([given]), iter([b"k"]), iter([1]), iter([b"k"]), iter([None]))
        except HoldfastError as error:
            told = error.message
            raise
        return seen

    return outcome(made, copy.deepcopy(value)), told


def assigned(drawn: Drawn) -> StreamingDataFrame:
    frame = StreamingDataFrame(Topic("in"))
    frame["made"] = drawn.column(frame)
    return frame


def kept(drawn: Drawn) -> StreamingDataFrame:
    frame = StreamingDataFrame(Topic("in"))
    return frame[drawn.column(frame)]


def assigned_plainly(drawn: Drawn, value: Any) -> Any:
    made = drawn.plain(value)
    value["made"] = made
    return [value]


@settings(max_examples=examples(600, tested=100))
@given(expressions(), VALUES)
def test_an_expression_means_what_it_means_in_plain_python(drawn: Drawn, value: Any) -> None:
    wanted = outcome(lambda given: assigned_plainly(drawn, given), copy.deepcopy(value))
    generated, told = through(compile_run, assigned(drawn), value)
    plain, told_plainly = through(loop_over, assigned(drawn), value)
    assert repr(generated) == repr(plain) == repr(wanted), run_text(assigned(drawn).source)
    assert told == told_plainly
    condition = outcome(lambda given: [given] if drawn.plain(given) else [], copy.deepcopy(value))
    assert repr(through(compile_run, kept(drawn), value)) == repr(through(loop_over, kept(drawn), value))
    assert repr(through(compile_run, kept(drawn), value)[0]) == repr(condition)


@settings(max_examples=200)
@given(expressions())
def test_the_text_of_an_expression_is_the_same_each_time(drawn: Drawn) -> None:
    one, two = (kept(drawn).source.children[0].rule for _ in range(2))
    assert one == two
    assert one.startswith("sdf[")
    assert " at 0x" not in one


CHANGES: list[tuple[Callable[[Any], Any], Callable[[dict[str, Any]], Any]]] = [
    (lambda sdf: sdf.fill("a", b=0, c=[1]), lambda v: {**v, **_filled(v)}),
    (lambda sdf: sdf.drop("a"), lambda v: [v.pop("a"), v][1]),
    (lambda sdf: sdf.drop(["b", "a"]), lambda v: [v.pop("b"), v.pop("a"), v][2]),
    (lambda sdf: sdf.drop(["c", "a"], errors="ignore"), lambda v: [v.pop("c", None), v.pop("a", None), v][2]),
    (lambda sdf: sdf[["b", "a"]], lambda v: {"b": v["b"], "a": v["a"]}),
    (lambda sdf: sdf.rename({"a": "z"}), lambda v: _renamed(v, {"a": "z"})),
    (lambda sdf: sdf.rename({"a": "b", "b": "a"}), lambda v: _renamed(v, {"a": "b", "b": "a"})),
    (
        lambda sdf: sdf.rename({"a": "z", "c": "y"}, errors="ignore"),
        lambda v: _renamed(v, {each: to for each, to in {"a": "z", "c": "y"}.items() if each in v}),
    ),
]


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    return {name: to for name, to in {"a": None, "b": 0, "c": [1]}.items() if value.get(name) is None}


def _renamed(value: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    parts = {to: value.pop(name) for name, to in names.items()}
    return {**value, **parts}


@pytest.mark.parametrize("change", range(len(CHANGES)))
@settings(max_examples=100)
@given(value=VALUES)
def test_a_change_of_columns_means_what_it_means_in_plain_python(change: int, value: Any) -> None:
    column, plain = CHANGES[change]

    def wanted(given: Any) -> Any:
        if not isinstance(given, dict):
            raise TypeError("no object")
        return [plain(given)]

    expected = outcome(wanted, copy.deepcopy(value))
    generated, told = through(compile_run, column(StreamingDataFrame(Topic("in"))), value)
    assert repr(generated) == repr(expected)
    assert (generated, told) == through(loop_over, column(StreamingDataFrame(Topic("in"))), value)
