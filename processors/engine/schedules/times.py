"""The slots of a schedule: the times at which its function must run, in milliseconds since 1970 UTC.

``Every`` has slots at the multiples of its interval since 1970, so a restart moves no slot. ``Cron`` has the slots of a
cron expression in a time zone. When clocks change, slots follow the rules of Debian's cron, which the library
``cronsim`` implements:

    expression with a fixed hour       clocks go forward: a slot in the gap comes when the gap ends
                                       clocks go back: a slot in the repeated hour comes once
    expression with ``*`` as the hour  slots come by elapsed time: none in the gap, twice in the repeated hour

Invariants:
    - The times of slots increase strictly, and do not depend on the time at which they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.steps.durations import DurationInvalid, milliseconds
from holdfast.processors.engine.store_uses import Ms, Parts

#: The shortest interval in milliseconds. A slot fires with a commit, and a worker commits at most every 0.1 s.
INTERVAL_MIN_MS = 100
#: Stands for the next slot of a schedule that has no further slot: a time in the year 9999.
NEVER_MS = 253_402_300_799_000
#: Milliseconds before the given time at which the search for the latest slot begins. If the search finds no slot, it
#: begins 8 times as far back, and so on.
_LOOK_BACK_MS = 64_000


class ScheduleInvalid(BadConfiguration):
    """The declaration of a schedule has an invalid argument."""


class Times(Protocol):
    """Computes the slots of a schedule."""

    @property
    def parts(self) -> Parts:
        """Describes the slots as text parts. Durations are separate (``Ms``), so that a reader can format them."""

    def after(self, time_ms: int) -> int:
        """Returns the first slot after ``time_ms``; ``NEVER_MS`` if the schedule has no further slot."""

    def latest(self, after_ms: int, upto_ms: int) -> int | None:
        """Returns the last slot after ``after_ms`` and up to ``upto_ms``; None if there is none."""

    def count(self, after_ms: int, upto_ms: int, limit: int) -> int:
        """Returns the number of slots after ``after_ms`` and up to ``upto_ms``, counted up to ``limit``."""


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at the multiples of an interval since 1970-01-01 00:00 UTC."""

    interval_ms: int

    @staticmethod
    def of(interval: int | timedelta) -> Every:
        """Returns the slots of an interval, which is in milliseconds or a timedelta.

        Raises ScheduleInvalid if the interval is shorter than ``INTERVAL_MIN_MS``, or has another type.
        """
        try:
            return Every(milliseconds("interval", interval, least=INTERVAL_MIN_MS))
        except DurationInvalid as failure:
            raise ScheduleInvalid(
                f"`app.every` got the interval {interval!r}, expected a timedelta or whole milliseconds, "
                f"{INTERVAL_MIN_MS} or more: a slot fires with a commit, and a worker commits every 0.1 s at most.",
                action="Write, for example, `@app.every(timedelta(minutes=1))`.",
                seen=repr(interval)[:80],
            ) from failure

    @property
    def parts(self) -> Parts:
        """Describes the interval as text parts. Its duration is separate (``Ms``), so that a reader can format it."""
        return ("every ", Ms(self.interval_ms))

    def after(self, time_ms: int) -> int:
        """Returns the first slot after ``time_ms``."""
        return (time_ms // self.interval_ms + 1) * self.interval_ms

    def latest(self, after_ms: int, upto_ms: int) -> int | None:
        """Returns the last slot after ``after_ms`` and up to ``upto_ms``; None if there is none."""
        found = upto_ms // self.interval_ms * self.interval_ms
        return found if found > after_ms else None

    def count(self, after_ms: int, upto_ms: int, limit: int) -> int:
        """Returns the number of slots after ``after_ms`` and up to ``upto_ms``, counted up to ``limit``."""
        return max(0, min(limit, upto_ms // self.interval_ms - after_ms // self.interval_ms))


@dataclass(frozen=True, slots=True)
class Cron:
    """The slots of a cron expression with five fields, or six with the seconds first, in a time zone."""

    expression: str
    zone: str = "UTC"

    @staticmethod
    def of(expression: Any, zone: Any = "UTC") -> Cron:
        """Returns the slots of an expression in the time zone of this name.

        Raises:
            ScheduleInvalid: The expression does not parse or has no slot, or the time zone is unknown.
        """
        made = Cron(expression, zone)
        if not isinstance(expression, str):
            raise _no_cron(expression, f"it is of type {type(expression).__name__}")
        if not isinstance(zone, str):
            raise _no_zone(zone, f"it is of type {type(zone).__name__}")
        try:
            made._tzinfo()
        except (LookupError, ValueError, OSError) as failure:
            raise _no_zone(zone, str(failure)) from failure
        try:
            first = made.after(int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000))
        except (CronSimError, ValueError, OverflowError) as failure:
            raise _no_cron(expression, str(failure)) from failure
        if first == NEVER_MS:
            raise _no_cron(expression, "it has no slot within 50 years")
        return made

    @property
    def parts(self) -> Parts:
        """Describes the cron expression and its time zone as text parts."""
        return (f"cron {self.expression} ({self.zone})",)

    def after(self, time_ms: int) -> int:
        """Returns the first slot after ``time_ms``; ``NEVER_MS`` if the expression has no further slot."""
        return next(self._slots(time_ms), NEVER_MS)

    def latest(self, after_ms: int, upto_ms: int) -> int | None:
        """Returns the last slot after ``after_ms`` and up to ``upto_ms``; None if there is none."""
        back_ms = _LOOK_BACK_MS
        while True:
            begin, found = max(after_ms, upto_ms - back_ms), None
            for slot in self._slots(begin):
                if slot > upto_ms:
                    break
                found = slot
            if found is not None or begin == after_ms or upto_ms <= after_ms:
                return found
            back_ms *= 8

    def count(self, after_ms: int, upto_ms: int, limit: int) -> int:
        """Returns the number of slots after ``after_ms`` and up to ``upto_ms``, counted up to ``limit``."""
        found = 0
        for slot in islice(self._slots(after_ms), limit):
            if slot > upto_ms:
                break
            found += 1
        return found

    def _slots(self, after_ms: int) -> Iterator[int]:
        begin = datetime.fromtimestamp(after_ms // 1000, UTC).astimezone(self._tzinfo())
        for found in CronSim(self.expression, begin):
            slot = round(found.timestamp() * 1000)
            # When clocks go back, one hour occurs twice. In its second pass, the library may return a slot of the first
            # pass again.
            if slot > after_ms:
                after_ms = slot
                yield slot

    def _tzinfo(self) -> tzinfo:
        return UTC if self.zone == "UTC" else ZoneInfo(self.zone)


def _no_cron(expression: Any, why: str) -> ScheduleInvalid:
    return ScheduleInvalid(
        f"`app.cron` got {expression!r}, which is no cron expression: {why}. Expected five fields: minute, hour, day "
        "of the month, month, day of the week; or six, with the second first.",
        action="Write, for example, `@app.cron('0 3 * * *')` for 03:00 each day.",
        seen=repr(expression)[:80],
    )


def _no_zone(zone: Any, why: str) -> ScheduleInvalid:
    return ScheduleInvalid(
        f"`app.cron` got the time zone {zone!r}, which is not known here: {why}.",
        action="Write a name of the IANA database, such as `timezone='Europe/Berlin'`. On a machine without it, "
        "install the package `tzdata`.",
        seen=repr(zone)[:80],
    )
