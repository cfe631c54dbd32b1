"""A function that changes its value in place affects no other branch, match, window or store.

A function that only reads its value costs no copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Count, First, Reduce
from holdfast.processors.engine.dataframe import generated_loop as fusion
from holdfast.processors.engine.dataframe.generated_loop import run_text
from holdfast.processors.engine.dataframe.plain_loop import NO_TIMING, loop_over
from holdfast.processors.engine.runtime.task import task
from holdfast.processors.engine.steps import in_place
from holdfast.processors.engine.steps.in_place import copied, may_change

NAMES = {1: "one"}
HANDLERS = {"a": len}
KEPT: list[Any] = []
T = 1_690_000_000_000


def spoil(value: Any) -> Any:
    """Changes the value and the list inside it."""
    value["n"] = -1
    value["deep"]["list"].append("spoilt")
    return value


def merge(left: Any, right: Any) -> Any:
    left.setdefault("with", []).append(right["n"])
    return left


def read_all(value: Any) -> Any:
    return {**value, "root": math.sqrt(value["n"]), "text": json.dumps(value), "name": NAMES.get(value["n"])}


def reads_by_another(value: Any) -> Any:
    return [read_all(each) for each in value if each is not None]


def changes_by_another(value: Any) -> Any:
    return [spoil(each) for each in value]


def counts(value: Any, state: Any) -> Any:
    state.append("seen", value["n"])
    return {**value, "seen": state.get("seen")}


def takes_a_state_for_a_value(value: Any, state: Any) -> Any:
    state = value
    return state.pop("n")


def keeps(value: Any) -> Any:
    KEPT.append(value)
    return value


def with_default(value: Any, held: Any = KEPT) -> Any:
    return value["n"] + len(held)


def refuses(value: Any) -> Any:
    if value["n"] < 0:
        raise ValueError(f"{value!r} is negative")
    return value


READING: list[Any] = [
    lambda value: value["n"] > 3,
    lambda value: {**value, "n": value["n"] + 1},
    lambda value: [each for each in value["list"] if each],
    lambda left, right: {**left, "price": right},
    lambda value: Decimal(value["n"]).quantize(Decimal("0.1")),
    lambda value, key, timestamp, headers: key.decode().upper() + str(timestamp),
    lambda value: sorted(value["list"], key=lambda each: -each)[:3],
    *(read_all, reads_by_another, refuses, len, int, str, json.dumps, math.floor),
]
CHANGING: list[Any] = [
    lambda value: value.update(n=1),
    lambda value: value["list"].sort(),
    lambda value: value.pop("n"),
    lambda value: setattr(value, "n", 1),
    lambda value: HANDLERS[value["kind"]](value),
    lambda value: [each.pop() for each in value],
    lambda value: dict.update(value, n=1),
    *(spoil, merge, changes_by_another, takes_a_state_for_a_value, keeps, KEPT.append, InMemoryCluster),
]


@pytest.mark.parametrize("function", READING)
def test_a_function_that_only_reads(function: Any) -> None:
    assert not may_change(function)


@pytest.mark.parametrize("function", CHANGING)
def test_a_function_that_may_change_what_it_gets(function: Any) -> None:
    assert may_change(function)


def test_a_state_is_no_value() -> None:
    assert not may_change(counts, stateful=True)
    assert may_change(counts)
    assert may_change(takes_a_state_for_a_value, stateful=True)


def test_augmented_assignments_and_attributes_are_changes() -> None:
    def adds(value: Any) -> Any:
        value["n"] += 1

    def extends(value: Any) -> Any:
        found = value["list"]
        found += [1]
        return found

    def deletes(value: Any) -> Any:
        del value["n"]

    def sets(value: Any) -> Any:
        value.n = 1

    assert all(map(may_change, (adds, extends, deletes, sets)))


def test_a_function_that_is_known_by_a_variable_only() -> None:
    for inner, changes in ((spoil, True), (read_all, False)):
        assert may_change(lambda value, inner=inner: inner(value))  # a caller may pass any function as ``inner``

        def outer(value: Any) -> Any:
            return inner(value)  # noqa: B023

        assert may_change(outer) is changes


def test_a_copy_shares_nothing() -> None:
    value = {"n": 1, "deep": {"list": [1, {"x": (1, [2])}]}, "set": {1}}
    made = copied(value)
    assert made == value
    made["deep"]["list"][1]["x"][1].append(3)
    made["set"].add(2)
    assert value == {"n": 1, "deep": {"list": [1, {"x": (1, [2])}]}, "set": {1}}


# -- in the engine -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["generated", "plain"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InMemoryCluster:
    if request.param == "plain":

        def plain(source: Any, stores: Any, outboxes: Any, limits: Any, times: Any, timing: Any = NO_TIMING) -> Any:
            return loop_over(source, stores, outboxes, limits, times, timing)

        monkeypatch.setattr(task, "compile_run", plain)
        monkeypatch.setattr(task, "interleaved_streams", lambda *_: None)
    made = InMemoryCluster()
    for topic in ("in", "right", "a", "b"):
        made.create_topic(topic)
    return made


def application() -> Application:
    return Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)


def message(number: int) -> dict[str, Any]:
    return {"n": number, "deep": {"list": [number]}}


def feed(cluster: InMemoryCluster, topic: str, *numbers: int) -> None:
    for number in numbers:
        cluster.produce(topic, json.dumps(message(number)).encode(), b"k", timestamp_ms=T + number)


def sent(cluster: InMemoryCluster, topic: str) -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read(topic)]


def by_update(frame: Any) -> Any:
    return frame.update(spoil)


def by_apply_behind_a_filter(frame: Any) -> Any:
    return frame.filter(lambda value: True).apply(lambda value: {**value}).apply(spoil)


def by_state(frame: Any) -> Any:
    return frame.apply(lambda value, state: spoil(value), stateful=True)


def by_expansion(frame: Any) -> Any:
    return frame.apply(lambda value: [value], expand=True).update(spoil)


@pytest.mark.parametrize("branch", [by_update, by_apply_behind_a_filter, by_state, by_expansion])
def test_a_branch_does_not_see_what_another_one_changes(cluster: InMemoryCluster, branch: Callable[..., Any]) -> None:
    app = application()
    frame = app.dataframe(app.topic("in"))
    branch(frame.filter(lambda value: value["n"] > 0)).to_topic(app.topic("a"))
    frame.to_topic(app.topic("b"))
    feed(cluster, "in", 1, 2)
    cluster.run(app)
    assert sent(cluster, "b") == [message(1), message(2)]
    assert [value["n"] for value in sent(cluster, "a")] == [-1, -1]


def test_headers_of_another_branch_stay(cluster: InMemoryCluster) -> None:
    def marked(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
        headers.append(("seen", b"1"))
        return value

    app = application()
    frame = app.dataframe(app.topic("in"))
    frame.apply(marked, metadata=True).to_topic(app.topic("a"))
    frame.apply(lambda value: value).to_topic(app.topic("b"))
    cluster.produce("in", b"{}", b"k", timestamp_ms=T, headers=[("id", b"7")])
    cluster.run(app)
    assert [record.headers for _, record in cluster.read("a")] == [[("id", b"7"), ("seen", b"1")]]
    assert [record.headers for _, record in cluster.read("b")] == [[("id", b"7")]]


@pytest.mark.parametrize("how", ["inner", "outer"])
def test_a_match_does_not_see_what_the_merge_of_another_one_changed(cluster: InMemoryCluster, how: Any) -> None:
    app = application()
    left, right = app.dataframe(app.topic("in")), app.dataframe(app.topic("right"))
    left.join_interval(right, how, merge, backward_ms=10, forward_ms=10).to_topic(app.topic("a"))
    feed(cluster, "right", 1, 2, 3)
    feed(cluster, "in", 4)
    cluster.run(app)
    assert sent(cluster, "a") == [{**message(4), "with": [number]} for number in (1, 2, 3)]


def test_a_match_does_not_see_what_a_step_behind_the_join_changed(cluster: InMemoryCluster) -> None:
    app = application()
    left, right = app.dataframe(app.topic("in")), app.dataframe(app.topic("right"))
    joined = left.join_interval(right, on_merge=lambda left, right: {"left": left}, backward_ms=10)
    joined.update(lambda value: spoil(value["left"])).to_topic(app.topic("a"))
    feed(cluster, "right", 1, 2)
    feed(cluster, "in", 4)
    cluster.run(app)
    assert sent(cluster, "a") == [{"left": {"n": -1, "deep": {"list": [4, "spoilt"]}}}] * 2


def test_a_join_of_a_stream_with_itself_stores_what_came(cluster: InMemoryCluster) -> None:
    app = application()
    frame = app.dataframe(app.topic("in"))
    joined = frame.join_interval(frame, "inner", merge, backward_ms=10, name="near")
    joined.apply(lambda value: [value["n"], value["with"]]).to_topic(app.topic("a"))
    feed(cluster, "in", 1, 2, 3)
    cluster.run(app)
    assert sorted(sent(cluster, "a")) == [[1, [1]], [2, [1]], [2, [2]], [3, [1]], [3, [2]], [3, [3]]]
    assert "with" not in str(cluster.state(application_of_near(), "near"))


def application_of_near() -> Application:
    app = application()
    frame = app.dataframe(app.topic("in"))
    frame.join_interval(frame, "inner", merge, backward_ms=10, name="near").to_topic(app.topic("a"))
    return app


def grown(held: Any, value: Any) -> Any:
    held["n"] += value["n"]
    value["n"] = 0
    return held


def hopping(frame: Any) -> Any:
    return frame.hopping_window(20, 10, name="w")


def sliding(frame: Any) -> Any:
    return frame.sliding_window(20, name="w")


def counted(frame: Any) -> Any:
    return frame.hopping_count_window(2, 1, name="w")


@pytest.mark.parametrize(
    ("window", "totals"),
    [(hopping, [10, 10, 22, 22, 36, 36]), (sliding, [10, 22, 36]), (counted, [10, 22, 12, 26, 14])],
)
def test_a_window_does_not_see_what_a_reducer_changed_for_another_one(
    cluster: InMemoryCluster, window: Callable[..., Any], totals: list[int]
) -> None:
    app = application()
    reduced = window(app.dataframe(app.topic("in"))).agg(r=Reduce(grown, lambda value: value)).current()
    reduced.apply(lambda value: value["r"]["n"]).to_topic(app.topic("a"))
    feed(cluster, "in", 10, 12, 14)
    cluster.run(app)
    assert sent(cluster, "a") == totals


def test_a_result_does_not_see_what_a_step_changed_in_another_one(cluster: InMemoryCluster) -> None:
    app = application()
    window = hopping(app.dataframe(app.topic("in"))).agg(first=First(), n=Count()).current()
    window.update(lambda value: spoil(value["first"])).to_topic(app.topic("a"))
    feed(cluster, "in", 10)
    cluster.run(app)
    assert [value["first"]["deep"] for value in sent(cluster, "a")] == [{"list": [10, "spoilt"]}] * 2


def stamped(value: Any) -> bytes:
    """A serializer that changes the value that it gets."""
    if "deep" in value:
        return json.dumps(spoil(value)).encode()
    spoil(value["right"])
    return json.dumps(value).encode()


def test_a_branch_and_a_table_do_not_see_what_a_serializer_changed(cluster: InMemoryCluster) -> None:
    app = application()
    frame = app.dataframe(app.topic("in"))
    frame.filter(lambda value: value["n"] > 0).to_topic(app.topic("a", value_serializer=stamped))
    frame.filter(lambda value: value["n"] > 0).to_topic(app.topic("b"))
    frame.to_table("rows")
    feed(cluster, "in", 1, 2)
    cluster.run(app)
    assert [value["n"] for value in sent(cluster, "a")] == [-1, -1]
    assert sent(cluster, "b") == [message(1), message(2)]
    assert list(cluster.state(app, "rows").values()) == [message(2)]


def test_a_match_does_not_see_what_a_serializer_changed(cluster: InMemoryCluster) -> None:
    app = application()
    left, right = app.dataframe(app.topic("in")), app.dataframe(app.topic("right"))
    joined = right.join_interval(left, on_merge=lambda right, left: {"left": left["n"], "right": right}, backward_ms=10)
    joined.to_topic(app.topic("a", value_serializer=stamped))
    feed(cluster, "in", 3, 4)
    feed(cluster, "right", 5)
    cluster.run(app)
    spoilt = {"n": -1, "deep": {"list": [5, "spoilt"]}}
    assert sent(cluster, "a") == [{"left": number, "right": spoilt} for number in (3, 4)]


@pytest.mark.parametrize("when", ["before_update", "after_update"])
@pytest.mark.parametrize("kind", ["tumbling", "hopping"])
def test_a_window_does_not_see_what_a_trigger_changed(cluster: InMemoryCluster, when: str, kind: str) -> None:
    def looks(aggregated: Any, value: Any, *_: Any) -> bool:
        spoil(value)
        aggregated.sort(key=lambda each: each["n"])
        del aggregated[1:]
        spoil(aggregated[0])
        return False

    app = application()
    frame = app.dataframe(app.topic("in"))
    declared = (
        frame.tumbling_window if kind == "tumbling" else lambda *a, **k: frame.hopping_window(1_000, 500, *a[1:], **k)
    )
    declared(1_000, name="w", **{when: looks}).collect().final().to_topic(app.topic("a"))
    feed(cluster, "in", 3, 1, 2, 5_000)
    cluster.run(app)
    assert {json.dumps(each["value"]) for each in sent(cluster, "a")} == {json.dumps([message(n) for n in (3, 1, 2)])}


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_streams_whose_functions_only_read_are_not_copied() -> None:
    app = application()
    left, right = app.dataframe(app.topic("in")), app.dataframe(app.topic("right"))
    left.filter(lambda value: value["n"] > 1).to_topic(app.topic("a"))
    left.apply(read_all).apply(counts, stateful=True, store="s").to_topic(app.topic("b"))
    joined = left.join_interval(right, "left", lambda left, right: {**left, "right": right})
    joined.to_topic(app.topic("c"))
    text = run_text(left.source)
    assert "copied(" not in text
    assert "apart(" not in text
    left.update(spoil)
    assert "copied(" not in run_text(left.source), "the last one may change what it gets"
    left.to_topic(app.topic("d"))
    app.dataframe(app.topic("in2")).update(spoil).to_topic(app.topic("d"))
    assert "copied(" not in run_text(left.source)


class Sealed:
    """A value that cannot be copied."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __reduce__(self) -> Any:
        raise TypeError("it is sealed")


class Opened(Sealed):
    """The same value with the method that the error recommends. So it can be copied."""

    def __deepcopy__(self, memo: Any) -> Opened:
        return Opened(self.raw)


def test_a_value_that_cannot_be_copied_fails_and_the_error_says_what_to_do() -> None:
    with pytest.raises(in_place.ValueNotCopied, match="it is sealed") as caught:
        copied({"value": Sealed(b"x")})
    assert "`__deepcopy__(self, memo)`" in str(caught.value)
    made = copied({"value": Opened(b"x")})
    assert made["value"].raw == b"x"


def _copies_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fusion, "copied", lambda value: value)
    patch.setattr(fusion, "apart", lambda results: results)


def test_a_planted_bug_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    _copies_nothing(monkeypatch)
    made = InMemoryCluster()
    for topic in ("in", "right", "a", "b"):
        made.create_topic(topic)
    with pytest.raises(AssertionError):
        test_a_branch_does_not_see_what_another_one_changes(made, by_update)
