"""The watermarks of one repartition topic, and the stream time that they allow in the task that reads the topic.

    log of the topic    W(p0) 52 │ W(p1) at its end, 0.3 s │ W(p1) 0.6 s │ … │ W(p1) 1.7 s
                        └ time 52 has arrived                                   └ 1.1 s later: time 52 is released

A *watermark* is a record with the stream time of an upstream task, which writes to the topic. The stream time of the
downstream task, which reads the topic, does not pass the watermark of the slowest upstream task. It also waits for an
upstream task that is at the end of its input, because a message may just be on its way to that task. For example, a
burst of messages may reach one partition before another. The wait ends when the upstream task has been at the end of
its input for ``IDLE_S`` more seconds. Event times that had already arrived downstream are then *released*: they no
longer wait for this task. The upstream task measures these seconds by its own clock; the topic's log gives the order of
events.

Invariants:
    - Only watermarks of a living worker release times. The task of a dead worker stays at its last time until its next
      owner sends a watermark. A watermark that the downstream task read before its restart releases no times either.
    - An upstream task checks its input's end only after the commit of its previous watermark. All records before that
      watermark in the log therefore existed at the time of the check, even if the write took long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.state.time.stream_time import NO_TIME

#: Seconds. After an upstream task has been at the end of its input this long, downstream tasks no longer wait for it.
IDLE_S = 1.0
#: Seconds after which a task that is at the end of its input repeats its watermark.
REPEAT_S = 0.3
#: In a long idle period, the interval between two watermarks is this fraction of the idle time so far, but at most
#: ``REPEAT_MOST_S`` seconds. With a short constant interval, a slow reader would read nothing but watermarks.
REPEAT_PART = 0.1
REPEAT_MOST_S = 0.5


class Watermark(msgspec.Struct, frozen=True):
    """The value of a watermark record.

    Attributes:
        task: The name of the upstream task that wrote the record.
        time_ms: The stream time of the task, in milliseconds.
        ended: Whether the task's inputs were read to their ends when the watermark was written.
        idle_ms: Duration for which the inputs have been at their ends, by the worker's clock. Older Holdfast versions
            wrote 0; downstream tasks then keep waiting for this task.
        stretch: The number of the current idle period. The worker counts the idle periods of a task.
    """

    task: str
    time_ms: int
    ended: bool
    idle_ms: int = 0
    stretch: int = 0

    @classmethod
    def read(cls, value: bytes | None) -> Watermark | None:
        """Decodes the value of a record without a key; None if the value is no watermark."""
        try:
            return msgspec.json.decode(value or b"", type=cls)
        except JSON_FAILURES:
            return None


@dataclass(slots=True)
class _Word:
    """The last watermark of one upstream task, and the event times that its next watermarks may release.

    If an event time is released, downstream tasks no longer wait for this task before they process it.
    """

    time_ms: int
    ended: bool = False
    stretch: int = 0
    idle_ms: int = 0
    heard_at: float = 0.0
    #: The event time up to which downstream tasks need not wait for this upstream task.
    free_ms: int = NO_TIME
    #: The largest event time that had arrived downstream when this watermark was read.
    there_ms: int = NO_TIME
    #: Pairs, one for each earlier watermark of the idle period: its ``idle_ms``, and the largest event time that had
    #: arrived downstream before it.
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    #: Number of watermarks in this idle period.
    said: int = 1

    @property
    def reached_ms(self) -> int:
        return max(self.time_ms, self.free_ms) if self.ended else self.time_ms

    def go_on(self, read: Watermark, there_ms: int) -> None:
        """Applies another watermark of the same idle period.

        ``there_ms`` is the largest event time that has arrived downstream by now.
        """
        self.said += 1
        self.waiting.append((read.idle_ms, self.there_ms))
        while self.waiting and self.waiting[0][0] <= read.idle_ms - IDLE_S * 1000:
            self.free_ms = max(self.free_ms, self.waiting.popleft()[1])
        self.idle_ms, self.there_ms = read.idle_ms, there_ms


class Before:
    """The watermarks of the upstream tasks of one repartition topic, as one downstream task has read them.

    ``tasks`` has the names of the upstream tasks.
    """

    def __init__(self, tasks: frozenset[str]) -> None:
        self._tasks = tasks
        self._words: dict[str, _Word] = {}
        self._newest_ms = NO_TIME
        #: The topic's end offset that was last passed to ``mark``, and the largest event time that had arrived by then.
        self._mark: tuple[int, int] | None = None

    def begin(self, told: Mapping[str, int]) -> None:
        """Starts from the committed watermark times, by task.

        These times are valid until the tasks send further watermarks.
        """
        self._words = {task: _Word(time_ms) for task, time_ms in told.items() if task in self._tasks}
        self._newest_ms, self._mark = max(told.values(), default=NO_TIME), None

    def take(self, read: Watermark, now: float = 0.0) -> int | None:
        """Applies the next watermark in the topic. ``now`` is monotonic seconds.

        Returns the time that the watermark's task has reached; None if that task no longer exists.
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
        """Whether the caller must now request the topic's end offset and pass it to ``mark``.

        ``newest_ms`` is the largest event time that has arrived in other inputs. The result is True if the next
        watermarks can't release this time yet (let downstream tasks process it).
        """
        return self._mark is None and newest_ms > self._newest_ms

    def mark(self, end: int, newest_ms: int) -> None:
        """Stores the topic's current end offset, and the largest event time that has arrived in other inputs.

        Only watermarks after this offset may release event times up to this time, because earlier watermarks may be
        older than the messages.
        """
        self._mark = (end, newest_ms)

    def look(self, read_to: int) -> None:
        """Completes the last ``mark`` if its offset is reached. Must be called after records were read.

        ``read_to`` is the next offset to read.
        """
        if self._mark is not None and read_to >= self._mark[0]:
            self._newest_ms, self._mark = max(self._newest_ms, self._mark[1]), None

    @property
    def newest_ms(self) -> int:
        """The largest time of the tasks' newest watermarks; ``NO_TIME`` without watermarks."""
        return max((word.time_ms for word in self._words.values()), default=NO_TIME)

    @property
    def times(self) -> dict[str, int]:
        """Maps each task to the time of its newest watermark."""
        return {task: word.time_ms for task, word in self._words.items()}

    def reached_ms(self) -> int:
        """The event time below which no further message can arrive; ``NO_TIME`` if a task has sent no watermark yet."""
        if len(self._words) < len(self._tasks):
            return NO_TIME
        return min((word.reached_ms for word in self._words.values()), default=NO_TIME)

    @property
    def ended(self) -> bool:
        """Whether the last watermark of each task says that its inputs are read to their ends."""
        return len(self._words) == len(self._tasks) and all(word.ended for word in self._words.values())

    @property
    def heard_at(self) -> float:
        """The earliest moment, in monotonic seconds, at which one of the tasks' last watermarks was read.

        The result is 0 until each task has sent a watermark.
        """
        if len(self._words) < len(self._tasks):
            return 0.0
        return min((word.heard_at for word in self._words.values()), default=0.0)

    @property
    def stretches(self) -> tuple[int, ...]:
        """The number of each task's current idle period, in the order of the tasks' names."""
        return tuple(self._words[task].stretch for task in sorted(self._words))

    @property
    def said(self) -> tuple[int, ...]:
        """The number of watermarks that each task has sent in its current idle period; 0 for a task that has input."""
        words = (self._words.get(task) for task in sorted(self._tasks))
        return tuple(word.said if word is not None and word.ended else 0 for word in words)

    def behind(self, time_ms: int) -> list[str]:
        """Returns the names of the tasks that may still send messages with event times up to ``time_ms``."""
        silent = sorted(self._tasks - self._words.keys())
        return silent + [task for task, word in sorted(self._words.items()) if word.reached_ms <= time_ms]
