"""Counts messages of a task that did not arrive: late, set aside, skipped by the policy, or in the wrong partition.

    commit ──► counts in the note beside the task's offsets ──► its heir, or the same worker after a restart

Invariants:
    - Counts are of committed messages: work that is dropped is counted once, when it is done again.
    - Nothing is counted for a message that arrives; a task without such messages has no note of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from holdfast.processors.engine.runtime.reading.misplaced_keys import KeyPlaces, Misplaced
from holdfast.processors.engine.runtime.task.failed_message import FailedMessage

#: Maximum characters of the newest reason, so that a note stays small.
REASON_MAX = 160
#: Length of the time that the rate is of, minutes.
RATE_MINUTES = 10


class Newest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest message that did not arrive: ``kind`` is a field of ``Counts``; ``at`` is seconds since 1970.

    ``topic`` is the input of a misplaced message, otherwise empty.
    """

    kind: str
    reason: str
    at: float
    topic: str = ""


class Counts(msgspec.Struct, frozen=True):
    """Counts since the first message of a task; ``late`` counts windows and dropped messages.

    ``misplaced`` counts messages whose key belongs to another partition, so that it finds no match here.
    """

    late: int = 0
    put_aside: int = 0
    skipped: int = 0
    newest: Newest | None = None
    misplaced: int = 0

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return self.late + self.put_aside + self.skipped + self.misplaced


NONE = Counts()


def together(counts: Iterable[Counts]) -> Counts:
    """The sums of several tasks, and the newest of all."""
    found = list(counts)
    newest = max((each.newest for each in found if each.newest is not None), key=lambda each: each.at, default=None)
    late, put_aside = sum(each.late for each in found), sum(each.put_aside for each in found)
    skipped, misplaced = sum(each.skipped for each in found), sum(each.misplaced for each in found)
    return Counts(late, put_aside, skipped, newest, misplaced)


class Counting(Protocol):
    """A counter of late messages by store since the task was opened; it never falls."""

    @property
    def late(self) -> Mapping[str, int]:
        """Store -> its count of late messages."""


class Arrivals:
    """The counts of one task."""

    def __init__(self) -> None:
        self._put_aside = self._skipped = 0
        #: An offset to the late messages that ``_time`` counts.
        self._late = 0
        self._time: Counting | None = None
        self._now_ms: Callable[[], int] = lambda: 0
        self._newest: Newest | None = None
        self._places: KeyPlaces | None = None
        #: An offset to the misplaced messages that ``_places`` counts.
        self._misplaced = 0
        #: At the last commit.
        self._kept = NONE
        #: For the last minutes: minute since 1970 -> the total at its begin.
        self._before: tuple[tuple[int, int], ...] = ()

    def recall(self, counts: Counts) -> None:
        """Continue from the counts of a former owner, before ``begin``."""
        self._kept = counts
        self.restore()

    def begin(self, time: Counting | None, now_ms: Callable[[], int]) -> None:
        """Start counting with the windows and the clock of a starting task."""
        self._time, self._now_ms = time, now_ms

    def judge_places(self, places: KeyPlaces | None) -> None:
        """Count misplaced messages from now on; None counts none."""
        self._places = places

    @property
    def judges_places(self) -> bool:
        """Whether keys are judged (``saw``)."""
        return self._places is not None

    def saw(self, topic: str, keys: list[bytes | None], first: int, last: int) -> None:
        """Note the keys of processed messages, ``first`` to ``last`` - 1 of ``keys``."""
        if self._places is not None:
            self._places.saw(topic, keys[first:last])

    def failed(self, failed: FailedMessage, *, put_aside: bool) -> None:
        """Count a message that the failure policy set aside or skipped."""
        self._put_aside += put_aside
        self._skipped += not put_aside
        topic, number = failed.partition
        reason = f"{type(failed.error).__name__} at {topic}[{number}] offset {failed.offset}"
        self._newest = Newest("put_aside" if put_aside else "skipped", reason[:REASON_MAX], self._now_ms() / 1000)

    def counts(self) -> Counts:
        """The counts with uncommitted work."""
        late = {} if self._time is None else self._time.late
        total = self._late + sum(late.values())
        if total > self._kept.late and self._newest == self._kept.newest:
            stores = ", ".join(sorted(store for store, count in late.items() if count))
            self._newest = Newest("late", f"too late for store {stores}"[:REASON_MAX], self._now_ms() / 1000)
        misplaced = self._misplaced_now()
        return Counts(total, self._put_aside, self._skipped, self._newest, misplaced)

    def _misplaced_now(self) -> int:
        if self._places is None:
            return self._misplaced
        self._places.judge()
        count, newest = self._misplaced + self._places.count, self._places.newest
        if newest is not None and count > self._kept.misplaced and self._newest == self._kept.newest:
            self._newest = Newest("misplaced", _place_of(newest)[:REASON_MAX], self._now_ms() / 1000, newest.topic)
        return count

    def committed(self, counts: Counts) -> None:
        """Keep the counts of a commit."""
        if counts.total != self._kept.total:
            minute = self._now_ms() // 60_000
            before = tuple(each for each in self._before if each[0] > minute - RATE_MINUTES)
            if not before or before[-1][0] != minute:
                before = (*before, (minute, self._kept.total))
            self._before = before
        self._kept = counts

    def restore(self) -> None:
        """Go back to the last commit."""
        kept = self._kept
        self._put_aside, self._skipped, self._newest = kept.put_aside, kept.skipped, kept.newest
        self._late = kept.late - (0 if self._time is None else sum(self._time.late.values()))
        if self._places is not None:
            self._places.forget()
        self._misplaced = kept.misplaced - (0 if self._places is None else self._places.count)

    @property
    def per_minute(self) -> float:
        """Committed messages that did not arrive per minute, over the last ``RATE_MINUTES``."""
        first = self._now_ms() // 60_000 - RATE_MINUTES
        before = [total for minute, total in self._before if minute > first]
        return (self._kept.total - before[0]) / RATE_MINUTES if before else 0.0


def _place_of(found: Misplaced) -> str:
    key = repr(found.key[:40])[1:]
    return f"key {key} at {found.topic}[{found.partition}], but {found.partitioner} puts it into {found.belongs}"
