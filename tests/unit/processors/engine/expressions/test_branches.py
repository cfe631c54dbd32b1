"""A branch that changes a value in place does not change the value for other branches.

Only that branch copies the value.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.generated_loop import compile_run, run_text
from holdfast.processors.engine.dataframe.plain_loop import loop_over
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.steps.topic import Topic
from tests.mechanics.tiers import examples

VALUE = {"n": 1, "deep": {"list": [1]}, "more": {"deep": {"list": [2]}}}


def spoils(value: Any) -> Any:
    """Changes the object and a list inside it."""
    value["n"] = value.get("n", 0) + 10
    value["deep"]["list"].append("spoilt")
    return value


def spoils_inside(value: Any) -> None:
    value["deep"]["list"].append("inside")


def spoils_part(part: Any) -> Any:
    part["list"].append("part")
    return part


def same(value: Any) -> Any:
    return value


def around(value: Any) -> Any:
    return {**value, "around": 1}


def inner(value: Any) -> Any:
    return {"deep": {"list": [*value["more"]["deep"]["list"]]}, "more": value["more"]}


def twice(value: Any) -> Any:
    return [value, {**value, "twice": 1}]


def _assigned(sdf: Any, name: str, column: Any) -> Any:
    sdf[name] = column
    return sdf


def _set(value: Any, name: str, to: Any) -> Any:
    value[name] = to
    return value


def _own(value: Any, name: str, to: Any) -> Any:
    """Set a column to a copy of a value, as JSON would."""
    return _set(value, name, copy.deepcopy(to))


#: By name: the declaration of a step, and a plain Python function that returns the step's outputs for a value.
STEPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], list[Any]]]] = {
    "assign": (lambda sdf: _assigned(sdf, "n", 5), lambda v: [{**v, "n": 5}]),
    "alias": (lambda sdf: _assigned(sdf, "other", sdf["deep"]), lambda v: [_own(v, "other", v["deep"])]),
    "replace": (
        lambda sdf: _assigned(sdf, "deep", sdf["more"]["deep"]),
        lambda v: [_own(v, "deep", v["more"]["deep"])],
    ),
    "part": (
        lambda sdf: _assigned(sdf, "p", sdf["deep"].apply(spoils_part)),
        lambda v: [_own(v, "p", spoils_part(v["deep"]))],
    ),
    "result": (lambda sdf: _assigned(sdf, "n", sdf.apply(len)), lambda v: [_set(v, "n", len(v))]),
    "fill": (lambda sdf: sdf.fill(filled=[]), lambda v: [v if v.get("filled") is not None else _set(v, "filled", [])]),
    "drop": (lambda sdf: sdf.drop("n", errors="ignore"), lambda v: [[v.pop("n", None), v][1]]),
    "project": (lambda sdf: sdf[["deep", "more"]], lambda v: [{"deep": v["deep"], "more": v["more"]}]),
    "keep": (lambda sdf: sdf[sdf.contains("deep")], lambda v: [v]),
    "lose": (lambda sdf: sdf[sdf.contains("filled")], lambda v: [v] if "filled" in v else []),
    "spoils": (lambda sdf: sdf.apply(spoils), lambda v: [spoils(v)]),
    "spoils inside": (lambda sdf: sdf.update(spoils_inside), lambda v: [[spoils_inside(v), v][1]]),
    "same": (lambda sdf: sdf.apply(same), lambda v: [v]),
    "around": (lambda sdf: sdf.apply(around), lambda v: [around(v)]),
    "inner": (lambda sdf: sdf.apply(inner), lambda v: [inner(v)]),
    "twice": (lambda sdf: sdf.apply(twice, expand=True), twice),
}


#: A tree of steps. Each node has the name of a step and the branches behind it. A leaf has no branches.
Tree = tuple[str, list[Any]]
TREES: st.SearchStrategy[list[Any]] = st.recursive(
    st.just([]),
    lambda inner: st.lists(st.tuples(st.sampled_from(sorted(STEPS)), inner), min_size=1, max_size=3),
    max_leaves=8,
)


def declared(trees: list[Tree], frame: Any, paths: list[list[str]], path: list[str], numbers: Any) -> None:
    """Declare the steps of a tree, with an output at each leaf, and record the path of steps to each output."""
    if not trees:
        paths.append(path)
        frame.to_topic(Topic(f"out-{next(numbers)}"))
        return
    # A step that changes values in place is added to the end of the stream object itself. Reset this end, so that each
    # branch starts at the same step.
    tails = frame._tails
    for name, behind in trees:
        frame._tails = tails
        declared(behind, STEPS[name][0](frame), paths, [*path, name], numbers)
    frame._tails = tails


def alone(path: list[str]) -> list[bytes]:
    """The outputs of a branch that shares its value with no other branch."""
    values = [copy.deepcopy(VALUE)]
    for name in path:
        values = [made for value in values for made in STEPS[name][1](value)]
        if (
            name == "twice"
        ):  # both values share parts, and the first value passes all later steps before the second value exists
            return []
    return [json.dumps(value, separators=(",", ":")).encode() for value in values]


@settings(max_examples=examples(500, tested=80), deadline=None)
@given(TREES)
def test_each_branch_makes_what_it_makes_alone(trees: list[Tree]) -> None:
    ways = []
    for loop in (compile_run, loop_over):
        frame, paths = StreamingDataFrame(Topic("in")), list[list[str]]()
        declared(trees, frame, paths, [], count())
        boxes = Outboxes()
        run = loop(frame.source, {}, boxes, {})
        run.function(iter([copy.deepcopy(VALUE)]), iter([b"k"]), iter([1]), iter([b"k"]), iter([None]))
        ways.append([boxes[f"out-{number}"].values for number in range(len(paths))])
        for values, path in zip(ways[-1], paths, strict=True):
            if "twice" not in path:
                assert values == alone(path), (path, run_text(frame.source))
    assert ways[0] == ways[1]


def test_the_branch_that_changes_pays_and_only_at_its_first_change() -> None:
    frame = StreamingDataFrame(Topic("in"))
    kept = frame[frame["n"] > 0]
    kept["n"] = 2
    kept["m"] = 3
    kept.to_topic(Topic("changed"))
    frame.filter(lambda value: value["n"] > 5).to_topic(Topic("read"))
    frame["last"] = 1
    frame.to_topic(Topic("own"))
    text = run_text(frame.source)
    assert text.count(".copy()") == 1
    assert "copied(" not in text.replace("else copied(value)", "")
    assert text.index("if value_") < text.index(".copy()") < text.index("['n'] = 2")


def test_a_stream_without_branches_copies_nothing() -> None:
    frame = StreamingDataFrame(Topic("in"))
    frame["n"] = frame["n"] + 1
    frame = frame[frame["n"] > 1].apply(spoils)
    frame.drop("n").to_topic(Topic("out"))
    assert "cop" not in run_text(frame.source)


def test_a_projection_has_an_object_of_its_own() -> None:
    frame = StreamingDataFrame(Topic("in"))
    projected = frame[["deep"]]
    projected["n"] = 1
    projected.to_topic(Topic("projected"))
    frame.to_topic(Topic("whole"))
    assert "cop" not in run_text(frame.source)


@pytest.mark.parametrize("name", ["one", "two"])
def test_what_is_stored_stays_as_it_was_stored(name: str) -> None:
    def held(value: Any, state: Any) -> Any:
        before = state.get("held", {"n": 0, "times": []})
        state.set("held", {"n": value["n"], "times": [*before["times"], value["n"]]})
        return before

    app = Application("localhost:9092", consumer_group=name, auto_offset_reset="earliest")
    sdf = app.dataframe(app.topic("in")).apply(held, stateful=True)
    sdf["n"] = -1
    sdf["times"] = sdf["times"].apply(lambda times: [times.append("spoilt"), times][1])
    sdf.to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in (1, 2, 3):
        cluster.produce("in", json.dumps({"n": number}).encode(), b"k")
    cluster.run(app)
    assert [json.loads(record.value) for _, record in cluster.read("out")] == [
        {"n": -1, "times": ["spoilt"]},
        {"n": -1, "times": [1, "spoilt"]},
        {"n": -1, "times": [1, 2, "spoilt"]},
    ]


def test_a_constant_is_new_for_each_message() -> None:
    frame, seen, given = StreamingDataFrame(Topic("in")), [], [[1], {"k": []}]
    frame["list"] = given
    frame["or"] = frame["none"] | given
    frame.fill(filled=given)
    for name in ("list", "or", "filled"):
        frame[f"{name} spoilt"] = frame[name].apply(
            lambda held: [held.append(0), held[0].append(2), held[1]["k"].append(3)]
        )
    frame.update(seen.append)
    given.append("later")
    for loop in (compile_run, loop_over):
        seen.clear()
        run = loop(frame.source, {}, Outboxes(), {})
        run.function(
            iter([{"none": None}, {"none": None}]), iter([b"k"] * 2), iter([1] * 2), iter([b"k"] * 2), iter([None] * 2)
        )
        wanted = [[1, 2], {"k": [3]}, 0]
        assert [[each[name] for name in ("list", "or", "filled")] for each in seen] == [[wanted] * 3] * 2


def test_a_stream_beside_its_own_branch_takes_a_condition_and_a_column() -> None:
    cluster = InMemoryCluster()
    for topic in ("in", "out"):
        cluster.create_topic(topic)
    for number in range(4):
        cluster.produce("in", json.dumps({"n": number}).encode(), b"k")
    app = Application(consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    stream = app.dataframe(app.topic("in"))
    both = stream.concat(stream.apply(around))
    both = both[both.apply(lambda value: value["n"] % 2 == 1)]
    both["double"] = both.apply(lambda value: value["n"] * 2)
    both.to_topic(app.topic("out"))
    cluster.run(app)
    found = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert sorted(found, key=lambda each: (each["n"], len(each))) == [
        {"n": 1, "double": 2},
        {"n": 1, "around": 1, "double": 2},
        {"n": 3, "double": 6},
        {"n": 3, "around": 1, "double": 6},
    ]
