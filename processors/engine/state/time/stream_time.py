"""Event times, and the stream time of a task: its largest event time that is not after the worker's clock.

    event times   ──┬───┬──┬────────┬──────────────┬────────► ms since 1970
                    10  20 23       now            40
                           ▲                       └ ahead: ignored until the worker's clock reaches this time
                           └ stream time

Invariants:
    - Stream time never decreases, except when a command or a restore sets it together with the offsets.
    - Stream time is never after the worker's clock. A message with a future event time has no effect on stream time
      before the clock reaches that time.
    - If the task reads a repartition topic, stream time is never after the watermark of the slowest upstream task that
      still has input.
    - Stream time changes only between messages. A failed message does not change it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast.infra.errors import HoldfastError
from holdfast.infra.log import get_logger

#: Stands for "no event time yet". Less than every event time, which is in milliseconds since 1970.
NO_TIME = -1
#: Event times must be less than this number of milliseconds, because state keys have 15 digits for a time.
EVENT_TIME_END_MS = 10**15
#: Maximum number of future event times that are remembered. If there are more, every other one of them is dropped. For
#: a dropped time, stream time waits until the worker's clock reaches the next remembered time.
AHEAD_KEPT = 64
#: Default maximum by which a message's event time may be ahead of the worker's clock, in milliseconds.
MAX_AHEAD_MS = 3_600_000
#: Whole numbers in this range are probably seconds (2001 to 2100). As milliseconds, they would be times in early 1970.
SECONDS_BEGIN, SECONDS_END = 1_000_000_000, 4_102_444_800

#: Units of time, as triples: the name, how many of them are one second, and the Python expression that converts a value
#: to milliseconds.
_UNITS = (
    ("seconds", 1, "int(time * 1000)"),
    ("milliseconds", 10**3, "int(time)"),
    ("microseconds", 10**6, "time // 1_000"),
    ("nanoseconds", 10**9, "time // 1_000_000"),
)

_log = get_logger("runtime.time")
#: Names of the functions for which the warning about event times in seconds was already logged.
_told_of_seconds: set[str] = set()


class EventTimeInvalid(HoldfastError):
    """A message has no event time, or a function returned a value that is not in milliseconds since 1970."""


class EventTimeAhead(HoldfastError):
    """A message's event time is further ahead of the worker's clock than its topic's ``max_ahead`` allows."""


_NOTHING: Mapping[str, Sequence[Any]] = {}


class Remembered(NamedTuple):
    """A stream time as it was stored: the time, future event times, and the watermarks of upstream tasks.

    ``settled_ms`` is the stream time up to which all timers have fired; None means the same as ``time_ms``.
    """

    time_ms: int = NO_TIME
    ahead: Sequence[int] = ()
    told: Mapping[str, Sequence[Any]] = _NOTHING
    settled_ms: int | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any] | None) -> Remembered:
        """Parses what ``StreamTime.record`` returned. For None, returns an object without times."""
        if record is None:
            return cls()
        return cls(record["time"], record["ahead"], record.get("told", _NOTHING), record.get("settled"))


class StreamTime:
    """The stream time of one task. ``time_ms`` is a plain attribute, because it is read for each message."""

    __slots__ = ("_ahead", "_limit_ms", "call_ms", "cap_ms", "reach_ms", "settled_ms", "time_ms", "told")

    def __init__(self) -> None:
        #: The stream time in milliseconds; ``NO_TIME`` before the first message.
        self.time_ms = NO_TIME
        #: During a timer's call, the timer's time: it decides which values and windows have ended. During a commit, the
        #: time of the fired timers. None at other times, when stream time decides.
        self.call_ms: int | None = None
        #: The stream time up to which all timers have fired. In a task without timers: ``EVENT_TIME_END_MS``.
        self.settled_ms = EVENT_TIME_END_MS
        #: The time of the worker's clock, in milliseconds, at the last call of ``look``.
        self.cap_ms = NO_TIME
        #: Limit of stream time: the minimum watermark of the upstream tasks. A task's watermark is the minimum event
        #: time that its next messages can have.
        self._limit_ms = EVENT_TIME_END_MS
        #: Milliseconds. An event time up to this time advances stream time at once. A later event time is kept until
        #: the worker's clock reaches it.
        self.reach_ms = NO_TIME
        self._ahead: list[int] = []
        #: Maps each upstream task (topic and task) to its watermark, and to whether the task has read all of its input.
        self.told: dict[str, tuple[int, bool]] = {}

    @property
    def known(self) -> bool:
        """Whether this object has anything to store: a stream time, a future event time, or a watermark."""
        return self.time_ms != NO_TIME or bool(self._ahead) or bool(self.told)

    def record(self) -> dict[str, Any]:
        """Returns the stored form of the stream time, which ``Remembered.of`` parses."""
        told = {"told": {key: list(told) for key, told in self.told.items()}} if self.told else {}
        settled = {"settled": self.settled_ms} if self.settled_ms < self.time_ms else {}
        return {"time": self.time_ms, "ahead": list(self._ahead), **told, **settled}

    @property
    def ahead(self) -> Sequence[int]:
        """Event times that the worker's clock has not reached yet, in milliseconds, ascending."""
        return tuple(self._ahead)

    def ahead_is_due(self, now_ms: int) -> bool:
        """Whether stream time can advance to a future event time, because the worker's clock shows ``now_ms``."""
        return bool(self._ahead) and self._ahead[0] <= min(now_ms, self._limit_ms)

    @property
    def come_ms(self) -> int:
        """The largest event time of all processed messages that is not after the worker's clock.

        Stream time may be earlier, because it is limited by the watermarks of the upstream tasks of repartition topics.
        """
        reached = bisect_right(self._ahead, self.cap_ms)
        return max(self.time_ms, self._ahead[reached - 1]) if reached else self.time_ms

    def set(self, time_ms: int, ahead: Sequence[int] = (), told: Mapping[str, Sequence[Any]] = _NOTHING) -> None:
        """Sets the stream time to a committed time, or to ``NO_TIME`` if no time was committed.

        ``ahead`` has future event times, and ``told`` has the watermarks of upstream tasks.
        """
        self.time_ms, self._ahead, self.call_ms = time_ms, sorted(ahead), None
        self.told = {key: (int(of_ms), bool(ended)) for key, (of_ms, ended) in told.items()}

    @property
    def ends_ms(self) -> int:
        """The time up to which values and windows have ended.

        The time is the stream time, or during a timer's call the timer's time.
        """
        return self.time_ms if self.call_ms is None else self.call_ms

    def begin_call(self, timer_ms: int | None) -> None:
        """Begins a timer's call. During the call, ``timer_ms`` decides which values and windows have ended.

        The argument None ends the call.

        A timer with a time in the past does not bring ended values back, because they may be deleted already. So the
        time of the call is at least ``settled_ms`` (until then, all timers have fired), and at most stream time.
        """
        if timer_ms is None:
            self.call_ms = None
        else:
            self.call_ms = self.settled_ms = min(max(timer_ms, self.settled_ms), self.time_ms)

    def look(self, now_ms: int) -> None:
        """Sets the time of the worker's clock.

        Future event times that the clock has reached then advance stream time.
        """
        self.cap_ms, self.reach_ms = now_ms, min(now_ms, self._limit_ms)
        if self._ahead and self._ahead[0] <= self.reach_ms:
            reached = bisect_right(self._ahead, self.reach_ms)
            self.time_ms = max(self.time_ms, self._ahead[reached - 1])
            del self._ahead[:reached]

    def let_go_to(self, limit_ms: int) -> None:
        """Limits stream time to ``limit_ms``, the minimum watermark of the tasks that write the repartition topics."""
        if limit_ms != self._limit_ms:
            self._limit_ms = limit_ms
            self.look(self.cap_ms)

    def after(self, time_ms: int) -> int:
        """Returns the stream time that would follow a message with event time ``time_ms``. Does not change it.

        An event time after ``reach_ms`` does not advance stream time. During a timer's call, returns the timer's time.
        """
        if self.call_ms is not None:
            return self.call_ms
        return time_ms if self.time_ms < time_ms <= self.reach_ms else self.time_ms

    def latest_ms(self, max_ahead_ms: int) -> int:
        """Returns the maximum event time of a message, in milliseconds: ``max_ahead_ms`` after the clock."""
        return min(self.cap_ms + max_ahead_ms, EVENT_TIME_END_MS - 1)

    def advance(self, time_ms: int) -> None:
        """Advances stream time by the event time of a processed message."""
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
        """Advances stream time without a message. Called while neither this task nor its upstream tasks get messages.

        Stream time advances to ``time_ms``, but at most to the worker's clock.
        """
        if self.time_ms != NO_TIME:
            self.time_ms = max(self.time_ms, min(time_ms, self.cap_ms))

    def check(self, time_ms: int, max_ahead_ms: int) -> None:
        """Raises an error for an event time that is out of range or too far in the future.

        Raises:
            EventTimeInvalid: The time is negative or too large; -1 means that the record has no timestamp.
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
    """Returns the error for a message whose event time is out of range."""
    none = " (-1: the record has no timestamp)" if time_ms == -1 else ""
    return EventTimeInvalid(
        f"The message's event time is {time_ms} ms{none}, expected 0 to {EVENT_TIME_END_MS - 1} ms since 1970.",
        action="Correct the producer's timestamps, or read the time from the value with `timestamp_extractor`.",
        seen=time_ms,
    )


def event_time(made: object, function: object) -> int:
    """Checks the event time that a user's function returned, and returns it.

    If a value seems to be in seconds, a warning is logged once for each function. The value is still taken as
    milliseconds, so it is a time in early 1970.

    Raises:
        EventTimeInvalid: The value is not a whole number of milliseconds since 1970.
    """
    # most values are current times in milliseconds, which need no further check
    if type(made) is int and SECONDS_END <= made < EVENT_TIME_END_MS:
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
    """Returns a hint for the error: how to convert the function's result to milliseconds.

    The unit is guessed: it is the unit in which the result is a time from 2001 to 2100.
    """
    if isinstance(made, datetime):
        return ": `int(time.timestamp() * 1000)`"
    if isinstance(made, (int, float)) and SECONDS_BEGIN <= abs(made) < SECONDS_END * 10**9:
        for unit, in_second, written in _UNITS:
            if SECONDS_BEGIN <= made / in_second < SECONDS_END:
                return f" of milliseconds: it is a time of these years in {unit}, so `{written}`"
    return ", for example `int(value['time'] * 1000)` where the time is in seconds"


def shown(time_ms: int) -> str:
    """Formats an event time as text in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
