"""Computes the stream time of a task that reads a repartition topic.

Stream time follows watermarks, which are records with the stream times of the upstream tasks, the writers of the topic.

Invariants:
    - Stream time does not move before every upstream task of the repartition topic has sent a watermark.
    - The newest watermark of each upstream task is committed with the stream time. After a restart, it is valid until
      that upstream task sends its next watermark.
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
    """The smallest event times of unprocessed messages, which limit stream time.

    ``all_ms`` is the smallest time in all inputs. It is unknown (very small) if an input has no buffered message and is
    not read to its end. ``grouped_ms`` is the smallest time of buffered messages of repartition topics.
    """

    all_ms: int = EVENT_TIME_END_MS
    grouped_ms: int = EVENT_TIME_END_MS
    #: The largest event time among source messages that were processed although another input had an older message.
    ahead_ms: int = NO_TIME

    @property
    def order_ms(self) -> int:
        """The event time up to which all messages are processed; ``EVENT_TIME_END_MS`` for no limit.

        The limit exists only while a message was processed before an older message of another input.
        """
        return self.all_ms if self.all_ms < self.ahead_ms else EVENT_TIME_END_MS


class Upstream:
    """The watermarks (stream times) of all upstream tasks of a task.

    They determine how far the task's own stream time may advance.

    Args:
        stream: The stream time of the task; the watermarks are committed with it.
        topics: The repartition topics that the task reads, by name.
    """

    def __init__(self, stream: StreamTime, topics: Mapping[str, Grouping]) -> None:
        self._stream = stream
        self._before = {topic: Before(each.tasks) for topic, each in topics.items()}
        self._known = {f"{topic}/{task}" for topic, each in topics.items() for task in each.tasks}
        #: The smallest event times of unprocessed messages. Stream time must not pass them.
        self.in_hand = InHand()

    def begin(self) -> None:
        """Starts from the committed watermarks.

        Watermarks of tasks that no longer exist are left out, because they would hold stream time back forever.
        """
        self._stream.told = {key: told for key, told in self._stream.told.items() if key in self._known}
        for topic, before in self._before.items():
            before.begin(last_watermarks(self._stream, topic))
        self.reads_by(self.in_hand)
        # The stream time may not advance before the watermarks are checked for the first time.
        self._stream.let_go_to(NO_TIME)

    def reads_by(self, in_hand: InHand) -> None:
        """Sets the object into which the reading order writes the smallest times of its buffered messages."""
        self.in_hand = in_hand
        in_hand.ahead_ms = max([self._stream.time_ms, *self._stream.ahead])

    def take(self, topic: str, offset: int, value: bytes | None, now: float) -> None:
        """Applies a watermark that the task has read. ``value`` is the record's value, ``now`` is monotonic seconds."""
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
        if time_ms is None:  # the upstream task no longer exists
            return
        self._stream.told[f"{topic}/{read.task}"] = (time_ms, read.ended)

    def newest_ms(self, topic: str) -> int:
        """Returns the largest event time that has arrived, in messages or in watermarks.

        Watermarks of ``topic`` do not count.
        """
        return max([self._stream.come_ms, *(each.newest_ms for name, each in self._before.items() if name != topic)])

    @property
    def waits(self) -> bool:
        """Whether a message or a watermark has arrived whose time is later than the task's stream time."""
        newest_ms = max([self._stream.come_ms, *(before.newest_ms for before in self._before.values())])
        return newest_ms > self._stream.time_ms

    def wants_end(self, topic: str) -> bool:
        """Whether the caller must now request the end offset of this topic and pass it to ``mark``."""
        return self._before[topic].wants_end(self.newest_ms(topic))

    def mark(self, topic: str, end: int) -> None:
        """Stores the current end offset of ``topic``.

        Messages that have arrived in other inputs may wait for ``topic``. Only watermarks after this offset end their
        wait.
        """
        self._before[topic].mark(end, self.newest_ms(topic))

    def look(self, positions: Mapping[str, int]) -> None:
        """Applies the offsets that ``mark`` has stored. Must be called after records were processed.

        ``positions`` maps each topic to the next offset to process.
        """
        for topic, before in self._before.items():
            before.look(positions[topic])

    @property
    def topics(self) -> Collection[str]:
        """The repartition topics that the task reads."""
        return self._before.keys()

    def time_ms(self, topics: Collection[str] | None = None) -> int:
        """Returns the time up to which the watermarks of these topics let stream time advance.

        The time is the minimum over the upstream tasks, and at most the smallest time of unprocessed messages. It is
        ``NO_TIME`` until each upstream task has sent a watermark. If ``topics`` is None, all topics count.
        """
        return min(self._reached_ms(topics), self.in_hand.all_ms)

    def limit_ms(self) -> int:
        """Returns the time past which stream time must not advance now.

        It is the minimum of three times: the minimum watermark of the upstream tasks, the smallest time of buffered
        messages of repartition topics, and ``InHand.order_ms``.
        """
        return min(self._reached_ms(), self.in_hand.grouped_ms, self.in_hand.order_ms)

    def _reached_ms(self, topics: Collection[str] | None = None) -> int:
        return min((before.reached_ms() for before in self._of(topics)), default=EVENT_TIME_END_MS)

    def _of(self, topics: Collection[str] | None) -> list[Before]:
        return [before for topic, before in self._before.items() if topics is None or topic in topics]

    def quiet(self, topics: Collection[str] | None = None) -> Quiet | None:
        """Returns numbers that identify the upstream tasks' current idle period; None while one of them has input.

        ``topics`` limits this to the upstream tasks of these repartition topics. None means all topics.
        """
        befores = self._of(topics)
        if not all(before.ended for before in befores):
            return None
        return tuple(stretch for before in befores for stretch in before.stretches)

    def said(self, topics: Collection[str]) -> tuple[int, ...]:
        """Returns how many watermarks each upstream task of these topics has sent in its current idle period."""
        return tuple(said for before in self._of(topics) for said in before.said)

    def silent_until(self, now: float) -> float:
        """Returns the last moment at which all upstream tasks were known to be idle; 0 while one of them has input.

        The moment is in monotonic seconds.
        """
        if self.quiet() is None:
            return 0.0
        return min([now, *(before.heard_at for before in self._before.values())])


def last_watermarks(stream: StreamTime, topic: str) -> dict[str, int]:
    """Maps each upstream task to the time of the last committed watermark that the task sent to a repartition topic."""
    begin = len(topic) + 1
    return {key[begin:]: time_ms for key, (time_ms, _) in stream.told.items() if key.startswith(f"{topic}/")}
