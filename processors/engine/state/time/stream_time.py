"""Event times, and the stream time of a task: the largest event time that it has processed and the world has reached.

    event times   ──┬───┬──┬────────┬──────────────┬────────► ms since 1970
                    10  20 23       now            40
                           ▲                       └ ahead: it waits until the worker's clock is there
                           └ stream time

Invariants:
    - Stream time never decreases, except that a command or a restore sets it with the offsets.
    - Stream time is never beyond the worker's clock. One message that is dated ahead moves nothing before its time.
    - Nor is it beyond the slowest task before a repartition topic of the task, while that has input.
    - It changes between messages, not within one: a message that fails leaves it as it was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from holdfast.infra.errors import HoldfastError

#: No event time yet, in milliseconds: less than every event time.
NO_TIME = -1
#: Event times are below this, in milliseconds: keys of windows have 15 digits for a time.
EVENT_TIME_END_MS = 10**15
#: Maximum number of remembered event times ahead of the clock. If there are more, every second time is dropped; the
#: next time then stands for both.
AHEAD_KEPT = 64
#: Default maximum by which the time of a message may be ahead of the worker's clock, in milliseconds.
MAX_AHEAD_MS = 3_600_000
#: As seconds, these numbers are times from 2001 to 2100; as milliseconds, times in January or February 1970.
SECONDS_BEGIN, SECONDS_END = 1_000_000_000, 4_102_444_800

#: Units of time, how many are a second, and how they become milliseconds.
_UNITS = (
    ("seconds", 1, "int(time * 1000)"),
    ("milliseconds", 10**3, "int(time)"),
    ("microseconds", 10**6, "time // 1_000"),
    ("nanoseconds", 10**9, "time // 1_000_000"),
)

_log = structlog.get_logger("runtime.time")
#: The functions that a warning of seconds was logged for.
_told_of_seconds: set[str] = set()


class EventTimeInvalid(HoldfastError):
    """A message has no event time, or a function returned a value that is not in milliseconds since 1970."""


class EventTimeAhead(HoldfastError):
    """A message is dated further ahead of the worker's clock than its topic allows."""


_NOTHING: Mapping[str, Sequence[Any]] = {}


class Remembered(NamedTuple):
    """A stream time in stored form: the time, the waiting times ahead, and the watermarks of other tasks.

    ``settled_ms`` is the time up to which all timers have fired; None for ``time_ms``.
    """

    time_ms: int = NO_TIME
    ahead: Sequence[int] = ()
    told: Mapping[str, Sequence[Any]] = _NOTHING
    settled_ms: int | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any] | None) -> Remembered:
        """Reads the form that ``StreamTime.record`` wrote; None for nothing."""
        if record is None:
            return cls()
        return cls(record["time"], record["ahead"], record.get("told", _NOTHING), record.get("settled"))


class StreamTime:
    """The stream time of one task; ``time_ms`` is read for each message, so it is a plain attribute."""

    __slots__ = ("_ahead", "_limit_ms", "call_ms", "cap_ms", "reach_ms", "settled_ms", "time_ms", "told")

    def __init__(self) -> None:
        #: The stream time in milliseconds; ``NO_TIME`` before the first message.
        self.time_ms = NO_TIME
        #: The time by which values and windows end if it is not the stream time: during the call of a timer, and during
        #: a commit the time of the fired timers. Else None.
        self.call_ms: int | None = None
        #: The stream time up to which all timers have fired; no bound in a task without timers.
        self.settled_ms = EVENT_TIME_END_MS
        #: The worker's clock at the last ``look``, in milliseconds.
        self.cap_ms = NO_TIME
        #: The smallest time of the upstream tasks of repartition topics; their next message may be that old.
        self._limit_ms = EVENT_TIME_END_MS
        #: Event times up to this one count at once, in milliseconds; later times wait.
        self.reach_ms = NO_TIME
        self._ahead: list[int] = []
        #: The watermarks of upstream tasks, by topic and task: their time, and whether they have read all input.
        self.told: dict[str, tuple[int, bool]] = {}

    @property
    def known(self) -> bool:
        """Whether there is a time to store."""
        return self.time_ms != NO_TIME or bool(self._ahead) or bool(self.told)

    def record(self) -> dict[str, Any]:
        """The stored form of the stream time."""
        told = {"told": {key: list(told) for key, told in self.told.items()}} if self.told else {}
        settled = {"settled": self.settled_ms} if self.settled_ms < self.time_ms else {}
        return {"time": self.time_ms, "ahead": list(self._ahead), **told, **settled}

    @property
    def ahead(self) -> Sequence[int]:
        """Event times that wait for the world to reach them, in milliseconds, ascending."""
        return tuple(self._ahead)

    def ahead_is_due(self, now_ms: int) -> bool:
        """Whether the worker's clock, at this time, has reached a waiting event time."""
        return bool(self._ahead) and self._ahead[0] <= min(now_ms, self._limit_ms)

    @property
    def come_ms(self) -> int:
        """The newest event time of a message that the worker's clock has reached; stream time may be behind it."""
        reached = bisect_right(self._ahead, self.cap_ms)
        return max(self.time_ms, self._ahead[reached - 1]) if reached else self.time_ms

    def set(self, time_ms: int, ahead: Sequence[int] = (), told: Mapping[str, Sequence[Any]] = _NOTHING) -> None:
        """Sets the time to one that was committed; ``NO_TIME`` for none."""
        self.time_ms, self._ahead, self.call_ms = time_ms, sorted(ahead), None
        self.told = {key: (int(of_ms), bool(ended)) for key, (of_ms, ended) in told.items()}

    @property
    def ends_ms(self) -> int:
        """Values and windows whose end is up to this time are over.

        The stream time, or the time of the called timer.
        """
        return self.time_ms if self.call_ms is None else self.call_ms

    def begin_call(self, timer_ms: int | None) -> None:
        """During a timer's call and its later steps, values and windows end by the timer's time; None stops that.

        Entries that had ended before the message that made the timer due are over, because they may be deleted already.
        The same is true for entries that had ended at the time of an earlier timer: a timer that is set in the past
        does not bring them back.
        """
        if timer_ms is None:
            self.call_ms = None
        else:
            self.call_ms = self.settled_ms = min(max(timer_ms, self.settled_ms), self.time_ms)

    def look(self, now_ms: int) -> None:
        """Reads the worker's clock: event times that it has reached count now."""
        self.cap_ms, self.reach_ms = now_ms, min(now_ms, self._limit_ms)
        if self._ahead and self._ahead[0] <= self.reach_ms:
            reached = bisect_right(self._ahead, self.reach_ms)
            self.time_ms = max(self.time_ms, self._ahead[reached - 1])
            del self._ahead[:reached]

    def let_go_to(self, limit_ms: int) -> None:
        """Limits stream time to ``limit_ms``, the time of the slowest upstream task of repartition topics."""
        if limit_ms != self._limit_ms:
            self._limit_ms = limit_ms
            self.look(self.cap_ms)

    def after(self, time_ms: int) -> int:
        """Stream time directly after a message of this time, in milliseconds.

        A time beyond ``reach_ms`` moves nothing.

        During a timer's call, the timer's time.
        """
        if self.call_ms is not None:
            return self.call_ms
        return time_ms if self.time_ms < time_ms <= self.reach_ms else self.time_ms

    def latest_ms(self, max_ahead_ms: int) -> int:
        """The latest event time that a message may have, in milliseconds."""
        return min(self.cap_ms + max_ahead_ms, EVENT_TIME_END_MS - 1)

    def advance(self, time_ms: int) -> None:
        """Applies the event time of a processed message."""
        if time_ms <= self.time_ms:
            return
        if time_ms <= self.reach_ms:
            self.time_ms = time_ms
            return
        at = bisect_left(self._ahead, time_ms)
        if self._ahead[at : at + 1] != [time_ms]:
            self._ahead.insert(at, time_ms)
            if len(self._ahead) > AHEAD_KEPT:
                del self._ahead[-2::-2]

    def go_on(self, time_ms: int) -> None:
        """Applies time that passed without messages, here and in upstream tasks; not beyond the worker's clock."""
        if self.time_ms != NO_TIME:
            self.time_ms = max(self.time_ms, min(time_ms, self.cap_ms))

    def check(self, time_ms: int, max_ahead_ms: int) -> None:
        """Refuses an event time that no window can use.

        Raises:
            EventTimeInvalid: The message has no time.
            EventTimeAhead: The time is more than ``max_ahead_ms`` ahead of the worker's clock.
        """
        if time_ms < 0 or time_ms >= EVENT_TIME_END_MS:
            raise time_invalid(time_ms)
        if time_ms > self.cap_ms + max_ahead_ms:
            raise EventTimeAhead(
                f"The message's event time is {shown(time_ms)}, {(time_ms - self.cap_ms) / 1000:,.0f} s ahead of this "
                f"worker's clock; `max_ahead` allows {max_ahead_ms / 1000:,.0f} s.",
                action="Compare the clocks of the producer and of this worker, and correct the wrong one; or raise "
                "`max_ahead` of the topic. Set `dead_letter_topic` to put such messages aside.",
                seen=time_ms,
                expected=self.cap_ms + max_ahead_ms,
            )


def time_invalid(time_ms: int) -> EventTimeInvalid:
    """The error for a message whose event time no window can use."""
    none = " (-1: the record has no timestamp)" if time_ms == -1 else ""
    return EventTimeInvalid(
        f"The message's event time is {time_ms} ms{none}, expected 0 to {EVENT_TIME_END_MS - 1} ms since 1970.",
        action="Correct the producer's timestamps, or read the time from the value with `timestamp_extractor`.",
        seen=time_ms,
    )


def event_time(made: object, function: object) -> int:
    """The event time that a user's function returned.

    A value that looks like seconds instead of milliseconds is logged once for each function: otherwise windows and TTLs
    would treat it as early 1970.

    Raises:
        EventTimeInvalid: The value is no whole number of milliseconds since 1970.
    """
    if type(made) is int and SECONDS_END <= made < EVENT_TIME_END_MS:  # the fast way of all present times
        return made
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if type(made) is int and 0 <= made < EVENT_TIME_END_MS:
        if made >= SECONDS_BEGIN and name not in _told_of_seconds:
            _told_of_seconds.add(name)
            _log.warning(
                "event times are seconds, perhaps; expected milliseconds",
                function=name,
                returned=made,
                means=shown(made),
                as_seconds=shown(made * 1000),
                what_to_do=f"let {name} return milliseconds, as `int(seconds * 1000)`; times of early 1970 are taken",
            )
        return made
    raise EventTimeInvalid(
        f"Function {name} returned the event time {repr(made)[:100]}, expected whole milliseconds since 1970, from 0 "
        f"to {EVENT_TIME_END_MS - 1}.",
        action=f"Let {name} return an int{_conversion(made)}.",
        seen=repr(made)[:100],
    )


def _conversion(made: object) -> str:
    """How to convert a function's result to milliseconds, by the unit in which it is a time from 2001 to 2100."""
    if isinstance(made, datetime):
        return ": `int(time.timestamp() * 1000)`"
    if isinstance(made, (int, float)) and SECONDS_BEGIN <= abs(made) < SECONDS_END * 10**9:
        for unit, in_second, written in _UNITS:
            if SECONDS_BEGIN <= made / in_second < SECONDS_END:
                return f" of milliseconds: it is a time of these years in {unit}, so `{written}`"
    return ", for example `int(value['time'] * 1000)` where the time is in seconds"


def shown(time_ms: int) -> str:
    """An event time as text in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
