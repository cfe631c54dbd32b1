"""Counts messages of a task that were not processed normally: late, dead-lettered, skipped, or in a wrong partition.

    commit ──► counts in the metadata of the task's offsets ──► the next owner, or the same worker after a restart

Invariants:
    - The committed counts contain only committed messages. A message that is processed again after an abort is counted
      once.
    - Normally processed messages are not counted. If all counts are 0, they are not stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

# Only for type hints. A client of a worker decodes counts with this module, and should not load the engine for that.
if TYPE_CHECKING:
    from holdfast.processors.engine.runtime.reading.interleaved import Run
    from holdfast.processors.engine.runtime.reading.misplaced_keys import KeyPlaces, Misplaced
    from holdfast.processors.engine.runtime.task.failed_message import FailedMessage

#: Maximum characters of ``Newest.reason``, so that the metadata of the offsets stays small.
REASON_MAX = 160
#: The rate ``per_minute`` is the average over this many minutes.
RATE_MINUTES = 10


class Newest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest counted message. ``kind`` is the name of its count in ``Counts``, ``at`` is seconds since 1970.

    ``topic`` is the input of a misplaced message (a message in a wrong partition); otherwise it is empty.
    """

    kind: str
    reason: str
    at: float
    topic: str = ""


class Counts(msgspec.Struct, frozen=True):
    """Counts since a task's first message: ``late`` messages, dead letters (``put_aside``), and ``skipped`` messages.

    A message that is late for several windows is counted once for each window. A ``misplaced`` message is in a
    partition to which its key does not belong. So it can't be joined with the messages of its key that are in the
    correct partition.
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
    """Returns the sum of the counts of several tasks, with their newest counted message."""
    found = list(counts)
    newest = max((each.newest for each in found if each.newest is not None), key=lambda each: each.at, default=None)
    late, put_aside = sum(each.late for each in found), sum(each.put_aside for each in found)
    skipped, misplaced = sum(each.skipped for each in found), sum(each.misplaced for each in found)
    return Counts(late, put_aside, skipped, newest, misplaced)


class Counting(Protocol):
    """An object that counts the late messages of each store since the task was opened. A count never decreases."""

    @property
    def late(self) -> Mapping[str, int]:
        """Maps each store to its number of late messages."""


class Arrivals:
    """The counts of one task, including messages that are processed but not committed."""

    def __init__(self) -> None:
        self._put_aside = self._skipped = 0
        #: The number of late messages before the task was opened. ``_time`` counts the later ones.
        self._late = 0
        self._time: Counting | None = None
        self._now_ms: Callable[[], int] = lambda: 0
        self._newest: Newest | None = None
        self._places: KeyPlaces | None = None
        #: This number plus the count of ``_places`` is the number of misplaced messages. The count starts at 0 when the
        #: task is opened, and never decreases. After an abort, this number may therefore be negative.
        self._misplaced = 0
        #: The counts at the last commit.
        self._kept = NONE
        #: Pairs for the last ``RATE_MINUTES`` minutes: the minute since 1970, and the total of the counts at its start.
        self._before: tuple[tuple[int, int], ...] = ()

    def recall(self, counts: Counts) -> None:
        """Continues from ``counts``, which the task's last owner has committed. Must be called before ``begin``."""
        self._kept = counts
        self.restore()

    def begin(self, time: Counting | None, now_ms: Callable[[], int]) -> None:
        """Must be called when the task starts.

        ``time`` counts late messages, ``now_ms`` returns milliseconds since 1970.
        """
        self._time, self._now_ms = time, now_ms

    def judge_places(self, places: KeyPlaces | None) -> None:
        """Sets the object that counts misplaced messages (in a wrong partition); None to stop counting them."""
        self._places = places

    def saw_run(self, run: Run, positions: Mapping[str, int]) -> None:
        """Collects the keys of processed records, to count misplaced ones. Call it for each run.

        A run is consecutive records of one input. ``positions`` has the next offset to process. Records of the run at
        or after this offset are left out.
        """
        if self._places is not None:
            topic = run.batch.partition.topic
            reached = bisect_left(run.batch.offsets, positions[topic], run.first, run.last)
            self.saw(topic, run.batch.keys, run.first, reached)

    def saw(self, topic: str, keys: list[bytes | None], first: int, last: int) -> None:
        """Collects the keys of processed messages, to count misplaced ones: ``keys[first:last]``."""
        if self._places is not None:
            self._places.saw(topic, keys[first:last])

    def failed(self, failed: FailedMessage, *, put_aside: bool) -> None:
        """Count a failed message as a dead letter (``put_aside``) or as a skipped message."""
        self._put_aside += put_aside
        self._skipped += not put_aside
        topic, number = failed.partition
        reason = f"{type(failed.error).__name__} at {topic}[{number}] offset {failed.offset}"
        self._newest = Newest("put_aside" if put_aside else "skipped", reason[:REASON_MAX], self._now_ms() / 1000)

    def counts(self) -> Counts:
        """Returns the current counts, including uncommitted messages."""
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
        """Stores ``counts`` as the committed counts. Must be called after the commit that contains them."""
        if counts.total != self._kept.total:
            minute = self._now_ms() // 60_000
            before = tuple(each for each in self._before if each[0] > minute - RATE_MINUTES)
            if not before or before[-1][0] != minute:
                before = (*before, (minute, self._kept.total))
            self._before = before
        self._kept = counts

    def restore(self) -> None:
        """Resets the counts to the last commit. Must be called after an aborted transaction."""
        kept = self._kept
        self._put_aside, self._skipped, self._newest = kept.put_aside, kept.skipped, kept.newest
        self._late = kept.late - (0 if self._time is None else sum(self._time.late.values()))
        if self._places is not None:
            self._places.forget()
        self._misplaced = kept.misplaced - (0 if self._places is None else self._places.count)

    @property
    def per_minute(self) -> float:
        """Number of counted messages per minute, averaged over the last ``RATE_MINUTES`` minutes."""
        first = self._now_ms() // 60_000 - RATE_MINUTES
        before = [total for minute, total in self._before if minute > first]
        return (self._kept.total - before[0]) / RATE_MINUTES if before else 0.0


def _place_of(found: Misplaced) -> str:
    key = repr(found.key[:40])[1:]
    return f"key {key} at {found.topic}[{found.partition}], but {found.partitioner} puts it into {found.belongs}"
