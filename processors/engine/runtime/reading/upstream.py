"""What the tasks before one repartition topic have told, and up to which time each of them holds those behind it.

    log of the topic    W(p0) 52 │ W(p1) at its end, 0.3 s │ W(p1) 0.6 s │ … │ W(p1) 1.7 s
                             └───────── was there before ──────┘                └─ p1 holds nothing up to 52

A task that has input holds at the time that it told. One at the end of its input holds, too: its next message may be on
its way, as with a burst that comes to one partition before the other. So what was there is let go when the task has
been at its end for ``IDLE_S`` more. The seconds are those of the task's own clock; the order is that of the log.

Invariants:
    - Only words of a living owner let go. A dead one says nothing, so its task holds at its last time until an heir
      tells its own. What a task told before a restart of the reader holds as well.
    - The owner reads the end for a word after it committed the word before: what stands before that one in the log
      was there, however long the word took to be written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.infra.json_file import JSON_FAILURES
from holdfast.processors.engine.state.time.stream_time import NO_TIME

#: Seconds for which a task has to be at the end of its input before those behind it go on without it.
IDLE_S = 1.0
#: A task at the end of its input says so in turns of so many seconds.
REPEAT_S = 0.3
#: In a longer silence it says so more rarely: this part of the silence lies between two words, at most so many seconds.
#: Words that come as fast as a slow reader takes them would keep it from all else.
REPEAT_PART = 0.1
REPEAT_MOST_S = 0.5


class Watermark(msgspec.Struct, frozen=True):
    """The value of a watermark.

    Attributes:
        task: The name of the task.
        time_ms: How far it is in event time, in milliseconds.
        ended: Whether its inputs were read to their ends just now.
        idle_ms: For how long they have been, by the clock of its worker. 0 from versions that did not say it: such an
            end lets nothing go.
        stretch: The number of this silence, counted by the worker.
    """

    task: str
    time_ms: int
    ended: bool
    idle_ms: int = 0
    stretch: int = 0

    @classmethod
    def read(cls, value: bytes | None) -> Watermark | None:
        """What the value of a record without a key says; None if it is no watermark."""
        try:
            return msgspec.json.decode(value or b"", type=cls)
        except JSON_FAILURES:
            return None


@dataclass(slots=True)
class _Word:
    """The last word of a task; of one at its end, what its words before let go later."""

    time_ms: int
    ended: bool = False
    stretch: int = 0
    idle_ms: int = 0
    heard_at: float = 0.0
    #: Up to here it holds nothing.
    free_ms: int = NO_TIME
    #: The newest time when the word was heard.
    there_ms: int = NO_TIME
    #: How long it had been at its end, and the newest time that was there before.
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    #: How many words of this silence came.
    said: int = 1

    @property
    def reached_ms(self) -> int:
        return max(self.time_ms, self.free_ms) if self.ended else self.time_ms

    def go_on(self, read: Watermark, there_ms: int) -> None:
        """Takes the next word of a silence."""
        self.said += 1
        self.waiting.append((read.idle_ms, self.there_ms))
        while self.waiting and self.waiting[0][0] <= read.idle_ms - IDLE_S * 1000:
            self.free_ms = max(self.free_ms, self.waiting.popleft()[1])
        self.idle_ms, self.there_ms = read.idle_ms, there_ms


class Before:
    """The tasks before one repartition topic, as one task behind it hears them; ``tasks`` are their names."""

    def __init__(self, tasks: frozenset[str]) -> None:
        self._tasks = tasks
        self._words: dict[str, _Word] = {}
        self._newest_ms = NO_TIME
        #: An end of the topic that Kafka told, and the newest time that was there by then.
        self._mark: tuple[int, int] | None = None

    def begin(self, told: Mapping[str, int]) -> None:
        """Begins with the times that tasks told before; each holds there until it tells its own again."""
        self._words = {task: _Word(time_ms) for task, time_ms in told.items() if task in self._tasks}
        self._newest_ms, self._mark = max(told.values(), default=NO_TIME), None

    def take(self, read: Watermark, now: float = 0.0) -> int | None:
        """Takes a word in the order of the log; returns the task's time, or None for a task that is gone."""
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
        """Whether messages of other inputs, up to ``newest_ms``, are there that words don't let go yet."""
        return self._mark is None and newest_ms > self._newest_ms

    def mark(self, end: int, newest_ms: int) -> None:
        """Takes the end of the topic while messages of other inputs up to ``newest_ms`` are there.

        Words behind the end let them go. Those before it may be from before these messages.
        """
        self._mark = (end, newest_ms)

    def look(self, read_to: int) -> None:
        """Takes the offset behind the last word that was taken."""
        if self._mark is not None and read_to >= self._mark[0]:
            self._newest_ms, self._mark = max(self._newest_ms, self._mark[1]), None

    @property
    def newest_ms(self) -> int:
        """The newest time that a task has told."""
        return max((word.time_ms for word in self._words.values()), default=NO_TIME)

    @property
    def times(self) -> dict[str, int]:
        """By task, the time that it told."""
        return {task: word.time_ms for task, word in self._words.items()}

    def reached_ms(self) -> int:
        """The time below which no message comes that is not heard yet; ``NO_TIME`` while a task has told nothing."""
        if len(self._words) < len(self._tasks):
            return NO_TIME
        return min((word.reached_ms for word in self._words.values()), default=NO_TIME)

    @property
    def ended(self) -> bool:
        """Whether the last word of each task was that it is at its end."""
        return len(self._words) == len(self._tasks) and all(word.ended for word in self._words.values())

    @property
    def heard_at(self) -> float:
        """When the task was heard that was silent for longest; 0 while one has told nothing."""
        if len(self._words) < len(self._tasks):
            return 0.0
        return min((word.heard_at for word in self._words.values()), default=0.0)

    @property
    def stretches(self) -> tuple[int, ...]:
        """The numbers of the silences of all tasks."""
        return tuple(self._words[task].stretch for task in sorted(self._words))

    @property
    def said(self) -> tuple[int, ...]:
        """How many words came of the silences of all tasks; 0 for a task that is not silent, or has told nothing."""
        words = (self._words.get(task) for task in sorted(self._tasks))
        return tuple(word.said if word is not None and word.ended else 0 for word in words)

    def behind(self, time_ms: int) -> list[str]:
        """The tasks that hold messages of this time."""
        silent = sorted(self._tasks - self._words.keys())
        return silent + [task for task, word in sorted(self._words.items()) if word.reached_ms <= time_ms]
