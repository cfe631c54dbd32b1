"""The basic steps of a stream, compiled and run with a real store."""

import pytest

from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.plain_loop import CurrentMessage, NullKey, compile_steps
from holdfast.processors.engine.formats.serialization import SerializerUnknown, ValueUnwritable
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.topic import Topic


@pytest.fixture
def run(tmp_path):
    store = TaskStore(RocksDatabases(), tmp_path / "task")

    def runner(frame, messages):
        outputs, current = [], CurrentMessage()
        names = {node.store for node in frame.source.walk() if node.store}
        states = {name: StoreState(name, store) for name in names}
        step = compile_steps(frame.source, states, current, outputs.append, {})
        for key, value in messages:
            current.key = key
            step(value, key, 7, [("h", b"1")])
        return outputs

    yield runner
    store.close()


def frame():
    return StreamingDataFrame(Topic("in"))


def test_apply_filter_update_and_output(run):
    seen = []
    kept = frame().apply(lambda value: value + 1).filter(lambda value: value % 2 == 0).update(seen.append)
    kept.to_topic(Topic("out"))
    assert [(out.key, out.value) for out in run(kept, [(b"k", number) for number in range(4)])] == [
        (b"k", b"2"),
        (b"k", b"4"),
    ]
    assert seen == [2, 4]


def test_stateful_steps_share_a_named_store_by_key(run):
    def count(value, state):
        state.set("n", state.get("n", 0) + 1)
        return state.get("n")

    counted = frame().apply(count, stateful=True, store="counts").to_topic(Topic("out"))
    keys = [b"a", b"b", b"a", b"a"]
    assert [out.value for out in run(counted, [(key, None) for key in keys])] == [b"1", b"1", b"2", b"3"]


def test_expand_metadata_branches_and_key(run):
    source = frame()
    source.apply(lambda value: [value, value * 10], expand=True).to_topic(Topic("many"))
    source.apply(lambda value, key, ts, headers: [value, key.decode(), ts, headers[0][0]], metadata=True).to_topic(
        Topic("all"), key=lambda value: b"new"
    )
    source.filter(lambda value, key, ts, headers, state: state.exists("x"), metadata=True, stateful=True).to_topic(
        Topic("never")
    )
    outputs = run(source, [(b"k", 3)])
    assert [(out.topic, out.key, out.value) for out in outputs] == [
        ("many", b"k", b"3"),
        ("many", b"k", b"30"),
        ("all", b"new", b'[3,"k",7,"h"]'),
    ]


def test_a_null_key_in_a_stateful_step_names_the_step(run):
    def total(value, state):
        return value

    with pytest.raises(NullKey, match="total"):
        run(frame().apply(total, stateful=True), [(None, 1)])


def test_an_output_that_can_not_be_written_names_the_topic(run):
    with pytest.raises(ValueUnwritable, match="topic out"):
        run(frame().apply(lambda value: object()).to_topic(Topic("out")), [(b"k", 1)])


def test_wrong_declarations_are_refused():
    with pytest.raises(SerializerUnknown, match="avro"):
        Topic("in", value_deserializer="avro")
    with pytest.raises(StepInvalid, match="1 to 255"):
        frame().apply(lambda value, state: value, stateful=True, store="")
