"""Watermarks for the order of reading: the time from which on the tasks before a repartition topic may send messages.

    log of the topic     m m m W  m m W  m │ m m W ...
                                           └ buffered up to here: these watermarks are heard, long before their turn

``upstream.Upstream`` moves the stream time when a watermark has its turn. The order of reading needs to know sooner:
a message of another input waits until no older one can come.

Invariants:
    - Messages of other inputs wait for a task that is at its end, too, until it has been there for ``IDLE_S`` more
      (``watermarks``). For a buffered message only watermarks behind the end that the topic had at that moment count:
      in a backlog, the watermarks that are read first are older than the message.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.runtime.reading.grouped_stream_time import last_watermarks
from holdfast.processors.engine.runtime.reading.watermarks import Before, Watermark
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime

#: Later than every event time, in milliseconds.
NEVER = 2**62


class WatermarkedTimes(NamedTuple):
    """The times of the records of a batch.

    Attributes:
        times: The event time of each record; for a watermark, the time of the task that wrote it.
        lows: For each record, the smallest event time of the messages from that record on.
    """

    times: list[int]
    lows: list[int]


class WatermarksAhead:
    """The watermarks that one task has read from one repartition topic before processing them.

    Args:
        topic: The repartition topic.
        tasks: The names of the tasks that write to the topic.
        stream: The stream time of the task, which keeps the watermarks up to its last commit; None for a task without.
    """

    def __init__(self, topic: str, tasks: frozenset[str], stream: StreamTime | None = None) -> None:
        self._topic, self._stream = topic, stream
        self._before = Before(tasks)
        #: The offset after the last record whose watermark was read, and the offset up to which reading is repeated.
        self._next = self._again_to = 0
        self.begin()

    def begin(self) -> None:
        """Starts again from the task's positions: their watermarks will be read a second time."""
        heard, self._next = self._next, 0
        if self._stream is None:
            self._again_to = max(self._again_to, heard)
        self._before.begin(self._before.times if self._stream is None else last_watermarks(self._stream, self._topic))

    def hear(self, batch: Batch, end: int) -> WatermarkedTimes:
        """Reads the watermarks among the first ``end`` records of a batch; returns the times of these records."""
        times, lows = list(batch.timestamps[:end]), list(batch.timestamps[:end])
        for index in [index for index, key in enumerate(batch.keys[:end]) if key is None]:
            read = Watermark.read(batch.values[index])  # processing the record reports if it is no watermark
            known = None if read is None else self._before.take(read)
            times[index], lows[index] = NO_TIME if read is None or known is None else read.time_ms, NEVER
        self._next = batch.offsets[end - 1] + 1
        lows.reverse()
        lows = list(accumulate(lows, min))
        lows.reverse()
        return WatermarkedTimes(times, lows)

    def wants_end(self, newest_ms: int) -> bool:
        """Whether ``mark`` must be called: messages of all inputs arrived up to this time."""
        return self._before.wants_end(newest_ms + 1)

    def mark(self, end: int, newest_ms: int) -> None:
        """Records the topic's present end, and the newest time of all messages that arrived, of all inputs."""
        self._before.mark(end, newest_ms + 1)

    def reached(self, position: int) -> int:
        """The time below which no new message arrives; ``position`` is the next offset to process."""
        heard_to = max(position, self._next)
        if heard_to < self._again_to:
            return NO_TIME
        self._before.look(heard_to)
        return self._before.reached_ms()

    def behind(self, time_ms: int) -> list[str]:
        """The tasks that hold messages of this time."""
        return self._before.behind(time_ms)
