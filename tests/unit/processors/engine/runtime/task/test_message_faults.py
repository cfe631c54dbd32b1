"""An error of a user's function fails its message.

The state changes of the message are undone. The error stops the worker, or the message becomes a dead letter.
"""

import json
import math

import pytest

from holdfast import Application
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.record_size import CLIENT_BYTES_MAX, OVERHEAD_BYTES, record_limits
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.testing import InMemoryCluster

LARGE = CLIENT_BYTES_MAX


def behave(value, state):
    state.set("n", state.get("n", 0) + 1)
    if value == "large state":
        state.set("large", "x" * LARGE)
    if value == "nan":
        state.set("mean", {"of": [math.nan]})
    if value == "bytes":
        state.set("raw", b"raw")
    if value == "number as key":
        state.set(7, "seven")
    if value == "exit":
        raise SystemExit(0)
    if value == "generator exit":
        raise GeneratorExit
    return "x" * LARGE if value == "large output" else state.get("n")


BAD = {
    "large output": "RecordTooLarge",
    "large state": "RecordTooLarge",
    "nan": "ValueNotStorable",
    "bytes": "ValueNotStorable",
    "number as key": "TypeError",
    "exit": "FunctionExits",
    "generator exit": "FunctionExits",
}


def build(**options):
    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)
    app.dataframe(app.topic("in")).apply(behave, stateful=True, store="counts").to_topic(app.topic("out"))
    return app


def fed(*values):
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for value in values:
        cluster.produce("in", json.dumps(value).encode(), b"k")
    return cluster


@pytest.mark.parametrize("bad", BAD)
def test_it_stops_the_processor_at_its_place_with_all_before_it_committed(bad):
    cluster = fed("good", "good", bad, "good")
    with pytest.raises(ProcessingFailed, match=r"in\[0\] offset 2") as stopped:
        cluster.run(build())
    assert (stopped.value.exit_code, stopped.value.fields["error"]) == (1, BAD[bad])
    assert ".." not in stopped.value.message
    assert cluster.committed_offsets("p") == {Partition("in", 0): 2}
    assert cluster.state(build(), "counts") == {(b"k", "n"): 2}
    assert [record.value for _, record in cluster.read("out")] == [b"1", b"2"]


@pytest.mark.parametrize("bad", BAD)
def test_it_becomes_a_dead_letter_and_the_others_go_on(bad):
    cluster = fed("good", bad, "good")
    cluster.run(build(dead_letter_topic="dead"))
    ((_, letter),) = cluster.read("dead")
    assert json.loads(letter.value) == bad
    assert dict(letter.headers)["holdfast.error.type"] == BAD[bad].encode()
    assert cluster.state(build(), "counts") == {(b"k", "n"): 2}
    assert [record.value for _, record in cluster.read("out")] == [b"1", b"2"]


def test_a_topic_with_a_lower_limit_of_its_own_is_respected():
    cluster = fed("good", "large output", "good")
    cluster.create_topic("out", config={"max.message.bytes": "1000"})
    with pytest.raises(ProcessingFailed, match="a record of topic out may have 872"):
        cluster.run(build())


def test_the_limits_are_the_topics_own_unless_somebody_chose_one_for_the_client():
    facts = {"small": TopicFacts("small", "id", 1, 1, {"max.message.bytes": "5000"})}
    names = ["small", "other"]
    assert record_limits(names, facts, None) == {
        "small": 5000 - OVERHEAD_BYTES,
        "other": CLIENT_BYTES_MAX - OVERHEAD_BYTES,
    }
    assert set(record_limits(names, facts, 9_000_000).values()) == {9_000_000 - OVERHEAD_BYTES}


def test_a_message_that_is_too_large_for_the_dead_letter_topic_stops_and_says_both_reasons():
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    cluster.create_topic("dead", config={"max.message.bytes": "2000"})
    cluster.produce("in", b"{no json" + b" " * 3000, b"k")
    with pytest.raises(ProcessingFailed, match="can't be read.*The dead letter.* topic dead may have 1,872"):
        cluster.run(build(dead_letter_topic="dead"))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (b"k", b'{"p":1}', r"The key of the message at in\[0\] offset 0 can't be read: .*\(the key begins with b'k'\)"),
        (b'"k"', b"{p", r"The message at in\[0\] offset 0 can't be read: .*\(the value begins with b'{p'\)"),
    ],
)
def test_the_part_of_a_message_that_cant_be_read_is_shown(key, value, said):
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    cluster.produce("in", value, key)
    app = Application(consumer_group="reading", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in", key_deserializer="json")).update(print)
    with pytest.raises(ProcessingFailed, match=said):
        cluster.run(app)


def asking(error, message, log):
    raise KeyError("nobody knows")


@pytest.mark.parametrize("dead_letters", [None, "dead"])
def test_an_error_handler_that_raises_stops_at_the_message_and_says_both_reasons(dead_letters):
    cluster = fed("good", "exit")
    app = build(on_processing_error=asking, dead_letter_topic=dead_letters)
    with pytest.raises(ProcessingFailed, match=r"offset 1 .*FunctionExits.*\(asking\).*KeyError") as stopped:
        cluster.run(app)
    assert "Correct `on_processing_error`" in stopped.value.action
    assert cluster.committed_offsets("p") == {Partition("in", 0): 1}


def collect(value, state):
    seen = state.get("seen", [])
    seen.append(value)
    if value != "look":
        state.set("seen", seen)
    return seen


def test_a_default_that_is_changed_is_not_the_next_ones_default():
    shared = []
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for key in (b"a", b"b"):
        cluster.produce("in", b'"look"', key)

    def look(value, state):
        found = state.get("seen", shared)
        found.append(value)
        return found

    app = Application(consumer_group="q", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in")).apply(look, stateful=True, store="s").to_topic(app.topic("out"))
    cluster.run(app)
    assert [json.loads(record.value) for _, record in cluster.read("out")] == [["look"], ["look"]]
    assert shared == []


def test_what_is_not_there_is_said_not_taken_for_empty():
    cluster = fed("good")
    app = build()
    assert cluster.state(app, "counts") == {}
    cluster.run(app)
    with pytest.raises(LookupError, match="no store 'count'.*counts"):
        cluster.state(app, "count")
    with pytest.raises(LookupError, match="no topic 'outs'.*out"):
        cluster.read("outs")
    assert cluster.read(changelog_topic("p", "counts"))
