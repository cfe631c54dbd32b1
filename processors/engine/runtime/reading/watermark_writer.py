"""Decides when a task writes watermarks to a repartition topic. A watermark has the stream time of the task.

    task flights-0  ──┐                                    ┌──► task …-repartition-0
      stream time     │  messages, and after them          │      stream time 09:40, the minimum of all
      10:00           │  a watermark for each partition    │      upstream tasks that still have input
    task flights-1  ──┴────────────────────────────────────┘
      stream time 09:40

A *watermark* is a record without a key. A task writes a watermark after its messages, in the same transaction. The
watermark contains the stream time of the task, and whether the task's inputs are read to their ends. A task whose
inputs are read to their ends repeats its watermark. Downstream stream time therefore waits for an upstream task that is
slow or whose worker died, and the messages of this task are not late. Flink has watermarks and idle sources for the
same reason.

Invariants:
    - Each task writes a watermark when it starts.
    - The watermark for a topic depends only on the inputs whose messages reach that topic. Otherwise, a task could wait
      for its own watermarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog

from holdfast.infra.kafka.records import Headers, TopicFacts
from holdfast.processors.engine.runtime.reading.watermarks import (
    REPEAT_MOST_S,
    REPEAT_PART,
    REPEAT_S,
    Watermark,
)
from holdfast.processors.engine.state.time.stream_time import NO_TIME
from holdfast.processors.engine.topology import Subtopology, Topology

_log = structlog.get_logger("runtime.watermarks")

#: Maximum watermarks per second that all upstream tasks of a topic write together. For example, each of 100 upstream
#: tasks writes a watermark to each of 100 partitions every 5 seconds.
WATERMARKS_PER_S = 2_000.0
#: Seconds. If ``WATERMARKS_PER_S`` allows an interval of at most this length, each commit writes watermarks. This is
#: the case for topics with up to about 14 upstream tasks and 14 partitions.
EACH_COMMIT_S = 0.1
#: The header of a watermark record. A person who inspects the topic can recognize watermarks by it.
HEADERS: Headers = [("holdfast.watermark", b"1")]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A repartition topic: its partitions, and the tasks that write to it.

    Attributes:
        partitions: The topic's number of partitions.
        tasks: The names of the tasks that write to the topic.
        ordered: Whether the task that reads the topic lets messages of other inputs wait for the topic's watermarks.
            False if this task has no other input, or if the topic is circular.
        circular: Whether a task that reads the topic, or a task downstream of it, also writes to the topic. Waiting for
            watermarks would then be a deadlock.
    """

    partitions: int
    tasks: frozenset[str]
    ordered: bool = False
    circular: bool = False

    @property
    def writers(self) -> int:
        """The number of tasks that write to the topic."""
        return len(self.tasks)


@dataclass(frozen=True, slots=True)
class Groups:
    """All repartition topics of a processor, by name, and a clock that returns monotonic seconds.

    ``shadow`` is True in a second run that only rebuilds a store, and sends nothing.
    """

    topics: Mapping[str, Grouping]
    monotonic: Callable[[], float] = time.monotonic
    shadow: bool = False


def groupings_of(topology: Topology, facts: Mapping[str, TopicFacts]) -> dict[str, Grouping]:
    """Maps the name of each repartition topic to its ``Grouping`` (its partitions and the tasks that write to it).

    ``facts`` must contain all topics of the processor.
    """
    widths = {name: seen.partitions for name, seen in facts.items()}
    before = {spec.topic: {topology.subtopology_of(name) for name in spec.sources} for spec in topology.repartitions}
    found = {}
    for topic, writers in before.items():
        tasks = frozenset(sub.task(number) for sub in writers for number in range(sub.width(widths)))
        reader = topology.subtopology_of(topic)
        circular = reader in _all_before(topic, before)
        found[topic] = Grouping(widths.get(topic, 0), tasks, len(reader.inputs) > 1 and not circular, circular)
    return found


def _all_before(topic: str, before: Mapping[str, set[Subtopology]]) -> set[Subtopology]:
    """Returns the subtopologies whose messages reach a repartition topic, also through other repartition topics."""
    found, look_at = set[Subtopology](), [topic]
    while look_at:
        new = before[look_at.pop()] - found
        found |= new
        look_at += [name for sub in new for name in sub.inputs if name in before]
    return found


#: The groups of a processor without ``group_by``, which has no repartition topics.
NO_GROUPS = Groups({})

#: Numbers that identify one idle period of a task: the task's work counter, and the numbers of its upstream tasks' idle
#: periods.
Quiet = tuple[int, ...]


class _Told(NamedTuple):
    time_ms: int
    #: The number of the idle period that the watermark reported; 0 if the task had input.
    stretch: int = 0


class WatermarkWriter:
    """Decides when a task writes watermarks, and makes their values.

    A commit that advances the stream time writes watermarks at once, because downstream tasks wait for them. Topics
    with many partitions and upstream tasks get watermarks less often (``WATERMARKS_PER_S``).

    Args:
        task: The name of the task.
        topics: The repartition topics that the task writes to, by name.
        inputs: The task's inputs whose messages reach these topics.
        hears: Whether one of these inputs is a repartition topic, whose watermarks move the task's stream time.
        own: Whether the task's own watermarks come back to it through these topics. This writer's watermarks then
            depend on ``inputs`` only.
    """

    def __init__(
        self,
        task: str,
        topics: Mapping[str, Grouping],
        inputs: frozenset[str] = frozenset(),
        *,
        hears: bool = False,
        own: bool = False,
    ) -> None:
        self._task = task
        self.topics, self.inputs, self.hears, self.own = topics, inputs, hears, own
        #: ``asked`` has the time of the last request for the end offsets of the task's repartition topics, and these
        #: offsets. ``said`` has the number of watermarks of each idle upstream task, at the moment when this task last
        #: wrote a watermark.
        self.asked: tuple[float, Mapping[str, int]] | None = None
        self.said: tuple[int, ...] = ()
        every_s = sum(each.partitions * each.writers for each in topics.values()) / WATERMARKS_PER_S
        self._every_s = every_s if every_s > EACH_COMMIT_S else 0.0
        self._told: _Told | None = None
        self._pending: _Told | None = None
        self._told_at = 0.0
        #: Whether ``look`` was called since the start. A paused worker never calls it.
        self._looked = False
        #: The current idle period: its identity (None while the task has input), its number, and its start in monotonic
        #: seconds.
        self._quiet: Quiet | None = None
        self._stretch, self._since = 0, 0.0
        #: A moment at which the inputs were read to their ends, in monotonic seconds. None if unknown, or if a
        #: watermark already reports it.
        self._ended_at: float | None = None

    def look(self, time_ms: int, now: float, quiet: Quiet | None, confirm: Callable[[], float | None]) -> bool:
        """Returns True if a commit is needed now, to write watermarks.

        Must be called in each turn of the worker's loop.

        Args:
            time_ms: The stream time of the task.
            now: The current time, in monotonic seconds.
            quiet: Numbers that identify the idle period of the task; None while the task has input.
            confirm: A function that returns the last moment, in monotonic seconds, at which the inputs were certainly
                read to their ends; None if an input has unread records. It is called only after ``REPEAT_S`` seconds of
                idle time.
        """
        self._looked = True
        if quiet is not None and quiet != self._quiet:
            self._stretch, self._since = self._stretch + 1, now
        self._quiet = quiet
        silent_s = now - self._since
        every_s = max(self._every_s, min(silent_s * REPEAT_PART, REPEAT_MOST_S))
        lasts = quiet is not None and silent_s >= REPEAT_S and now - self._told_at >= every_s
        self._ended_at = confirm() if lasts else None
        if self._ended_at is not None and self._ended_at <= max(self._told_at, self._since):
            self._ended_at = None  # the last watermark already covers this moment
        return self._is_due(time_ms, now)

    def tell(self, time_ms: int, now: float) -> bytes | None:
        """Returns the value of the watermark that the next commit must write; None if no watermark is due."""
        if (not self._looked and time_ms == NO_TIME) or not self._is_due(time_ms, now):
            return None
        ended_at, self._ended_at = self._ended_at, None
        time_ms = max(time_ms, NO_TIME if self._told is None else self._told.time_ms)
        self._pending, self._told_at = _Told(time_ms, 0 if ended_at is None else self._stretch), now
        if ended_at is None:
            return msgspec.json.encode(Watermark(self._task, time_ms, False))
        return msgspec.json.encode(
            Watermark(self._task, time_ms, True, int((ended_at - self._since) * 1000), self._stretch)
        )

    def _is_due(self, time_ms: int, now: float) -> bool:
        if self._told is None or self._ended_at is not None:
            return True
        if self._told.stretch and self._quiet is not None and self._told.stretch == self._stretch:
            return False  # The next repeated watermark of this idle period will contain ``time_ms``.
        # A smaller time (for example because a buffer was empty for a moment) needs no watermark. Otherwise, a task
        # that reads its own watermarks would answer each watermark with another one, without end.
        moved = self._told.time_ms < time_ms or self._told.stretch != 0
        return moved and now - self._told_at >= self._every_s

    def owes(self, time_ms: int) -> bool:
        """Whether ``time_ms`` is later than the last watermark's time, so that a watermark must still be written."""
        return time_ms > (NO_TIME if self._told is None else self._told.time_ms)

    def committed(self) -> None:
        """Marks the last result of ``tell`` as committed. Must be called after the commit that wrote this watermark."""
        if self._pending is not None:
            self._told, self._pending = self._pending, None

    def restore(self) -> None:
        """Forgets the last result of ``tell``. Must be called if the transaction with this watermark was aborted."""
        self._pending = self._quiet = self._ended_at = None

    def begin(self) -> None:
        """Makes the next commit write a watermark. Must be called when the task starts."""
        self.restore()
        self._told, self._looked = None, False
        self.asked, self.said = None, ()
