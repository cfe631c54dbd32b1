"""Compiles steps to closures that process one message. This module is the reference for what steps do.

Tasks run the code that ``generated_loop`` generates from the same steps, with the same results.
The compiled function takes ``(value, key, timestamp_ms, headers)``, with value and key deserialized. Each task compiles
its own function, because stateful steps refer to the task's stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.infra.schemas.codecs import StampingWriter
from holdfast.processors.engine.aggregates.window_aggregates import FailedResult
from holdfast.processors.engine.changelog.names import is_repartition_topic
from holdfast.processors.engine.dataframe.results_aside import ResultsAside
from holdfast.processors.engine.formats import kafka_message
from holdfast.processors.engine.formats.kafka_message import UNWRITABLE
from holdfast.processors.engine.formats.serialization import ValueUnwritable, headers_size, written_headers
from holdfast.processors.engine.record_size import UNLIMITED, too_large
from holdfast.processors.engine.record_times import ANY_TIME, RecordTimes
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime, event_time
from holdfast.processors.engine.steps.branches import Shared, branches_of, copy_before, separates, shared_behind
from holdfast.processors.engine.steps.in_place import apart, copied
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Outboxes, Output
from holdfast.processors.engine.steps.topic import TimestampType, Topic
from holdfast.processors.engine.windows.counts import CountStore, count_window_of
from holdfast.processors.engine.windows.stored import Result, Taker

Compiled = Callable[[Any, Any, int, Headers], None]

#: The function of many messages. It takes iterators of values, raw keys, timestamps, deserialized keys and headers.
#: The iterator of headers may be empty unless ``Run.wants_headers`` is true.
RunFunction = Callable[[Iterator[Any], Iterator[bytes | None], Iterator[int], Iterator[Any], Iterator[Headers]], None]


class NullKey(HoldfastError):
    """A message without a key reached a stateful step."""


@dataclass(slots=True)
class CurrentMessage:
    """The raw key of the current message, and the largest event time that earlier steps have given the message."""

    key: bytes | None = None
    latest_ms: int = NO_TIME


@dataclass(frozen=True, slots=True)
class Timing:
    """The stream time, the timestamp type and the windows that the steps of one stream use.

    ``stream`` is None for a task without stream time. ``kind`` is the type of the topic's timestamps. ``windows`` has
    the task's windows by store name. A message may close a window, and so send a result that earlier messages made. If
    this result fails, ``aside`` keeps it, and the message succeeds. If ``aside`` is None, the message fails.
    """

    stream: StreamTime | None = None
    kind: TimestampType = TimestampType.TIMESTAMP_CREATE_TIME
    windows: Mapping[str, Taker] = field(default_factory=dict)
    aside: ResultsAside | None = None


#: The default ``Timing``: no stream time and no windows.
NO_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class Run:
    """The compiled steps of a stream. ``wants_headers``: whether a step reads headers or sends them to an output."""

    function: RunFunction
    wants_headers: bool


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Those arguments of ``compile_steps`` that are needed to compile every step."""

    stores: Mapping[str, StoreState]
    current: CurrentMessage
    emit: Callable[[Output], None]
    record_bytes_max: Mapping[str, int]
    times: RecordTimes
    timing: Timing


def compile_steps(
    source: Node,
    stores: Mapping[str, StoreState],
    current: CurrentMessage,
    emit: Callable[[Output], None],
    record_bytes_max: Mapping[str, int],
    times: RecordTimes = ANY_TIME,
    timing: Timing = NO_TIMING,
) -> Compiled:
    """Compiles all steps of one stream to a function of one message. The task must set ``current`` before each message.

    ``record_bytes_max`` is the maximum record size of each output topic, in bytes; no entry means no limit. ``times``
    are the record times that these topics accept. After each successful message, the caller must advance stream time to
    ``current.latest_ms``.
    """
    around = _Surroundings(stores, current, emit, record_bytes_max, times, timing)
    return _timed(source, around, _children(source, around)) if source.kind == "source" else _children(source, around)


def _timed(source: Node, around: _Surroundings, child: Compiled) -> Compiled:
    """Returns a function that computes the message's event time and calls the steps with this time.

    The event time comes from the topic's timestamp extractor, or from the record's timestamp.
    """
    extract, kind, stream, current = source.function, around.timing.kind, around.timing.stream, around.current
    if extract is None and stream is None:
        return child
    counts = stream is not None and not sets_timestamps(source)

    def arrive(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        if extract is not None:
            timestamp = event_time(extract(value, headers, timestamp, kind), extract)
        current.latest_ms = NO_TIME
        if counts and stream is not None:
            stream.check(timestamp, source.max_ahead_ms or 0)
            current.latest_ms = timestamp
        child(value, key, timestamp, headers)

    return arrive


def sets_timestamps(source: Node) -> bool:
    """Whether stream time ignores the event time that a message has on arrival.

    This is the case if ``set_timestamp`` sets another time, and for a repartition topic.
    """
    moves = any(node.kind == "set_timestamp" and node.max_ahead_ms is not None for node in source.walk())
    return moves or source.max_ahead_ms is None


def _dated(node: Node, around: _Surroundings, child: Compiled) -> Compiled:
    function, stream, current, max_ahead_ms = node.function, around.timing.stream, around.current, node.max_ahead_ms
    assert function is not None

    def date(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        made = event_time(function(value, key, timestamp, headers), function)
        if stream is not None and max_ahead_ms is not None:
            stream.check(made, max_ahead_ms)
            current.latest_ms = max(current.latest_ms, made)
        child(value, key, made, headers)

    return date


def _headed(node: Node, child: Compiled) -> Compiled:
    function = node.function
    assert function is not None

    def head(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        child(value, key, timestamp, headers_set(function(value, key, timestamp, list(headers or ())), function))

    return head


def headers_set(made: Any, function: object) -> Headers:
    """Converts the result of a user's ``set_headers`` function to headers of the client library.

    Raises:
        ValueUnwritable: The result has something other than names with bytes, texts or None.
    """
    try:
        return written_headers(made, "") or None
    except ValueUnwritable as failure:
        name = getattr(function, "__name__", repr(function))
        raise ValueUnwritable(
            f"`set_headers` got {made!r} from {name}; expected names with bytes, texts or None.",
            action="Let the function return a mapping, or a list of pairs, such as `[*headers, ('id', 'a')]`.",
            function=name,
        ) from failure


def taker_of(node: Node, timing: Timing, stores: Mapping[str, StoreState]) -> Taker:
    """Returns the object that adds messages to the windows of a window step.

    For windows by time, the object is the task's window store. For count windows, a new object is created.
    """
    assert node.store is not None
    counts = count_window_of(node)
    if counts is not None:
        return CountStore(counts, stores[node.store])
    return timing.windows[node.store]


def aside_of(node: Node, timing: Timing) -> ResultsAside | None:
    """Returns the object that keeps a window's failed results; None if it sends no results of earlier messages."""
    owes = node.window is not None and node.window.owes
    return timing.aside if owes else None


def _windowed(node: Node, around: _Surroundings, child: Compiled) -> Compiled:
    assert node.store is not None
    take, current, spec = taker_of(node, around.timing, around.stores).take, around.current, node.window
    parts = node.parts_results
    aside = aside_of(node, around.timing)
    send = _plain(child) if aside is None else _put_aside(child, aside, current)

    def window(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        raw = current.key
        if raw is None:
            raise null_key(spec)
        results = take(value, key, raw, timestamp, headers)
        for result in apart(results) if parts else results:
            send(result, key)

    return window


def _plain(child: Compiled) -> Callable[[Result, Any], None]:
    return lambda result, key: child(result[0], key, result[1], None)


def _put_aside(child: Compiled, aside: ResultsAside, current: CurrentMessage) -> Callable[[Result, Any], None]:
    """Returns a function that calls the later steps with a window's result.

    If earlier messages made the result and it fails, ``aside`` keeps it, so that the current message does not fail.
    """

    def step(result: Result, key: Any) -> None:
        mark = aside.mark()
        try:
            if isinstance(result[0], FailedResult):
                raise result[0].error
            child(result[0], key, result[1], None)
        except BaseException as error:
            aside.fails(result, current.key or b"", mark, error)

    return step


def _children(node: Node, around: _Surroundings, shared: Shared = Shared.NOTHING) -> Compiled:
    steps = [_branch(child, around, seen) for child, seen in branches_of(node, shared)]
    if not steps:
        return lambda value, key, timestamp, headers: None
    if len(steps) == 1:
        return steps[0]

    def branch(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        for step in steps:
            step(value, key, timestamp, headers)

    return branch


def _branch(node: Node, around: _Surroundings, shared: Shared) -> Compiled:
    """Compiles a step and the steps after it.

    The step gets a copy of the value if it may change what other branches read.
    """
    step, copy = _compile(node, around, shared), copy_before(node, shared)
    if copy is None:
        return step
    whole = copy is copied

    def own(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        step(copy(value), key, timestamp, headers and list(headers) if whole else headers)

    return own


def _compile(node: Node, around: _Surroundings, shared: Shared) -> Compiled:
    child = _children(node, around, shared_behind(node, shared))
    if node.kind == "to_topic":
        assert node.topic is not None
        return _sink(node.topic, node, around, child)
    if node.kind == "set_timestamp":
        return _dated(node, around, child)
    if node.kind == "set_headers":
        return _headed(node, child)
    if node.kind == "window":
        return _windowed(node, around, child)
    call = _call(node, around.stores, around.current)
    if node.kind == "filter":

        def keep(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
            if call(value, key, timestamp, headers):
                child(value, key, timestamp, headers)

        return keep
    if node.kind == "update":
        separate = node.of_engine.separate if node.of_engine is not None and separates(node) else None

        def touch(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
            call(value, key, timestamp, headers)
            if separate is not None:
                separate(value)
            child(value, key, timestamp, headers)

        return touch
    if node.expand:
        parts = node.parts_results

        def spread(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
            items = call(value, key, timestamp, headers)
            behind = None if node.of_several else headers
            for item in apart(items) if parts else items:
                child(item, key, timestamp, behind)

        return spread

    def replace(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        child(call(value, key, timestamp, headers), key, timestamp, headers)

    return replace


def _call(
    node: Node, stores: Mapping[str, StoreState], current: CurrentMessage
) -> Callable[[Any, Any, int, Headers], Any]:
    """Wraps the user function so that it takes the arguments ``(value, key, timestamp, headers)``."""
    function = node.function
    assert function is not None
    if node.store is None:
        if node.metadata:
            return function
        return lambda value, key, timestamp, headers: function(value)
    state = stores[node.store]
    point_at = state.point_at

    def point(timestamp: int) -> None:
        raw = current.key
        if raw is None:
            raise null_key(function)
        point_at(raw, timestamp)

    if node.metadata:

        def with_metadata(value: Any, key: Any, timestamp: int, headers: Headers) -> Any:
            point(timestamp)
            return function(value, key, timestamp, headers, state)

        return with_metadata

    def with_state(value: Any, key: Any, timestamp: int, headers: Headers) -> Any:
        point(timestamp)
        return function(value, state)

    return with_state


def _sink(topic: Topic, node: Node, around: _Surroundings, child: Compiled) -> Compiled:
    key_of, headers_of = node.function, node.headers
    change = None if node.of_engine is None else node.of_engine.key_change
    serialize, serialize_key, name = topic.serialize_value, topic.serialize_key, topic.name
    current, emit = around.current, around.emit
    bytes_max, times = around.record_bytes_max.get(name, UNLIMITED), around.times

    def send(value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        try:
            raw = None if value is None else serialize(value)
        except UNWRITABLE as failure:
            raise unwritable("value", value, name, failure) from failure
        if key_of is None:
            raw_key = current.key
        elif change is not None:
            raw_key = None if current.key is None else change(current.key)
        else:
            made = key_of(value)
            try:
                raw_key = None if made is None else serialize_key(made)
            except UNWRITABLE as failure:
                raise unwritable("key", made, name, failure) from failure
        sent = headers if headers_of is None else written_headers(headers_of(value), name)
        if raw is not None and isinstance(serialize, StampingWriter):
            sent = serialize.stamped(sent)
        size = (0 if raw is None else len(raw)) + (0 if raw_key is None else len(raw_key)) + headers_size(sent)
        if size > bytes_max:
            raise too_large("An output", name, size, bytes_max)
        earliest, latest = times.bounds(name)
        if not earliest <= timestamp <= latest:
            raise times.refusal(name, timestamp)
        emit(Output(name, raw_key, raw, timestamp, sent))
        child(value, key, timestamp, headers)

    return send


def loop_over(
    source: Node,
    stores: Mapping[str, StoreState],
    outboxes: Outboxes,
    record_bytes_max: Mapping[str, int],
    times: RecordTimes = ANY_TIME,
    timing: Timing = NO_TIMING,
) -> Run:
    """Returns the same as ``compile_run``, but made of closures: for steps nested too deeply for Python's compiler."""
    current = CurrentMessage()
    step = compile_steps(source, stores, current, outboxes.add, record_bytes_max, times, timing)
    stream, aside = timing.stream if source.kind == "source" else None, timing.aside
    wants_headers = uses_headers(source)

    def run(
        values: Iterator[Any],
        raw_keys: Iterator[bytes | None],
        timestamps: Iterator[int],
        keys: Iterator[Any],
        headers: Iterator[Headers],
    ) -> None:
        sent = headers if wants_headers else repeat(None)
        for value, raw_key, timestamp, key, header in zip(values, raw_keys, timestamps, keys, sent, strict=False):
            marks = {topic: len(box.values) for topic, box in outboxes.items()}
            current.key = raw_key
            try:
                step(value, key, timestamp, header)
                if aside is not None and aside.failed:
                    aside.decide()
            except BaseException:
                if aside is not None:
                    aside.failed.clear()
                for topic, box in outboxes.items():
                    box.keep(marks.get(topic, 0))
                raise
            if stream is not None and current.latest_ms > stream.time_ms:
                stream.advance(current.latest_ms)
            for state in stores.values():
                state.keep_message()

    return Run(run, wants_headers)


def topic_sender(
    topic: Topic, emit: Callable[[Output], None], record_bytes_max: Mapping[str, int], times: RecordTimes
) -> Callable[[Any, Any, int, Any], None]:
    """Returns a function that sends one message: value, key, timestamp in ms since 1970, and headers.

    The function raises the errors of ``to_topic``: ValueUnwritable, RecordTooLarge, RecordTimeRefused.
    """
    current = CurrentMessage()
    steps = Node("source", children=[Node("to_topic", topic=topic)])
    run = compile_steps(steps, {}, current, emit, record_bytes_max, times)

    def send(value: Any, key: Any, timestamp_ms: int, headers: Any) -> None:
        try:
            current.key = None if key is None else topic.serialize_key(key)
        except UNWRITABLE as failure:
            raise unwritable("key", key, topic.name, failure) from failure
        run(value, None, timestamp_ms, written_headers(headers, topic.name))

    return send


def null_key(function: object) -> NullKey:
    """The error for a message without a key that reaches a stateful step."""
    name = getattr(function, "__name__", repr(function))
    return NullKey(
        f"A message without a key reached the stateful step {name!r}: state belongs to a key.",
        action="Produce messages with keys, filter messages without a key, or set `dead_letter_topic`.",
        step=name,
    )


def unwritable(part: str, value: Any, topic: str, failure: Exception) -> ValueUnwritable:
    """The error for a key or a value that the serializer refused."""
    where = "`group_by`" if is_repartition_topic(topic) else f"`app.topic({topic!r})`"
    return kafka_message.unwritable(part, value, topic, failure, where)


def uses_headers(source: Node) -> bool:
    """Whether a step of the stream reads headers or sends them to an output."""
    return any(map(_uses_headers, source.walk()))


def _uses_headers(node: Node) -> bool:
    """Whether this step reads headers or sends them to an output."""
    extracts = node.kind == "source" and node.function is not None
    asks = node.metadata and not getattr(node.function, "ignores_headers", False)
    return extracts or node.asks_headers or asks or (node.topic is not None and node.headers is None)
