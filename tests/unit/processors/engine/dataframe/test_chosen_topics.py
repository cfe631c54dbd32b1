"""``to_topic`` with a function that chooses the topic, and with the argument ``timestamp``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, ProcessingFailed
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.groups import GroupByInvalid
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.topic import Topic
from tests.window_apps import T, send


def application(**given: Any) -> Application:
    return Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)


def cluster_with(count: int) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in range(count):
        send(cluster, number, {"n": number})
    return cluster


def sent(cluster: InMemoryCluster, topic: str) -> list[tuple[bytes | None, int, int]]:
    return [
        (record.key, json.loads(record.value or b"")["n"], record.timestamp_ms - T) for _, record in cluster.read(topic)
    ]


def test_each_message_goes_to_the_topic_that_the_function_returns() -> None:
    cluster, app = cluster_with(9), application()
    sdf = app.dataframe(app.topic("in"))
    sdf = sdf.to_topic(lambda value, key, timestamp, headers: [low, high, late][value["n"] % 3])
    sdf["n"] = sdf["n"] + 100  # a later step changes the value; the outputs above must not change
    sdf.to_topic(app.topic("rest"))
    low, high = app.topic("low"), app.topic("high")  # the topics are declared after the step that uses them
    late = app.topic("late")
    cluster.run(app)
    assert [each[1] for each in sent(cluster, "low")] == [0, 3, 6]
    assert [each[1] for each in sent(cluster, "high")] == [1, 4, 7]
    assert [each[1] for each in sent(cluster, "late")] == [2, 5, 8]
    assert [each[1] for each in sent(cluster, "rest")] == [*range(100, 109)]
    assert {spec.name for spec in app.topology().outputs} == {"low", "high", "late", "rest"}


def test_key_headers_and_timestamp_of_an_output() -> None:
    cluster, app = cluster_with(4), application()
    out, plain = app.topic("out", key_serializer="str"), app.topic("plain")
    sdf = app.dataframe(app.topic("in"))
    sdf.to_topic(
        lambda *message: out,
        key=lambda value: f"k{value['n']}",
        headers=lambda value: {"h": str(value["n"])},
        timestamp=lambda value, key, timestamp, headers: timestamp + 1000,
    )
    sdf.to_topic(plain)
    sdf.to_topic(app.topic("moved"), timestamp=lambda value, key, timestamp, headers: timestamp + 7)
    cluster.run(app)
    assert sent(cluster, "out") == [(b"k%d" % number, number, number + 1000) for number in range(4)]
    assert [record.headers for _, record in cluster.read("out")] == [[("h", b"%d" % number)] for number in range(4)]
    assert sent(cluster, "plain") == [(b"k", number, number) for number in range(4)]
    assert sent(cluster, "moved") == [(b"k", number, number + 7) for number in range(4)]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda app: None, "returned None; expected one of the topics .*: out"),
        (lambda app: "out", "returned 'out'"),
        (lambda app: app.topic("in"), "returned topic in"),
        (lambda app: Topic("elsewhere"), "returned topic elsewhere"),
    ],
)
def test_what_is_no_output_of_the_application_fails_its_message(returned: Any, told: str) -> None:
    cluster, app = cluster_with(1), application()
    app.topic("out")
    app.dataframe(app.topic("in")).to_topic(lambda value, key, timestamp, headers: returned(app))
    with pytest.raises(ProcessingFailed, match=told) as failed:
        cluster.run(app)
    assert "app.topic" in failed.value.action


def test_functions_with_other_arguments_and_streams_without_an_application_are_refused() -> None:
    app = application()
    sdf = app.dataframe(app.topic("in"))
    with pytest.raises(StepInvalid, match="`topic` of `to_topic` .*can't be called with"):
        sdf.to_topic(lambda value: app.topic("out"))  # type: ignore[misc, arg-type]
    with pytest.raises(StepInvalid, match="`timestamp` of `to_topic`"):
        sdf.to_topic(app.topic("out"), timestamp=lambda value: 5)  # type: ignore[misc, arg-type]
    with pytest.raises(StepInvalid, match="expected a topic"):
        sdf.to_topic("out")  # type: ignore[arg-type]
    with pytest.raises(GroupByInvalid, match="needs a stream of an application"):
        StreamingDataFrame(Topic("in")).to_topic(lambda *message: Topic("out"))


def test_another_topic_is_another_version_and_the_same_is_the_same() -> None:
    def made(*topics: str) -> str:
        app = application()
        declared = [app.topic(name) for name in topics]
        app.dataframe(app.topic("in")).to_topic(chosen)
        assert declared
        return app.topology().code_version

    assert made("a", "b") == made("a", "b") != made("a", "c")


def chosen(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
    raise AssertionError("never called")
