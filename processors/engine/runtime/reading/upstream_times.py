"""Reads watermarks for the reading order as soon as they are buffered, before they are processed.

    log of the topic     m m m W  m m W  m │ m m W ...
                                           └ buffered up to here: these watermarks are already applied

A watermark is a record with the stream time of an upstream task, which writes to the topic.
``grouped_stream_time.Upstream`` advances stream time when a watermark is processed. The reading order needs watermarks
earlier, because a message of another input must wait while an older message of this topic may still arrive.

Invariants:
    - Messages of other inputs also wait for an upstream task that is at the end of its input. The wait ends when the
      upstream task has been at the end for ``IDLE_S`` seconds (``watermarks``). When a message arrives, the topic's end
      offset is requested. Only watermarks after this offset end the wait. In a backlog, earlier watermarks may be older
      than the message.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.runtime.reading.grouped_stream_time import last_watermarks
from holdfast.processors.engine.runtime.reading.watermarks import Before, Watermark
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime

#: A time in milliseconds that is later than every event time.
NEVER = 2**62


class WatermarkedTimes(NamedTuple):
    """The event times of the records of a batch, in milliseconds.

    Attributes:
        times: The event time of each record; for a watermark, the stream time of the task that wrote it.
        lows: For each record, the smallest event time from this record to the end of the batch, watermarks excluded.
    """

    times: list[int]
    lows: list[int]


class WatermarksAhead:
    """The watermarks that one task has polled from one repartition topic, even if they are not processed yet.

    Args:
        topic: The repartition topic.
        tasks: The names of the upstream tasks that write to the topic.
        stream: The stream time of the reading task, which has the committed watermarks; None if the task keeps none.
    """

    def __init__(self, topic: str, tasks: frozenset[str], stream: StreamTime | None = None) -> None:
        self._topic, self._stream = topic, stream
        self._before = Before(tasks)
        #: ``_next`` is the offset after the last polled record. After a seek back, records before ``_again_to`` are
        #: polled a second time.
        self._next = self._again_to = 0
        self.begin()

    def begin(self) -> None:
        """Starts again from the committed watermarks. Must be called when the task's records are polled again."""
        heard, self._next = self._next, 0
        if self._stream is None:
            self._again_to = max(self._again_to, heard)
        self._before.begin(self._before.times if self._stream is None else last_watermarks(self._stream, self._topic))

    def hear(self, batch: Batch, end: int) -> WatermarkedTimes:
        """Applies the watermarks among the first ``end`` records of a batch.

        Returns the event times of these records.
        """
        times, lows = list(batch.timestamps[:end]), list(batch.timestamps[:end])
        for index in [index for index, key in enumerate(batch.keys[:end]) if key is None]:
            # ``read`` is None if another program wrote the record. ``Upstream.take`` logs this.
            read = Watermark.read(batch.values[index])
            known = None if read is None else self._before.take(read)
            times[index], lows[index] = NO_TIME if read is None or known is None else read.time_ms, NEVER
        self._next = batch.offsets[end - 1] + 1
        lows.reverse()
        lows = list(accumulate(lows, min))
        lows.reverse()
        return WatermarkedTimes(times, lows)

    def wants_end(self, newest_ms: int) -> bool:
        """Whether the caller must now request the topic's end offset and pass it to ``mark``.

        ``newest_ms`` is the largest event time that has arrived in any input.
        """
        return self._before.wants_end(newest_ms + 1)

    def mark(self, end: int, newest_ms: int) -> None:
        """Stores the topic's end offset ``end``, and the largest event time that has arrived in any input."""
        self._before.mark(end, newest_ms + 1)

    def reached(self, position: int) -> int:
        """Returns the event time below which no further message of this topic can arrive.

        ``position`` is the next offset to process.
        """
        heard_to = max(position, self._next)
        if heard_to < self._again_to:
            return NO_TIME
        self._before.look(heard_to)
        return self._before.reached_ms()

    def behind(self, time_ms: int) -> list[str]:
        """Returns the names of the upstream tasks that may still send messages with event times up to ``time_ms``."""
        return self._before.behind(time_ms)
