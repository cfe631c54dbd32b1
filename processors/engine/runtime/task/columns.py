"""Processes many messages at once with numpy ("by columns"), for streams with one built-in aggregation or window.

    source ── columns ── aggregate ── to_topic (one or more)
    source ── columns ── window.current() ── to_topic (one or more)
    source ── columns ── window.final() ── any steps

``columns`` are column expressions (filters, assignments, projections) that call no user function. A stream may have no
column expressions. The values must be JSON, and the keys must stay bytes. All other streams are processed message by
message. If numpy would give a different result, even by one bit, the messages are also processed message by message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

import structlog

from holdfast.infra.installation import install_line
from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import Batch
from holdfast.infra.system.files import package_folder
from holdfast.processors.engine.aggregates.aggregation import Aggregation, aggregation_of
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.expressions.of_runs import steps_before
from holdfast.processors.engine.expressions.steps import ColumnStep
from holdfast.processors.engine.formats.serialization import as_is, deserializer, headers_size, serializer
from holdfast.processors.engine.record_size import UNLIMITED
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.task.task_time import TaskTime
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Outbox, Outboxes
from holdfast.processors.engine.windows.bounds import steps_closed
from holdfast.processors.engine.windows.fixed import WindowStore

if TYPE_CHECKING:
    from holdfast.processors.engine.aggregates.columnar import ColumnarAggregation
    from holdfast.processors.engine.state.time.stream_time import StreamTime
    from holdfast.processors.engine.windows.by_columns import ColumnarWindows
    from holdfast.processors.engine.windows.spec import WindowSpec

_log = structlog.get_logger("columns")

#: Minimum number of messages that are processed together with numpy. Fewer messages are processed faster one by one.
RUN_MIN = 48
#: Maximum number of messages that are processed together with numpy. The data of more messages would not fit into
#: the CPU caches.
RUN_MAX = 500
#: Maximum number of slices in a row that are processed message by message, after numpy could not process most messages
#: of a slice.
REST_MAX = 64
#: Bytes of an output record that are reserved for headers. Messages with larger headers are processed one by one.
HEADERS_ROOM = 4096


class Leaves(Protocol):
    """An object that keeps state in numpy arrays, with one row for each key."""

    def leave(self, keys: Iterable[bytes | None]) -> None:
        """Writes the state of these keys to the store, because their next messages are processed one by one."""


class ColumnarStream:
    """Base class for a stream that processes many messages at once with numpy.

    A subclass defines how, in its method ``_taken``.
    """

    def __init__(self, columns: Leaves) -> None:
        self._leaves = columns
        self._rest, self._rested = 0, 0
        #: ``taken``: the number of messages that were processed with numpy. ``left``: the number that were processed
        #: one by one.
        self.taken = self.left = 0

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Splits messages ``first`` to ``last`` - 1 into parts that numpy may process.

        If numpy could not process most messages of one call, the next calls yield nothing.
        """
        if self._rest:
            self._rest -= 1
            return
        taken, left = self.taken, self.left
        yield from ((begin, min(begin + RUN_MAX, last)) for begin in range(first, last, RUN_MAX))
        if self.left - left <= self.taken - taken:
            self._rested = 0
        else:
            self._rest = self._rested = min(REST_MAX, max(1, 2 * self._rested))

    def pieces(self, batch: Batch, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Splits messages into parts that end where windows must close.

        The base class yields all messages as one part.
        """
        yield first, last

    def take(self, batch: Batch, first: int, last: int) -> bool:
        """Processes messages with numpy.

        Returns False if they must be processed one by one; then nothing has changed.
        """
        done = last - first >= RUN_MIN and self._taken(batch, first, last)
        if done:
            self.taken += last - first
        return done

    def _taken(self, batch: Batch, first: int, last: int) -> bool:
        raise NotImplementedError

    def split(self, first: int, last: int) -> int | None:
        """Returns the index at which to halve messages that numpy could not process; None if they are too few."""
        return (first + last) // 2 if last - first >= 2 * RUN_MIN else None

    def leave(self, batch: Batch, first: int, last: int) -> None:
        """Writes the state of these messages' keys to the store. The caller then processes the messages one by one."""
        self._leaves.leave(batch.keys[first:last])
        self.left += last - first


class AggregationStream(ColumnarStream):
    """A stream with one aggregation and outputs. ``boxes`` are the outboxes (unsent records) of the output topics.

    ``headers_room`` is the number of bytes of each output record that are reserved for headers. ``times`` has the range
    of record timestamps that the output topics accept.
    """

    def __init__(
        self, columns: ColumnarAggregation, boxes: list[Outbox], headers_room: int, times: RecordTimes
    ) -> None:
        super().__init__(columns)
        self._columns, self._boxes, self._headers_room, self._times = columns, boxes, headers_room, times

    def _taken(self, batch: Batch, first: int, last: int) -> bool:
        try:
            keys, timestamps, sent = batch.keys[first:last], batch.timestamps[first:last], batch.headers[first:last]
        except HeadersUnreadable:
            return False
        headers = {index: pairs for index, pairs in enumerate(sent) if pairs} if any(sent) else {}
        if headers and max(map(headers_size, headers.values())) > self._headers_room:
            return False
        picked = self._columns.picked(keys, batch.values[first:last])
        if picked is None:
            return False
        if picked.kept is not None:
            keys, timestamps = [keys[place] for place in picked.kept], [timestamps[place] for place in picked.kept]
            headers = {at: headers[place] for at, place in enumerate(picked.kept) if place in headers}
        for topic in [box.topic for box in self._boxes if keys and self._times.limits(box.topic)]:
            newest = max(timestamps)
            earliest, latest = self._times.bounds(topic)
            if newest > latest and self._times.learn(batch.partition.topic, newest):
                earliest, latest = self._times.bounds(topic)
            if min(timestamps) < earliest or newest > latest:
                return False
        outputs = self._columns.run(keys, picked.items, timestamps)
        if outputs is None:
            return False
        for box in self._boxes:
            box.headers.update((len(box.values) + index, pairs) for index, pairs in headers.items())
            box.values.extend(outputs)
            box.keys.extend(keys)
            box.timestamps.extend(timestamps)
        return True


class WindowedStream(ColumnarStream):
    """A stream with one window.

    ``boxes`` are the outboxes (unsent records) for current results; empty if the window has final results.
    """

    def __init__(self, columns: ColumnarWindows, boxes: list[Outbox], times: RecordTimes) -> None:
        super().__init__(columns)
        self._columns, self._boxes, self._times = columns, boxes, times
        #: If windows must close between messages: the window's declaration and the stream time. Otherwise None.
        self.meeting: tuple[WindowSpec, StreamTime] | None = None

    def pieces(self, batch: Batch, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Splits consecutive messages after each message that may make a window due.

        A due window thus closes before the next message.
        """
        if self.meeting is None:
            yield first, last
            return
        spec, stream = self.meeting
        times = spec.duration_ms, spec.grace_ms, spec.step_ms
        begin, reached_ms = first, stream.time_ms
        closed = steps_closed(reached_ms, *times)
        for index in range(first, last):
            time_ms = batch.timestamps[index]
            if reached_ms < time_ms <= stream.reach_ms:
                reached_ms = time_ms
                if (now_closed := steps_closed(time_ms, *times)) != closed:
                    yield begin, index + 1
                    begin, closed = index + 1, now_closed
        if begin < last:
            yield begin, last

    def _taken(self, batch: Batch, first: int, last: int) -> bool:
        run = self._columns.computed(batch.keys[first:last], batch.values[first:last], batch.timestamps[first:last])
        if run is None:
            return False
        for topic in [box.topic for box in self._boxes if run.starts and self._times.limits(box.topic)]:
            earliest, latest = self._times.bounds(topic)
            if min(run.starts) < earliest or max(run.starts) > latest:
                return False
        self._columns.keep(run)
        for box in self._boxes:
            box.values.extend(run.results)
            box.keys.extend(run.keys)
            box.timestamps.extend(run.starts)
        return True


def columnar_stream(  # tidy: allow-wide because the compilation of a stream's steps needs all these arguments
    frame: StreamingDataFrame,
    frames: Sequence[StreamingDataFrame],
    states: Mapping[str, StoreState],
    outboxes: Outboxes,
    record_bytes_max: Mapping[str, int],
    times: RecordTimes,
    time: TaskTime | None = None,
) -> ColumnarStream | None:
    """Returns the ``ColumnarStream`` of a stream; None if numpy is missing or the stream's steps do not allow it.

    ``frames`` has all streams of the task.
    """
    steps, step = steps_before(frame.source)
    if step is None or step.store is None:
        return None
    if time is not None and (time.timers is not None or time.closings.meeting - {step.store}):
        return None  # not by columns: timers or other windows act between the messages of this stream
    if any(node is step for each in frames if each is not frame for node in each.source.walk()):
        # not by columns: several streams lead to this step (`concat`), and each stream would have its own arrays
        return None
    windows = None if time is None else time.windows.get(step.store)
    if (windows is None) is (aggregation_of(step) is None) or (time is not None and windows is None):
        return None  # not by columns: the numpy code of an aggregation does not advance the task's stream time
    if windows is not None and frame.source.max_ahead_ms is None:
        return None  # not by columns: after ``group_by``, watermarks and not messages advance stream time
    sinks = step.walk()[1:]
    if windows is not None and windows.spec.final:
        sinks = []
    elif not sinks or not all(map(_is_plain, sinks)):
        return None
    if frame.topic.timestamp_extractor is not None or frame.topic.deserialize_value is not deserializer("json"):
        return None
    if frame.topic.deserialize_key is not as_is:
        return None
    topics = [node.topic.name for node in sinks if node.topic is not None]
    if len(set(topics)) < len(topics):
        return None
    if not _numpy_is_there():
        return None
    # The modules with numpy are imported here, because importing numpy takes 0.1 s, and most workers do not need it.
    from holdfast.processors.engine.aggregates.columns import Unfit

    boxes = [outboxes[topic] for topic in topics]
    output_bytes_max = min((record_bytes_max.get(topic, UNLIMITED) for topic in topics), default=UNLIMITED)
    try:
        if isinstance(windows, WindowStore) and time is not None:
            made = _windowed(
                windows, states[step.store], time, frame.source.max_ahead_ms or 0, output_bytes_max, boxes, times, steps
            )
            if step.store in time.closings.meeting:
                made.meeting = windows.spec, time.stream
            return made
        aggregation = aggregation_of(step)
        if aggregation is not None:
            return _aggregated(aggregation, states[step.store], output_bytes_max, boxes, times, steps)
    except Unfit:
        pass
    return None


def _aggregated(
    aggregation: Aggregation,
    state: StoreState,
    output_bytes_max: int,
    boxes: list[Outbox],
    times: RecordTimes,
    steps: Sequence[ColumnStep],
) -> ColumnarStream:
    from holdfast.processors.engine.aggregates.columnar import ColumnarAggregation

    headers_room = min(HEADERS_ROOM, output_bytes_max // 4)
    columns = ColumnarAggregation(
        aggregation,
        state,
        output_bytes_max=output_bytes_max - headers_room,
        state_bytes_max=state.record_bytes_max,
        rows_bytes_max=state.cache_bytes,
        steps=steps,
    )
    state.attach(columns)
    return AggregationStream(columns, boxes, headers_room, times)


def _windowed(  # tidy: allow-wide because the compilation of a stream's steps needs all these arguments
    windows: WindowStore,
    state: StoreState,
    time: TaskTime,
    max_ahead_ms: int,
    output_bytes_max: int,
    boxes: list[Outbox],
    times: RecordTimes,
    steps: Sequence[ColumnStep],
) -> WindowedStream:
    from holdfast.processors.engine.windows.by_columns import ColumnarWindows

    columns = ColumnarWindows(
        windows,
        state,
        time.stream,
        max_ahead_ms,
        output_bytes_max=output_bytes_max,
        state_bytes_max=state.record_bytes_max,
        rows_bytes_max=state.cache_bytes,
        steps=steps,
    )
    windows.rows = columns
    state.attach(columns)
    return WindowedStream(columns, boxes, times)


@cache
def _numpy_is_there() -> bool:
    if package_folder("numpy") is not None:
        return True
    _log.info("no columns: numpy is not installed", install=install_line("columns"))
    return False


def _is_plain(node: Node) -> bool:
    """Whether the output node sends values as JSON, with the message's own key and headers."""
    if node.topic is None or node.function is not None or node.headers is not None:
        return False
    return node.topic.serialize_value is serializer("json")
