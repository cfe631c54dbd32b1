"""The slots (scheduled times) of intervals and cron expressions, also at clock changes.

Wrong arguments are refused when the schedule is declared.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.processors.engine.schedules.times import Cron, Every, ScheduleInvalid, Times

BERLIN, DAY_MS = "Europe/Berlin", 86_400_000
ZONES = (BERLIN, "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC", "Asia/Kolkata", "Asia/Beirut")
EXPRESSIONS = (
    *("30 2 * * *", "0 3 * * *", "*/30 * * * *", "0 * * * *", "15 2 * * 0", "0 0 1 * *", "*/20 2 * * *"),
    *("0 */2 * * *", "30 1,2 * * *", "10 30 2 * * *", "*/7 * * * *", "0 0 * * *", "30 0-3 * * *", "* 2 * * *"),
)


def ms(zone: str, *parts: int) -> int:
    return int(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type, misc]


def following(times: Times, begin: int, count: int, zone: str = "UTC") -> list[str]:
    found = []
    for _ in range(count):
        begin = times.after(begin)
        found.append(datetime.fromtimestamp(begin / 1000, ZoneInfo(zone)).isoformat()[5:])
    return found


def test_slots_of_an_interval_are_its_multiples() -> None:
    each = Every.of(timedelta(minutes=5))
    assert following(each, ms("UTC", 2026, 3, 1, 11, 58), 3) == [
        *("03-01T12:00:00+00:00", "03-01T12:05:00+00:00", "03-01T12:10:00+00:00")
    ]
    assert each.after(300_000) == 600_000  # the next slot (scheduled time) is always later than the given time
    assert Every.of(100).after(99) == 100


@pytest.mark.parametrize(
    ("expression", "begin", "slots"),
    [
        # The clock goes forward from 02:00 to 03:00. A schedule for 02:30 fires at the end of the gap.
        ("30 2 * * *", (2025, 3, 29, 12), ["03-30T03:00:00+02:00", "03-31T02:30:00+02:00"]),
        ("0 * * * *", (2025, 3, 30, 0, 30), ["03-30T01:00:00+01:00", "03-30T03:00:00+02:00"]),
        # The clock goes back from 03:00 to 02:00. A schedule for 02:30 fires once; an hourly schedule fires twice.
        ("30 2 * * *", (2025, 10, 25, 12), ["10-26T02:30:00+02:00", "10-27T02:30:00+01:00"]),
        ("0 * * * *", (2025, 10, 26, 1, 30), ["10-26T02:00:00+02:00", "10-26T02:00:00+01:00", "10-26T03:00:00+01:00"]),
        ("0 3 * * *", (2025, 10, 25, 12), ["10-26T03:00:00+01:00", "10-27T03:00:00+01:00"]),
    ],
)
def test_slots_where_clocks_change(expression: str, begin: tuple[int, ...], slots: list[str]) -> None:
    assert following(Cron.of(expression, BERLIN), ms(BERLIN, *begin), len(slots), BERLIN) == slots


def test_a_slot_of_the_repeated_hour_does_not_come_again() -> None:
    second_pass = datetime(2025, 10, 26, 2, 10, tzinfo=ZoneInfo(BERLIN), fold=1)
    found = Cron.of("30 2 * * *", BERLIN).after(int(second_pass.timestamp() * 1000))
    assert datetime.fromtimestamp(found / 1000, UTC) == datetime(2025, 10, 27, 1, 30, tzinfo=UTC)


def test_a_cron_expression_is_in_utc_by_default_and_may_have_seconds() -> None:
    assert following(Cron.of("0 3 * * *"), ms("UTC", 2026, 7, 1, 4), 1) == ["07-02T03:00:00+00:00"]
    assert following(Cron.of("*/20 * * * * *"), ms("UTC", 2026, 7, 1), 2) == [
        *("07-01T00:00:20+00:00", "07-01T00:00:40+00:00")
    ]


@pytest.mark.parametrize("seed", range(40))
def test_latest_and_count_are_those_of_the_slots_one_by_one(seed: int) -> None:
    random = Random(seed)
    zone, expression = random.choice(ZONES), random.choice(EXPRESSIONS)
    times: Times = Cron.of(expression, zone) if seed % 4 else Every.of(random.randrange(100, 3 * DAY_MS))
    # Start in a month in which many time zones change their clocks.
    begin = ms(zone, 2025, random.choice([3, 4, 9, 10, 11]), 1) + random.randrange(30 * DAY_MS)
    end, slots = begin + 4 * DAY_MS, []
    if isinstance(times, Every):
        end = begin + 200 * times.interval_ms
    while (at := times.after(slots[-1] if slots else begin)) <= end:
        slots.append(at)
    assert slots == sorted(set(slots))
    for _ in range(10):
        after, upto = sorted(random.randrange(begin, end) for _ in range(2))
        inside = [slot for slot in slots if after < slot <= upto]
        assert times.after(after) == next((slot for slot in slots if slot > after), times.after(after))
        assert times.latest(after, upto) == (inside[-1] if inside else None)
        assert times.count(after, upto, 10_000) == len(inside)
        assert times.count(after, upto, 3) == min(3, len(inside))


@pytest.mark.parametrize("given", [0, -5, 99, timedelta(0), timedelta(seconds=-1), 1.5, "1s", None, True, 10**15])
def test_an_interval_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ScheduleInvalid, match=re.escape(repr(given))) as refused:
        Every.of(given)
    assert "100 or more" in refused.value.message
    assert "@app.every(timedelta" in refused.value.action


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("* * * *", "Wrong number of fields"),
        ("61 * * * *", "Bad minute"),
        ("@daily", "Wrong number of fields"),
        ("* * * * MOO", "Bad day-of-week"),
        ("0 0 31 2 *", "Bad day-of-month"),
        ("", "Wrong number of fields"),
        (None, "it is of type NoneType"),
        (5, "it is of type int"),
    ],
)
def test_an_expression_that_does_not_parse_is_refused(expression: Any, why: str) -> None:
    with pytest.raises(ScheduleInvalid, match=why) as refused:
        Cron.of(expression)
    assert repr(expression) in refused.value.message
    assert "@app.cron('0 3 * * *')" in refused.value.action


@pytest.mark.parametrize("zone", ["Europe/Berln", "", None, "../../etc/passwd", "CEST\x00"])
def test_a_time_zone_that_is_not_known_is_refused(zone: Any) -> None:
    with pytest.raises(ScheduleInvalid, match="time zone") as refused:
        Cron.of("0 3 * * *", zone)
    assert "tzdata" in refused.value.action


def test_an_expression_without_a_slot_in_reach_is_refused() -> None:
    with pytest.raises(ScheduleInvalid):
        Cron.of("0 0 30 2 *")
    assert Cron("0 0 29 2 *").after(ms("UTC", 2026, 1, 1)) == ms("UTC", 2028, 2, 29)
