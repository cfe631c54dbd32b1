"""What the order of reading hears of the tasks before a repartition topic: from which time on messages may come.

    log of the topic     m m m W  m m W  m │ m m W ...
                                           └ buffered up to here: these watermarks are heard, long before their turn

``watermarks.Upstream`` moves the stream time when a watermark has its turn. The order of reading needs to know sooner:
a message of another input waits until no older one can come.

Invariants:
    - A task that has read its inputs to their ends holds nobody. Where the topic itself is not read to its end, such a
      task counts as far as the newest watermark was written: it may have had input again since.
    - An end that a task told before this one started counts later, as does the silence of a task that has never told
      anything (``watermarks.OldEnds``): its worker may be dead, and another one takes over after the session. What was
      in the topic by then is heard before: with a backlog, what a task has told since is there, and not read yet.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.runtime.watermarks import OldEnds, Watermark
from holdfast.processors.engine.state.stream_time import NO_TIME, StreamTime

#: Later than every event time, in milliseconds.
NEVER = 2**62


class HeardTimes(NamedTuple):
    """By record, its time; a watermark has the one that it tells. ``lows``: the smallest of messages from there on."""

    times: list[int]
    lows: list[int]


class Heard:
    """What one task has heard of those before one of its inputs.

    Args:
        topic: The repartition topic.
        tasks: The names of the tasks that write to it.
        end: Its end when this task started: what is below is from before.
        monotonic: Monotonic seconds.
        stream: The stream time of the task, which keeps the watermarks up to its last commit; None for a task without.
    """

    def __init__(
        self,
        topic: str,
        tasks: frozenset[str],
        end: int,
        monotonic: Callable[[], float],
        stream: StreamTime | None = None,
    ) -> None:
        self._topic, self._tasks, self._end, self._stream = topic, tasks, end, stream
        self._monotonic = monotonic
        #: When ends and silence from before the start count.
        self.old_ends = OldEnds(monotonic())
        self._told: dict[str, tuple[int, bool]] = {}
        self._old: set[str] = set()
        #: When the newest watermark was written, in milliseconds since 1970.
        self._newest_ms = NO_TIME
        #: The offset behind the last record that was heard, and up to which records have to be heard again.
        self._next = self._again_to = 0
        self.begin()

    def begin(self) -> None:
        """The records from the task's positions on are heard again."""
        heard, self._next = self._next, 0
        if self._stream is None:
            self._again_to = max(self._again_to, heard)
            return
        begin = len(self._topic) + 1
        told = {key[begin:]: told for key, told in self._stream.told.items() if key.startswith(f"{self._topic}/")}
        self._told = {task: each for task, each in told.items() if task in self._tasks}
        self._old, self._newest_ms = set(self._told), NO_TIME

    def hear(self, batch: Batch, end: int) -> HeardTimes:
        """Takes the watermarks among the first ``end`` records of a batch; returns the times of these records."""
        times, lows = list(batch.timestamps[:end]), list(batch.timestamps[:end])
        for index in [index for index, key in enumerate(batch.keys[:end]) if key is None]:
            times[index], lows[index] = self._take(batch, index), NEVER
        self._next = batch.offsets[end - 1] + 1
        self.old_ends.came(self._monotonic())
        lows.reverse()
        lows = list(accumulate(lows, min))
        lows.reverse()
        return HeardTimes(times, lows)

    def _take(self, batch: Batch, index: int) -> int:
        read = Watermark.read(batch.values[index])
        if read is None or read.task not in self._tasks:  # processing it says so, or the task is gone
            return NO_TIME
        known_ms, _ = self._told.get(read.task, (NO_TIME, False))
        self._told[read.task] = (max(known_ms, read.time_ms), read.ended)
        if batch.offsets[index] < self._end:
            self._old.add(read.task)
        else:
            self._old.discard(read.task)
        self._newest_ms = max(self._newest_ms, batch.timestamps[index])
        return read.time_ms

    def reached(self, position: int, *, at_end: bool) -> int:
        """The time below which no message comes that is not heard yet, in milliseconds; ``NEVER`` for none at all.

        ``position`` is the next offset to process; ``at_end``: whether the topic is read to its end.
        """
        heard_to = max(position, self._next)
        if heard_to < self._again_to:
            return NO_TIME
        trusts = self.old_ends.is_due(self._monotonic()) if at_end else self.old_ends.count(heard_to)
        if not trusts and not self._tasks <= self._told.keys():
            return NO_TIME
        found = NEVER
        for task, (time_ms, ended) in self._told.items():
            if not ended or (task in self._old and not trusts):
                found = min(found, time_ms)
            elif not at_end:
                found = min(found, max(time_ms, self._newest_ms))
        return found

    def behind(self, time_ms: int) -> list[str]:
        """The tasks that hold messages of this time."""
        silent = sorted(self._tasks - self._told.keys())
        return silent + [task for task, (of_ms, ended) in sorted(self._told.items()) if of_ms <= time_ms and not ended]
