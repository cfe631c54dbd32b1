"""The watermarks of the upstream tasks of one repartition topic.

Also the time up to which each upstream task allows downstream progress.

    log of the topic    W(p0) 52 │ W(p1) at its end, 0.3 s │ W(p1) 0.6 s │ … │ W(p1) 1.7 s
                             └───────── was there before ──────┘                └─ p1 holds nothing up to 52

An upstream task that has input holds downstream tasks at the time of its watermark. An upstream task at the end of its
input holds them, too, because its next message may be on its way, for example when a burst reaches one partition before
the other. Messages that exist already are released when the task has been at its end for another ``IDLE_S``. The task's
own clock measures these seconds; the log gives the order.

Invariants:
    - Only watermarks of a living owner release messages. The task of a dead owner holds at its last time until an heir
      sends a watermark. A watermark from before a restart of the reader holds as well.
    - The owner reads the end for a watermark after it committed the watermark before. So messages that the log has
      before that one were there, however long the writing took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.state.time.stream_time import NO_TIME

#: Seconds for which a task must be at the end of its input before downstream tasks continue without it.
IDLE_S = 1.0
#: A task at the end of its input repeats its watermark after this time, in seconds.
REPEAT_S = 0.3
#: In a longer silence, the pause between two watermarks is this part of the silence, at most ``REPEAT_MOST_S`` seconds.
#: Otherwise a slow reader would process nothing but watermarks.
REPEAT_PART = 0.1
REPEAT_MOST_S = 0.5


class Watermark(msgspec.Struct, frozen=True):
    """The value of a watermark.

    Attributes:
        task: The name of the task.
        time_ms: The stream time of the task, in milliseconds.
        ended: Whether the task's inputs were read to their ends just now.
        idle_ms: How long the inputs have been at their ends, by the worker's clock. 0 from older versions: such an end
            releases nothing.
        stretch: The number of this silence, counted by the worker.
    """

    task: str
    time_ms: int
    ended: bool
    idle_ms: int = 0
    stretch: int = 0

    @classmethod
    def read(cls, value: bytes | None) -> Watermark | None:
        """The watermark in the value of a record without a key; None if the value is no watermark."""
        try:
            return msgspec.json.decode(value or b"", type=cls)
        except JSON_FAILURES:
            return None


@dataclass(slots=True)
class _Word:
    """The last watermark of a task, and the times that earlier watermarks of its silence will release later."""

    time_ms: int
    ended: bool = False
    stretch: int = 0
    idle_ms: int = 0
    heard_at: float = 0.0
    #: The event time up to which the task holds no message.
    free_ms: int = NO_TIME
    #: The newest event time that had arrived when the watermark was read.
    there_ms: int = NO_TIME
    #: For each earlier watermark of the silence: how long the task had been at its end, and the newest time before it.
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    #: The number of watermarks of this silence.
    said: int = 1

    @property
    def reached_ms(self) -> int:
        return max(self.time_ms, self.free_ms) if self.ended else self.time_ms

    def go_on(self, read: Watermark, there_ms: int) -> None:
        """Takes the next watermark of the silence."""
        self.said += 1
        self.waiting.append((read.idle_ms, self.there_ms))
        while self.waiting and self.waiting[0][0] <= read.idle_ms - IDLE_S * 1000:
            self.free_ms = max(self.free_ms, self.waiting.popleft()[1])
        self.idle_ms, self.there_ms = read.idle_ms, there_ms


class Before:
    """The watermarks of the upstream tasks of one repartition topic, for one downstream task.

    ``tasks`` are their names.
    """

    def __init__(self, tasks: frozenset[str]) -> None:
        self._tasks = tasks
        self._words: dict[str, _Word] = {}
        self._newest_ms = NO_TIME
        #: An end of the topic as Kafka reported it, and the newest time that had arrived by then.
        self._mark: tuple[int, int] | None = None

    def begin(self, told: Mapping[str, int]) -> None:
        """Starts from committed watermarks; each task holds at its time until it sends another watermark."""
        self._words = {task: _Word(time_ms) for task, time_ms in told.items() if task in self._tasks}
        self._newest_ms, self._mark = max(told.values(), default=NO_TIME), None

    def take(self, read: Watermark, now: float = 0.0) -> int | None:
        """Applies a watermark in the order of the log.

        Returns the task's time, or None for a task that no longer exists.
        """
        if read.task not in self._tasks:
            return None
        word = self._words.get(read.task)
        time_ms = read.time_ms if word is None else max(word.time_ms, read.time_ms)
        self._newest_ms = max(self._newest_ms, time_ms)
        if word is not None and word.ended and read.ended and self._goes_on(word, read):
            word.time_ms, word.heard_at = time_ms, now
            word.go_on(read, self._newest_ms)
        else:
            first = _Word(time_ms, read.ended, read.stretch, read.idle_ms, now, there_ms=self._newest_ms)
            self._words[read.task] = first
        return time_ms

    @staticmethod
    def _goes_on(word: _Word, read: Watermark) -> bool:
        return read.stretch == word.stretch and read.idle_ms > word.idle_ms

    def wants_end(self, newest_ms: int) -> bool:
        """Whether other inputs have messages up to ``newest_ms`` that no watermark releases yet."""
        return self._mark is None and newest_ms > self._newest_ms

    def mark(self, end: int, newest_ms: int) -> None:
        """Records the end of the topic while messages of other inputs up to ``newest_ms`` have arrived.

        Watermarks after the end release these messages. Watermarks before the end may be older than the messages.
        """
        self._mark = (end, newest_ms)

    def look(self, read_to: int) -> None:
        """Records the offset after the last watermark that was applied."""
        if self._mark is not None and read_to >= self._mark[0]:
            self._newest_ms, self._mark = max(self._newest_ms, self._mark[1]), None

    @property
    def newest_ms(self) -> int:
        """The newest time of all watermarks."""
        return max((word.time_ms for word in self._words.values()), default=NO_TIME)

    @property
    def times(self) -> dict[str, int]:
        """The time of the newest watermark, by task."""
        return {task: word.time_ms for task, word in self._words.items()}

    def reached_ms(self) -> int:
        """The time below which no new message arrives; ``NO_TIME`` until each task has sent a watermark."""
        if len(self._words) < len(self._tasks):
            return NO_TIME
        return min((word.reached_ms for word in self._words.values()), default=NO_TIME)

    @property
    def ended(self) -> bool:
        """Whether the last watermark of each task reports the end of its input."""
        return len(self._words) == len(self._tasks) and all(word.ended for word in self._words.values())

    @property
    def heard_at(self) -> float:
        """The oldest of the times when each task's last watermark was read, monotonic seconds.

        0 until each task has sent one.
        """
        if len(self._words) < len(self._tasks):
            return 0.0
        return min((word.heard_at for word in self._words.values()), default=0.0)

    @property
    def stretches(self) -> tuple[int, ...]:
        """The numbers of the silences of all tasks."""
        return tuple(self._words[task].stretch for task in sorted(self._words))

    @property
    def said(self) -> tuple[int, ...]:
        """By task, the number of watermarks of its present silence; 0 for a task that is not silent."""
        words = (self._words.get(task) for task in sorted(self._tasks))
        return tuple(word.said if word is not None and word.ended else 0 for word in words)

    def behind(self, time_ms: int) -> list[str]:
        """The tasks that hold messages of this time."""
        silent = sorted(self._tasks - self._words.keys())
        return silent + [task for task, word in sorted(self._words.items()) if word.reached_ms <= time_ms]
