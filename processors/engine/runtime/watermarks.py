"""How far the tasks before a repartition topic have read, and the stream time that follows from it behind the topic.

    task flights-0  ──┐                                    ┌──► task …-repartition-0
      at 10:00, reads │  messages, and behind them         │      clock: 09:40, the smallest of the tasks that still
    task flights-1  ──┴► a watermark for each partition ───┘      have input
      at 09:40, reads

A *watermark* is a record without a key, which a task writes behind its messages, in the same transaction: its stream
time, and whether its inputs are read to their ends. Behind the topic, no message is late only because another task
before it was read further. Flink's watermarks and idle inputs are the same idea.

Invariants:
    - Until every task before the topic has told its time, the stream time behind it stays as it was committed.
    - What the tasks tell is committed with the stream time. An end that a task told before this one started counts
      later (``OldEnds``): that task may be restarting with new input. Each task tells its time at its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog

from holdfast.infra.json_file import JSON_FAILURES
from holdfast.infra.kafka.records import Headers, TopicFacts
from holdfast.processors.engine.state.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.topology import Subtopology, Topology

_log = structlog.get_logger("runtime.watermarks")

#: Watermarks that all tasks before a wide topic write in a second, at most: with a hundred tasks on each side, they
#: come every fifth second.
WATERMARKS_PER_S = 2_000.0
#: Topics that would get them more often than in so many seconds have them with each commit: twelve tasks on each side.
EACH_COMMIT_S = 0.1
#: Seconds after a task's start from which on old ends and silence count: more than a session of the group lasts.
OLD_ENDS_COUNT_S = 90.0
#: The header of a watermark, for people who read the topic.
HEADERS: Headers = [("holdfast.watermark", b"1")]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A repartition topic: its width in partitions, and the names of the tasks that write to it.

    ``ordered``: whether the tasks that read it have other inputs, too, and wait for its watermarks. They don't where
    they, or a task behind them, write to it themselves: they would wait for their own work.
    """

    partitions: int
    tasks: frozenset[str]
    ordered: bool = False

    @property
    def writers(self) -> int:
        """How many tasks write to it."""
        return len(self.tasks)


@dataclass(frozen=True, slots=True)
class Groups:
    """What a task needs to know of repartition topics: all of the processor's, and the ends of those that it reads."""

    topics: Mapping[str, Grouping]
    ends: Mapping[str, int]
    monotonic: Callable[[], float] = time.monotonic


def groupings_of(topology: Topology, facts: Mapping[str, TopicFacts]) -> dict[str, Grouping]:
    """The repartition topics of a processor; ``facts`` are those of all its topics."""
    widths = {name: seen.partitions for name, seen in facts.items()}
    before = {spec.topic: {topology.subtopology_of(name) for name in spec.sources} for spec in topology.repartitions}
    found = {}
    for topic, writers in before.items():
        tasks = frozenset(sub.task(number) for sub in writers for number in range(sub.width(widths)))
        reader = topology.subtopology_of(topic)
        ordered = len(reader.inputs) > 1 and reader not in _all_before(topic, before)
        found[topic] = Grouping(widths.get(topic, 0), tasks, ordered)
    return found


def _all_before(topic: str, before: Mapping[str, set[Subtopology]]) -> set[Subtopology]:
    """The subtopologies whose messages come to a repartition topic, through whatever other ones."""
    found, look_at = set[Subtopology](), [topic]
    while look_at:
        new = before[look_at.pop()] - found
        found |= new
        look_at += [name for sub in new for name in sub.inputs if name in before]
    return found


#: For a processor without ``group_by``.
NO_GROUPS = Groups({}, {})


class Watermark(msgspec.Struct, frozen=True):
    """The value of a watermark: a task's stream time in ms, and whether its inputs are read to their ends."""

    task: str
    time_ms: int
    ended: bool

    @classmethod
    def read(cls, value: bytes | None) -> Watermark | None:
        """What the value of a record without a key says; None if it is no watermark."""
        try:
            return msgspec.json.decode(value or b"", type=cls)
        except JSON_FAILURES:
            return None


class OldEnds:
    """When ends that tasks told before this one started count, and the silence of others, for one repartition topic.

    start ──── OLD_ENDS_COUNT_S ────┬──── records come: the topic ends at E ────┬──── read up to E, or to the end:
                                    └─ a dead worker's tasks have told by then  └─ that is heard, so both count
    """

    def __init__(self, now: float) -> None:
        self._at = now + OLD_ENDS_COUNT_S
        #: Both count when the topic is read up to here; None before that is known.
        self._from: int | None = None
        #: Whether ``look_at`` has to say the topic's end: after records came, Kafka's answer is as new as they are.
        self.asks_for_end = False

    def is_due(self, now: float) -> bool:
        """Whether the seconds have passed."""
        return now >= self._at

    def came(self, now: float) -> None:
        """Records of the topic came."""
        self.asks_for_end = self._from is None and self.is_due(now)

    def look_at(self, end: int | None) -> None:
        """Takes the topic's end, or the offset behind all that it has; None while Kafka has not told it."""
        self._from, self.asks_for_end = end, end is None

    def count(self, read_to: int) -> bool:
        """Whether both count for a reader that has read up to this offset."""
        return self._from is not None and read_to >= self._from


class _Told(NamedTuple):
    time_ms: int
    ended: bool


class Teller:
    """Decides when a task writes watermarks, and which; ``topics`` are the repartition topics that it writes to.

    A commit that moves the stream time has them, however soon it comes: a successor without a store knows no time, and
    without new input it has none to tell. Only where the topics are very wide, they come less often.
    """

    def __init__(self, task: str, topics: Mapping[str, Grouping]) -> None:
        self._task = task
        self.topics = topics
        every_s = sum(each.partitions * each.writers for each in topics.values()) / WATERMARKS_PER_S
        self._every_s = every_s if every_s > EACH_COMMIT_S else 0.0
        self._told: _Told | None = None
        self._pending: _Told | None = None
        self._told_at = 0.0
        #: Whether the inputs are read to their ends; None before the first look. A worker that is paused never looks.
        self._ended: bool | None = None

    def look(self, time_ms: int, now: float, *, ended: bool) -> bool:
        """Whether a commit has to write watermarks now; ``now`` is monotonic seconds."""
        self._ended = ended
        return self._is_due(time_ms, now)

    def tell(self, time_ms: int, now: float) -> bytes | None:
        """The value of the watermarks that the next commit has to write; None for none."""
        if (self._ended is None and time_ms == NO_TIME) or not self._is_due(time_ms, now):
            return None
        self._pending, self._told_at = _Told(time_ms, bool(self._ended)), now
        return msgspec.json.encode(Watermark(self._task, *self._pending))

    def _is_due(self, time_ms: int, now: float) -> bool:
        if self._told is None or self._told.ended != bool(self._ended):
            return True
        return self._told.time_ms != time_ms and now - self._told_at >= self._every_s

    def committed(self) -> None:
        """The commit of the last ``tell`` is done."""
        if self._pending is not None:
            self._told, self._pending = self._pending, None

    def restore(self) -> None:
        """The commit was dropped."""
        self._pending = None

    def begin(self) -> None:
        """Forgets what it has told, so that all of it comes again."""
        self._told = self._pending = self._ended = None


@dataclass(slots=True)
class InHand:
    """The smallest times of messages that were read and not processed: of all inputs, and of repartition topics."""

    all_ms: int = EVENT_TIME_END_MS
    grouped_ms: int = EVENT_TIME_END_MS


class Upstream:
    """The stream time of a task that reads repartition topics; ``stream`` keeps what they tell, with each commit.

    Args:
        stream: The stream time of the task.
        topics: The repartition topics that it reads.
        ends: By topic, its end when this task started: what is below is from before.
        now: Monotonic seconds of the start.
    """

    def __init__(self, stream: StreamTime, topics: Mapping[str, Grouping], ends: Mapping[str, int], now: float) -> None:
        self._stream = stream
        self._topic_of = {f"{topic}/{task}": topic for topic, each in topics.items() for task in each.tasks}
        self._ends = ends
        self._old_ends = {topic: OldEnds(now) for topic in topics}
        #: The topics whose records the order of reading hears when they come, long before their turn.
        self._heard: Collection[str] = ()
        #: By topic, up to which offset what it says is taken.
        self._read_to = dict.fromkeys(topics, 0)
        #: The tasks whose last word is from before this task started.
        self._old: set[str] = set()
        #: What the order of reading has in hand: stream time is not beyond it.
        self.in_hand = InHand()

    def follow(self, in_hand: InHand, heard: Mapping[str, OldEnds]) -> None:
        """Follows an order of reading: what it has in hand, and by topic, when old ends count for it."""
        self.in_hand, self._heard = in_hand, heard.keys()
        self._old_ends |= heard

    def begin(self) -> None:
        """Begins with what is committed, but for tasks that there are no longer: they would hold the time for good."""
        self._stream.told = {key: told for key, told in self._stream.told.items() if key in self._topic_of}
        self._old = set(self._stream.told)
        self._read_to = dict.fromkeys(self._read_to, 0)
        self._stream.let_go_to(NO_TIME)  # until the first look at what was told

    def take(self, topic: str, offset: int, value: bytes | None, now: float) -> None:
        """Takes a record without a key."""
        self._read_to[topic] = offset + 1
        if topic not in self._heard:
            self._old_ends[topic].came(now)
        read = Watermark.read(value)
        if read is None:
            _log.warning(
                "a record without a key in a repartition topic is no watermark; it is skipped",
                topic=topic,
                offset=offset,
                next="find out who writes to this topic: it belongs to the processor alone",
            )
            return
        key = f"{topic}/{read.task}"
        if key not in self._topic_of:  # of a task that is gone
            return
        known_ms, _ = self._stream.told.get(key, (NO_TIME, False))
        self._stream.told[key] = (max(known_ms, read.time_ms), read.ended)
        if offset < self._ends.get(topic, 0):
            self._old.add(key)
        else:
            self._old.discard(key)

    def waits(self, now: float) -> list[str]:
        """The topics whose old ends do not count yet, though their seconds have passed: ``look`` has to be called."""
        return [topic for topic in self._held() if self._old_ends[topic].is_due(now)]

    def look(self, topic: str, position: int, *, at_end: bool, end: int | None) -> None:
        """Takes up to which offset a topic is processed, whether that is all, and its end."""
        self._read_to[topic] = position
        ends = self._old_ends[topic]
        if at_end:
            ends.look_at(position)
        elif ends.asks_for_end:
            ends.look_at(end)

    def time_ms(self) -> int:
        """The stream time that the tasks before have reached; ``NO_TIME`` while one of them has not told its own."""
        if len(self._stream.told) < len(self._topic_of):
            return NO_TIME
        reading = self._reading()
        reached = min(reading) if reading else max(time_ms for time_ms, _ in self._stream.told.values())
        return min(reached, self.in_hand.all_ms)

    def limit_ms(self) -> int:
        """Up to which event time messages of other inputs count: that of the slowest task before that has input."""
        if self._is_one_silent():
            return NO_TIME
        return min((*self._reading(), self.in_hand.grouped_ms))

    def is_ended(self) -> bool:
        """Whether all tasks before have read their inputs to the ends."""
        return not self._is_one_silent() and not self._reading()

    def _held(self) -> list[str]:
        """The topics whose old ends do not count yet."""
        return [topic for topic, ends in self._old_ends.items() if not ends.count(self._read_to[topic])]

    def _is_one_silent(self) -> bool:
        """Whether a task has told nothing, and that does not count yet."""
        told, held = self._stream.told, self._held()
        return len(told) < len(self._topic_of) and any(
            key not in told and topic in held for key, topic in self._topic_of.items()
        )

    def _reading(self) -> list[int]:
        """The times of the tasks before that have input."""
        held = self._held()
        old = {key for key in self._old if self._topic_of[key] in held}
        return [time_ms for key, (time_ms, ended) in self._stream.told.items() if not ended or key in old]
