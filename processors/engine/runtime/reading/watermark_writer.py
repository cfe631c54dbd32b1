"""When a task writes watermarks to a repartition topic, and what they say: how far the task has read.

    task flights-0  ──┐                                    ┌──► task …-repartition-0
      at 10:00, reads │  messages, and behind them         │      clock: 09:40, the smallest of all tasks that hold
    task flights-1  ──┴► a watermark for each partition ───┘
      at 09:40, reads

A *watermark* is a record without a key, which a task writes behind its messages, in the same transaction: its stream
time, and whether its inputs are read to their ends. A task at its end repeats its watermark (``watermarks``). Behind
the topic, no message is late only because another task before it was read further, or because the worker of its
partition is gone. Flink's watermarks and idle inputs are the same idea.

Invariants:
    - Each task sends a watermark at its start.
    - The watermark of a task for a topic depends on the inputs that lead to that topic. So no task waits for its own
      work.
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

#: Maximum watermarks that all upstream tasks of a topic write in a second. With a hundred tasks on each side, each
#: partition gets a watermark of each task every fifth second.
WATERMARKS_PER_S = 2_000.0
#: If that limit allows watermarks at least this often, in seconds, each commit has watermarks. The limit allows that
#: for up to twelve tasks on each side.
EACH_COMMIT_S = 0.1
#: The header of a watermark, for people who read the topic.
HEADERS: Headers = [("holdfast.watermark", b"1")]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A repartition topic: its width in partitions, and the names of the tasks that write to it.

    Attributes:
        partitions: The number of its partitions.
        tasks: The names of the tasks that write to the topic.
        ordered: Whether the tasks that read the topic have other inputs, too, and wait for its watermarks; False if
            circular.
        circular: Whether a task that reads the topic, or a task downstream of it, writes to the topic: such a task
            would wait for its own work.
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
    """All repartition topics of a processor, by name, and the clock in monotonic seconds."""

    topics: Mapping[str, Grouping]
    monotonic: Callable[[], float] = time.monotonic


def groupings_of(topology: Topology, facts: Mapping[str, TopicFacts]) -> dict[str, Grouping]:
    """The repartition topics of a processor; ``facts`` covers all its topics."""
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
    """The subtopologies whose messages reach a repartition topic, directly or through other repartition topics."""
    found, look_at = set[Subtopology](), [topic]
    while look_at:
        new = before[look_at.pop()] - found
        found |= new
        look_at += [name for sub in new for name in sub.inputs if name in before]
    return found


#: For a processor without ``group_by``.
NO_GROUPS = Groups({})

#: Identifies one silence of a task: the task's work so far, and the numbers of the upstream tasks' silences.
Quiet = tuple[int, ...]


class _Told(NamedTuple):
    time_ms: int
    #: The number of the silence; 0 for a task that has input.
    stretch: int = 0


class WatermarkWriter:
    """Decides when a task writes watermarks, and which.

    Each commit that moves the time has watermarks, because downstream tasks wait for them, and the next input may come
    late. Only very wide topics get watermarks less often.

    Args:
        task: The name of the task.
        topics: The repartition topics that it writes to.
        inputs: The task's inputs whose messages reach these topics.
        hears: Whether one of these inputs is a repartition topic, so that the task's time depends on its watermarks.
        own: Whether the task's own watermarks return to it through these topics. Then only ``inputs`` decide its
            watermarks.
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
        #: When Kafka was last asked for the ends of the task's repartition topics; these ends; and the numbers of the
        #: upstream silences' watermarks when this task last wrote one.
        self.asked: tuple[float, Mapping[str, int]] | None = None
        self.said: tuple[int, ...] = ()
        every_s = sum(each.partitions * each.writers for each in topics.values()) / WATERMARKS_PER_S
        self._every_s = every_s if every_s > EACH_COMMIT_S else 0.0
        self._told: _Told | None = None
        self._pending: _Told | None = None
        self._told_at = 0.0
        #: False until the first check; a paused worker never checks.
        self._looked = False
        #: The present silence; None while there is none. Its number, and since when (monotonic seconds).
        self._quiet: Quiet | None = None
        self._stretch, self._since = 0, 0.0
        #: Monotonic seconds at which the inputs were at their ends; None if unknown, or already in a watermark.
        self._ended_at: float | None = None

    def look(self, time_ms: int, now: float, quiet: Quiet | None, confirm: Callable[[], float | None]) -> bool:
        """Whether a commit has to write watermarks now.

        Args:
            time_ms: The time of the task.
            now: Monotonic seconds.
            quiet: What the silence of the task is; None while it has input.
            confirm: Returns the latest moment, in monotonic seconds, since which the inputs have no further record;
                None if there is one. It is called only after some silence.
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
            self._ended_at = None  # the next watermark describes a moment after this commit
        return self._is_due(time_ms, now)

    def tell(self, time_ms: int, now: float) -> bytes | None:
        """The value of the watermarks that the next commit has to write; None for none."""
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
            return False  # the next watermark of the silence contains this time
        # A time that went back, as for an input whose buffer is empty for a moment, is no news. A task that reads its
        # own watermarks would otherwise answer each one with a watermark.
        moved = self._told.time_ms < time_ms or self._told.stretch != 0
        return moved and now - self._told_at >= self._every_s

    def owes(self, time_ms: int) -> bool:
        """Whether this time is newer than the last watermark; during a silence, the next watermark contains it."""
        return time_ms > (NO_TIME if self._told is None else self._told.time_ms)

    def committed(self) -> None:
        """The commit of the last ``tell`` is done."""
        if self._pending is not None:
            self._told, self._pending = self._pending, None

    def restore(self) -> None:
        """The commit was dropped."""
        self._pending = self._quiet = self._ended_at = None

    def begin(self) -> None:
        """Discards the last watermark, so that the next commit writes one."""
        self.restore()
        self._told, self._looked = None, False
        self.asked, self.said = None, ()
