"""A task runs one function that is generated from its steps.

The function must have the same results as the steps, one message at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.generated_loop import compile_run
from holdfast.processors.engine.dataframe.plain_loop import CurrentMessage, compile_steps
from holdfast.processors.engine.expressions.steps import Assigned, Dropped, Filled, KeptWhere, Projection, Renamed
from holdfast.processors.engine.expressions.tree import VALUE, Call, Constant, HasFields, Item, Operation
from holdfast.processors.engine.formats.serialization import ValueUnwritable
from holdfast.processors.engine.runtime.task import task as tasks
from holdfast.processors.engine.runtime.task.failed_message import failed_record
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Outboxes, Output
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.testing import InlineProcess, InMemoryCluster
from tests.mechanics.tiers import examples
from tests.simulation.disk import SimulatedDisk

STORES = ("one", "two")
#: The record limit of the topics, in bytes. Some records exceed it.
BYTES_MAX = 60


class Odd(Exception):
    """Raised by functions of steps."""


class Stopped(Exception):
    """Raised by the failure policy."""


def _number(value: Any) -> int:
    if isinstance(value, dict):
        return _number(value.get("n", 0))
    return value if isinstance(value, int) else len(value)


def _increase(value: Any, *rest: Any) -> Any:
    return _number(value) + 1


def _none(value: Any, *rest: Any) -> Any:
    return None


def _told(value: Any, key: Any, timestamp: int, headers: Any, *state: Any) -> Any:
    return [_number(value), repr(key), timestamp, headers and headers[0][0]]


def _made(value: Any, *rest: Any) -> Any:
    return {"n": _number(value), "t": "x" * (_number(value) % 4), "l": [_number(value)]}


def _long(value: Any, *rest: Any) -> Any:
    return "x" * (_number(value) * 9)


def _fails(value: Any, *rest: Any) -> Any:
    if _number(value) % 5 == 2:
        raise Odd(value)
    return value


def _exits(value: Any, *rest: Any) -> Any:
    if _number(value) % 7 == 3:
        raise SystemExit(4)
    return value


def _even(value: Any, *rest: Any) -> Any:
    return [] if _number(value) % 2 else "yes"


def _spread(value: Any, *rest: Any) -> Any:
    return (_number(value) * 2 + number for number in range(3))


def _object(value: Any, *rest: Any) -> Any:
    return object() if _number(value) % 6 == 4 else value


def _count(value: Any, *rest: Any) -> Any:
    state = rest[-1]
    state.set("n", state.get("n", 0) + 1)
    return state.get("n")


def _forget(value: Any, *rest: Any) -> Any:
    state = rest[-1]
    state.delete("n")
    state.set(f"key {_number(value) % 3}", [value])
    return state.exists("n") or value


def _half_way(value: Any, *rest: Any) -> Any:
    state = rest[-1]
    state.set("seen", value)
    state.set_bytes("raw", b"raw")
    if _number(value) % 4 == 1:
        state.delete("n")
        raise Odd("half way")
    return state.get_bytes("raw").decode()


def _large(value: Any, *rest: Any) -> Any:
    rest[-1].set("large", "x" * (_number(value) * 9))
    return value


PLAIN = (_increase, _made, _made, _none, _long, _fails, _exits, _even, _object)
WITH_STATE = (_count, _forget, _half_way, _large, _increase)


def _headers(value: Any) -> Any:
    return {"made": str(value), "none": None} if _number(value) % 5 else [("bad", 7)]


HEADERS = (None, None, _headers, _none)
KEYS = (None, _none, lambda value: b"made", lambda value: None if value is None else object(), _fails)


def _later(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
    return timestamp + _number(value)


def _no_time(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
    return "soon" if _number(value) % 3 else timestamp - 1


def _extracted(value: Any, headers: Any, timestamp: int, kind: int) -> Any:
    return None if value == 7 else timestamp * 10 + len(headers or ())


TIMES = (_later, _no_time)


def _labelled(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
    headers.append(("n", str(_number(value))))
    return headers if _number(value) % 4 else {"number": b"four"}


def _bad_labels(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
    return [("bad", 7)] if _number(value) % 3 else None


LABELS = (_labelled, _labelled, _bad_labels)


N = Item((VALUE, Constant((), "n")))
#: Column expressions for the values that ``_made`` creates. Most of them fail for any other value.
COLUMNS: tuple[tuple[Any, Any], ...] = (
    ("update", Assigned("m", Operation((N, Constant((), 2)), "*"))),
    ("update", Assigned("l", Item((VALUE, Constant((), "m"))))),
    ("update", Assigned("n", Call((N,), _fails))),
    ("update", Filled({"n": 3, "f": []})),
    ("update", Dropped(("t",), ignores=True)),
    ("update", Dropped(("m",), ignores=False)),
    ("update", Renamed({"n": "t", "t": "n"}, ignores=False)),
    ("filter", KeptWhere(Operation((N, Constant((), 4)), ">"))),
    ("filter", KeptWhere(HasFields((), ("n", "t")))),
    ("apply", Projection((("n", N),))),
)


@st.composite
def _steps(draw: st.DrawFn, depth: int = 4) -> Node:
    kinds = (
        "apply",
        "update",
        "filter",
        "expand",
        "to_topic",
        "to_topic",
        "set_timestamp",
        "set_headers",
        "column",
        "column",
    )
    kind = draw(st.sampled_from(kinds))
    if kind == "column":
        node = Node(*draw(st.sampled_from(COLUMNS)))
    elif kind == "set_headers":
        node = Node("set_headers", draw(st.sampled_from(LABELS)), metadata=True)
    elif kind == "set_timestamp":
        node = Node("set_timestamp", draw(st.sampled_from(TIMES)), metadata=True)
    elif kind == "to_topic":
        topic = Topic(draw(st.sampled_from(("out", "more"))))
        node = Node("to_topic", draw(st.sampled_from(KEYS)), topic=topic, headers=draw(st.sampled_from(HEADERS)))
    else:
        store = draw(st.sampled_from((None, *STORES)))
        metadata = draw(st.booleans())
        function = _spread if kind == "expand" else draw(st.sampled_from(PLAIN if store is None else WITH_STATE))
        if metadata and store is None and kind == "apply":
            function = _told
        node = Node("apply" if kind == "expand" else kind, function, store, kind == "expand", metadata)  # type: ignore[arg-type]
    node.children = draw(st.lists(_steps(depth - 1), min_size=depth > 1, max_size=2)) if depth else []
    return node


SOURCES = st.builds(
    lambda extractor, children: Node("source", extractor, children=children),
    st.sampled_from((None, None, _extracted)),
    st.lists(_steps(), min_size=1, max_size=2),
)
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from((b"1", b"1", b"2", b"", None, b"\xff")),
        st.sampled_from((*(b"%d" % number for number in range(10)), b"{", None, b'"t"', b"null")),
        st.sampled_from((None, [("h", b"1")])),
        st.integers(1, 3),
    ),
    min_size=4,
    max_size=12,
)


class Machine:
    """A task with its stores on a simulated disk."""

    def __init__(self, source: Node, key_deserializer: str) -> None:
        cluster = InMemoryCluster()
        self.disk = SimulatedDisk().attach(InlineProcess(cluster.clock))
        self.store = TaskStore(self.disk, Path("task"))
        self.frame = StreamingDataFrame(Topic("in", key_deserializer=key_deserializer), source)
        self.limits = {"out": BYTES_MAX, "log-one": BYTES_MAX}
        self.failures: list[tuple[Any, ...]] = []

    def states(self) -> dict[str, StoreState]:
        return {
            name: StoreState(name, self.store, f"log-{name}", self.limits.get(f"log-{name}", 1 << 62))
            for name in STORES
        }

    def decide(self, failed: Any, stops_at: int) -> Output | None:
        error = failed.error
        text = error.message if isinstance(error, HoldfastError) else repr(error)
        self.failures.append((failed.offset, failed.key, failed.value, failed.timestamp_ms, failed.headers, text))
        if len(self.failures) == stops_at:
            raise Stopped
        return (
            Output("dead", failed.key, failed.value, failed.timestamp_ms, [("why", b"")]) if failed.offset % 2 else None
        )


def by_the_book(machine: Machine, batch: Batch, stops_at: int) -> tuple[Any, ...]:
    """The expected result: the compiled functions of the steps, called one message at a time."""
    states, current, boxes = machine.states(), CurrentMessage(), Outboxes()
    made: list[Output] = []
    step = compile_steps(machine.frame.source, states, current, made.append, machine.limits)
    position = 0
    for index, offset in enumerate(batch.offsets):
        made.clear()
        raw_key, raw = batch.keys[index], batch.values[index]
        current.key = raw_key
        try:
            one = Batch(batch.partition, [raw_key], [raw], [batch.timestamps[index]], [offset], [batch.headers[index]])
            value = _read_one(machine, one)
            key = None if raw_key is None else machine.frame.topic.deserialize_key(raw_key)
            step(value, key, batch.timestamps[index], batch.headers[index])
        except (Exception, SystemExit) as error:
            for state in states.values():
                state.undo_message()
            made.clear()
            try:
                instead = machine.decide(_failed(batch, index, error), stops_at)
            except Stopped:
                break
            if instead is not None:
                boxes.add(instead)
        else:
            for state in states.values():
                state.keep_message()
            for output in made:
                boxes.add(output)
        position = offset + 1
    return position, *_left(machine, boxes, states)


def _read_one(machine: Machine, one: Batch) -> Any:
    """Read one message with a task without steps. Returns the value, or the error if the message cannot be read."""
    errors: list[Exception] = []
    reader = Machine(Node("source"), "bytes")
    reader.frame.topic = machine.frame.topic
    task = Task("t-0", "t", 0, ("in",))
    task.open(None, ())
    task.start({"in": reader.frame}, {}, {"in": 0})

    def remember(failed: Any) -> None:
        errors.append(failed.error)

    task.process(one, 0, 1, remember)
    if errors:
        raise errors[0]
    return None if one.values[0] is None else json.loads(one.values[0])


def _failed(batch: Batch, index: int, error: BaseException) -> Any:
    return failed_record(batch, index, error, regrouped=False)


def at_once(machine: Machine, batch: Batch, stops_at: int, slices: list[int]) -> tuple[Any, ...]:
    """The result of the generated loop, run as the engine runs it."""
    task = Task("t-0", "t", 0, ("in",))
    task.open(machine.store, STORES, {name: f"log-{name}" for name in STORES}, machine.limits)
    task.start({"in": machine.frame}, {}, {"in": 0})
    first = 0
    try:
        while first < len(batch.offsets):
            size = slices[first % len(slices)]
            last = min(first + size, len(batch.offsets))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tasks, "RECORDS_AT_ONCE", 4)
                task.process(batch, first, last, lambda failed: machine.decide(failed, stops_at))
            first += size
    except Stopped:
        pass
    return task.positions["in"], *_left(machine, task.outboxes, task.states)


def _left(machine: Machine, boxes: Outboxes, states: dict[str, StoreState]) -> tuple[Any, ...]:
    sent = {box.topic: (box.values, box.keys, box.timestamps, box.headers) for box in boxes.values() if box.values}
    writes = {name: dict(zip(*state.writes(), strict=True)) for name, state in states.items()}
    pending = {name: (state.undo_log, state.dirty_bytes()) for name, state in states.items()}
    return sent, writes, pending, machine.failures


@settings(deadline=None, max_examples=examples(250, tested=40))
@given(
    SOURCES,
    MESSAGES,
    st.sampled_from((1, 3, 99)),
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.sampled_from(("bytes", "str", "json")),
)
def test_what_is_run_at_once_does_what_the_steps_mean(
    source: Node, messages: list[Any], stops_at: int, slices: list[int], keys: str
) -> None:
    offsets = [sum(gap for *_, gap in messages[:index]) for index in range(len(messages))]
    batch = Batch(
        Partition("in", 0),
        [key for key, *_ in messages],
        [value for _, value, *_ in messages],
        [1_000 + number for number in range(len(messages))],
        offsets,
        [headers for _, _, headers, _ in messages],
    )
    expected = by_the_book(Machine(source, keys), batch, stops_at)
    assert at_once(Machine(source, keys), batch, stops_at, slices) == expected


@pytest.mark.parametrize("failing", [1, 2])
def test_of_a_message_that_fails_half_way_no_output_is_left(failing: int) -> None:
    def spread(value: int) -> list[object]:
        return [value, *(object() for _ in range(value == failing)), value]

    frame = StreamingDataFrame(Topic("in")).apply(spread, expand=True).to_topic(Topic("out"))
    outboxes = Outboxes()
    run = compile_run(frame.source, {}, outboxes, {})
    values = iter([0, failing, 3])
    rest = (iter([None] * 3), iter([1, 2, 3]), iter([None] * 3), iter([None] * 3))
    with pytest.raises(ValueUnwritable):
        run.function(values, *rest)
    assert (outboxes["out"].values, outboxes["out"].timestamps) == ([b"0", b"0"], [1, 1])
    run.function(values, *rest)
    assert (outboxes["out"].values, outboxes["out"].timestamps) == ([b"0", b"0", b"3", b"3"], [1, 1, 3, 3])


def chain(length: int) -> StreamingDataFrame:
    frame = StreamingDataFrame(Topic("in"))
    for _ in range(length):
        frame = frame.filter(lambda value: True).apply(lambda value: [value + 1], expand=True)
    return frame.to_topic(Topic("out"))


@pytest.mark.parametrize("length", [1, 70])
def test_chains_of_any_depth_run(length: int) -> None:
    outboxes = Outboxes()
    run = compile_run(chain(length).source, {}, outboxes, {})
    run.function(iter([0, 5]), iter([b"k", None]), iter([1, 2]), iter([b"k", None]), iter([None, None]))
    box = outboxes["out"]
    assert (box.values, box.keys, box.timestamps) == ([b"%d" % length, b"%d" % (5 + length)], [b"k", None], [1, 2])


def test_an_error_shows_the_line_of_the_steps_that_it_came_through() -> None:
    frame = StreamingDataFrame(Topic("in")).apply(lambda value: 1 // value)
    run = compile_run(frame.source, {}, Outboxes(), {})
    with pytest.raises(ZeroDivisionError) as raised:
        run.function(iter([0]), iter([b"k"]), iter([1]), iter([b"k"]), iter([None]))
    assert any("value_" in str(entry.statement) for entry in raised.traceback)


def test_a_state_that_can_not_be_read_is_no_failure_of_its_message() -> None:
    machine = Machine(Node("source", children=[Node("update", _count, "one")]), "bytes")
    state = machine.states()["one"]
    state.point_at(b"a", 0)
    state.set("n", 1)
    changes = [(key, b"\x09" + (raw or b"")[1:]) for key, raw in state.rocks_changes(state.writes())]
    task = Task("t-0", "t", 0, ("in",))
    task.open(machine.store, STORES)
    machine.store.write(changes, task.meta)
    task.start({"in": machine.frame}, {}, {"in": 0})
    batch = Batch(Partition("in", 0), [b"b", b"a", b"b"], [b"1"] * 3, [1] * 3, [4, 6, 7], [None] * 3)
    with pytest.raises(FormatUnknown):
        task.process(batch, 0, 3, lambda failed: None)
    assert task.positions == {"in": 5}
    assert task.states["one"].undo_log == []
