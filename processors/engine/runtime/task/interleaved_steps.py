"""Compiles all streams of a task with several inputs into one function, which processes records of all inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.generated_loop import WovenFunction, compile_interleaved
from holdfast.processors.engine.dataframe.plain_loop import Timing, uses_headers
from holdfast.processors.engine.formats.serialization import Deserializer
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.reading.deserialized import read
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Outboxes

#: Number of iterators that one stream's function takes: values, raw keys, timestamps, keys, headers.
WIDTH = 5


@dataclass(frozen=True, slots=True)
class InterleavedStreams:
    """The compiled function of all streams of a task. One call processes records of all inputs.

    ``inputs`` has for each topic its number, the deserializers of value and key, and whether a step reads headers.
    """

    function: WovenFunction
    inputs: Mapping[str, tuple[int, Deserializer, Deserializer, bool]]

    def columns(self, woven: InterleavedRun) -> tuple[Iterator[Any], ...] | None:
        """Returns the function's arguments for these records; None if a record can't be deserialized."""
        found: list[list[Sequence[Any]]] = []
        for batch, first, last in woven.parts:
            rank, value, key, wants_headers = self.inputs[batch.partition.topic]
            readable, size = read(batch, first, last, value, key, wants_headers), last - first
            if readable.failure is not None:
                return None
            headers = readable.headers or [None] * size
            of_batch = batch.keys[first:last], batch.timestamps[first:last], readable.keys, headers
            found.append([[rank] * size, readable.values, *of_batch])
        in_order = itemgetter(*woven.order)
        return tuple(iter(in_order(list(chain.from_iterable(column)))) for column in zip(*found, strict=True))


def interleaved_streams(
    frames: Sequence[StreamingDataFrame],
    sources: Sequence[Node],
    timings: Sequence[Timing],
    states: Mapping[str, StoreState],
    outboxes: Outboxes,
    record_bytes_max: Mapping[str, int],
    times: RecordTimes,
) -> InterleavedStreams | None:
    """Compiles the streams of a task into one function; None if a stream has a window or reads a repartition topic.

    ``sources`` has the steps of each stream, and ``timings`` the stream time and windows of each stream.
    """
    nodes = [node for source in sources for node in source.walk()]
    if any(frame.topic.repartitions for frame in frames) or any(node.kind == "window" for node in nodes):
        return None
    function = compile_interleaved(sources, timings, states, outboxes, record_bytes_max, times)
    if function is None:
        return None
    inputs = {}
    for rank, (frame, source) in enumerate(zip(frames, sources, strict=True)):
        topic = frame.topic
        inputs[topic.name] = rank, topic.deserialize_value, topic.deserialize_key, uses_headers(source)
    return InterleavedStreams(function, inputs)
