"""`sdf.test` runs the steps of a stream on one message, without Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Application, Count, State, StreamingDataFrame, Topic
from holdfast.processors.engine.dataframe.groups import GroupByInvalid
from holdfast.processors.engine.steps.checked_arguments import StepInvalid


def counted(value: Any, state: State) -> Any:
    state.set("n", state.get("n", 0) + 1)
    return {**value, "n": state.get("n")}


def stream() -> Any:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    return app.dataframe(app.topic("in"))


def test_results_have_key_time_and_headers() -> None:
    sdf = stream()
    sdf = sdf[sdf["a"] > 1]
    sdf["b"] = sdf["a"] * 2
    sdf = sdf.set_headers(lambda value, key, timestamp, headers: [*headers, ("more", b"1")])
    assert sdf.test({"a": 2}, key="k", timestamp=5, headers={"h": "x"}) == [
        ({"a": 2, "b": 4}, "k", 5, [("h", b"x"), ("more", b"1")])
    ]
    assert sdf.test({"a": 1}) == []
    assert len(sdf.apply(lambda value: [value, value], expand=True).test({"a": 5})) == 2


def test_state_begins_empty_or_as_given_and_is_given_back() -> None:
    sdf = stream().apply(counted, stateful=True)
    assert sdf.test({}) == sdf.test({}) == [({"n": 1}, b"key", 0, None)]
    state: dict[str, Any] = {"n": 4, "other": "kept"}
    assert sdf.test({}, state=state)[0][0] == {"n": 5}
    assert sdf.test({}, state=state)[0][0] == {"n": 6}
    assert state == {"n": 6, "other": "kept"}


def test_built_in_steps_and_async_calls() -> None:
    async def looked(value: Any) -> Any:
        return {**value, "found": True}

    assert stream().aggregate(n=Count()).test({})[0][0] == {"n": 1}
    assert stream().tumbling_window(1000).count().current().test({}, timestamp=2500)[0][0] == {
        "start": 2000,
        "end": 3000,
        "value": 1,
    }
    assert stream().apply_async(looked).test({})[0][0] == {"found": True}


def test_what_a_function_raises_is_raised_and_the_stream_is_as_before() -> None:
    sdf = stream().apply(lambda value: 1 / value)
    with pytest.raises(ZeroDivisionError):
        sdf.test(0)
    assert sdf.test(2) == [(0.5, b"key", 0, None)]
    assert all(not node.children for node in sdf._tails)


def test_state_without_a_store_and_a_stream_without_an_application_are_refused() -> None:
    with pytest.raises(StepInvalid, match="`sdf.test` got `state`, and the stream has no stores"):
        stream().test({}, state={})
    with pytest.raises(GroupByInvalid, match="needs a stream of an application"):
        StreamingDataFrame(Topic("in")).test({})


def test_a_stream_of_groups_of_a_table_is_refused_with_what_to_test_instead() -> None:
    """`sdf.test` refuses a stream of a table's groups, and the error names what to test instead.

    The first step of such a stream expects changes of rows, which no user writes by hand.
    """
    app = Application("in-memory", consumer_group="shop", loglevel=None)
    groups = app.table(app.topic("orders")).group_by("status").aggregate(n=Count())
    with pytest.raises(StepInvalid, match="begins at shop-.*-repartition") as refused:
        groups.to_stream().test({"status": "open"})
    assert "InMemoryCluster" in refused.value.action
