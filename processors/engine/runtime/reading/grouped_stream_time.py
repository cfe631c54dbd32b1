"""The stream time of a task behind ``group_by``: what follows from the watermarks of the tasks before it.

Invariants:
    - Until every task before the topic has sent a watermark, the stream time behind it stays as it was committed.
    - The newest watermark of each task is committed with the stream time. After a restart of the reader it counts until
      the owner of that task sends another one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import structlog

from holdfast.processors.engine.runtime.reading.watermark_writer import Grouping, Quiet
from holdfast.processors.engine.runtime.reading.watermarks import (
    Before,
    Watermark,
)
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime

_log = structlog.get_logger("runtime.watermarks")


@dataclass(slots=True)
class InHand:
    """The smallest event times of unprocessed messages: of all inputs, and of the buffered ones of repartition topics.

    For an input that is not read to its end, the next time is unknown.
    """

    all_ms: int = EVENT_TIME_END_MS
    grouped_ms: int = EVENT_TIME_END_MS
    #: The newest message of a source that was processed before an older message of another input.
    ahead_ms: int = NO_TIME

    @property
    def order_ms(self) -> int:
        """The event time up to which messages came in order: no older message is buffered or can arrive."""
        return self.all_ms if self.all_ms < self.ahead_ms else EVENT_TIME_END_MS


class Upstream:
    """The stream time of a task that reads repartition topics; ``stream`` commits the watermarks with the time.

    Args:
        stream: The stream time of the task.
        topics: The repartition topics that it reads.
    """

    def __init__(self, stream: StreamTime, topics: Mapping[str, Grouping]) -> None:
        self._stream = stream
        self._before = {topic: Before(each.tasks) for topic, each in topics.items()}
        self._known = {f"{topic}/{task}" for topic, each in topics.items() for task in each.tasks}
        #: The buffered messages of the reading order: stream time stays below them.
        self.in_hand = InHand()

    def begin(self) -> None:
        """Starts from the committed watermarks of existing tasks; other tasks would hold the time forever."""
        self._stream.told = {key: told for key, told in self._stream.told.items() if key in self._known}
        for topic, before in self._before.items():
            before.begin(last_watermarks(self._stream, topic))
        self.reads_by(self.in_hand)
        self._stream.let_go_to(NO_TIME)  # until the first check of the watermarks

    def reads_by(self, in_hand: InHand) -> None:
        """Sets the buffered messages of the order of reading. Some may be older than processed ones."""
        self.in_hand = in_hand
        in_hand.ahead_ms = max([self._stream.time_ms, *self._stream.ahead])

    def take(self, topic: str, offset: int, value: bytes | None, now: float) -> None:
        """Takes a record without a key; ``now`` is monotonic seconds."""
        read = Watermark.read(value)
        if read is None:
            _log.warning(
                "a record without a key in a repartition topic is no watermark; it is skipped",
                topic=topic,
                offset=offset,
                next="find out who writes to this topic: it belongs to the processor alone",
            )
            return
        time_ms = self._before[topic].take(read, now)
        if time_ms is None:  # of a task that is gone
            return
        self._stream.told[f"{topic}/{read.task}"] = (time_ms, read.ended)

    def newest_ms(self, topic: str) -> int:
        """The newest time of the task's inputs, without the watermarks of this topic."""
        return max([self._stream.come_ms, *(each.newest_ms for name, each in self._before.items() if name != topic)])

    @property
    def waits(self) -> bool:
        """Whether stream time is behind the newest message or watermark that has arrived."""
        newest_ms = max([self._stream.come_ms, *(before.newest_ms for before in self._before.values())])
        return newest_ms > self._stream.time_ms

    def wants_end(self, topic: str) -> bool:
        """Whether ``mark`` has to be called for a topic."""
        return self._before[topic].wants_end(self.newest_ms(topic))

    def mark(self, topic: str, end: int) -> None:
        """Records a topic's present end: later watermarks release the messages of other inputs so far."""
        self._before[topic].mark(end, self.newest_ms(topic))

    def look(self, positions: Mapping[str, int]) -> None:
        """Takes the next offsets to process."""
        for topic, before in self._before.items():
            before.look(positions[topic])

    @property
    def topics(self) -> Collection[str]:
        """The repartition topics that the task reads."""
        return self._before.keys()

    def time_ms(self, topics: Collection[str] | None = None) -> int:
        """The stream time that the upstream tasks of these topics, or of all topics, have reached.

        ``NO_TIME`` while one of them has not sent its time.
        """
        return min(self._reached_ms(topics), self.in_hand.all_ms)

    def limit_ms(self) -> int:
        """The event time up to which messages of other inputs move stream time.

        The time of the slowest upstream task.
        """
        return min(self._reached_ms(), self.in_hand.grouped_ms, self.in_hand.order_ms)

    def _reached_ms(self, topics: Collection[str] | None = None) -> int:
        return min((before.reached_ms() for before in self._of(topics)), default=EVENT_TIME_END_MS)

    def _of(self, topics: Collection[str] | None) -> list[Before]:
        return [before for topic, before in self._before.items() if topics is None or topic in topics]

    def quiet(self, topics: Collection[str] | None = None) -> Quiet | None:
        """The silence of the upstream tasks of these topics, or of all topics; None while one of them has input."""
        befores = self._of(topics)
        if not all(before.ended for before in befores):
            return None
        return tuple(stretch for before in befores for stretch in before.stretches)

    def said(self, topics: Collection[str]) -> tuple[int, ...]:
        """The number of watermarks in the present silence of each upstream task of these topics."""
        return tuple(said for before in self._of(topics) for said in before.said)

    def silent_until(self, now: float) -> float:
        """Until when all upstream tasks are known to be silent, in monotonic seconds; 0 while one of them is not."""
        if self.quiet() is None:
            return 0.0
        return min([now, *(before.heard_at for before in self._before.values())])


def last_watermarks(stream: StreamTime, topic: str) -> dict[str, int]:
    """By task, the time that it sent to a repartition topic, in the form of a stream time's record."""
    begin = len(topic) + 1
    return {key[begin:]: time_ms for key, (time_ms, _) in stream.told.items() if key.startswith(f"{topic}/")}
