"""Stream time: the largest event time of processed messages that the worker's clock has reached."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.processors.engine.state.time.stream_time import (
    AHEAD_KEPT,
    EVENT_TIME_END_MS,
    NO_TIME,
    EventTimeAhead,
    EventTimeInvalid,
    StreamTime,
    event_time,
)


def at(now_ms: int, *times: int) -> StreamTime:
    made = StreamTime()
    made.look(now_ms)
    for time_ms in times:
        made.advance(time_ms)
    return made


def test_it_is_the_largest_time_in_any_order() -> None:
    assert at(100).time_ms == NO_TIME
    assert at(100, 30, 70, 50).time_ms == 70


def test_one_message_ahead_of_the_clock_moves_nothing_until_the_clock_is_there() -> None:
    time = at(100, 50, 400, 60)
    assert (time.time_ms, time.ahead) == (60, (400,))
    time.look(399)
    assert time.time_ms == 60
    time.look(400)
    assert (time.time_ms, time.ahead) == (400, ())


def test_times_ahead_count_one_after_the_other() -> None:
    time = at(100, 300, 200, 200, 400)
    seen = []
    for now_ms in (150, 250, 350, 1_000):
        time.look(now_ms)
        seen.append(time.time_ms)
    assert seen == [NO_TIME, 200, 300, 400]


def test_of_many_times_ahead_the_farthest_is_kept_and_the_list_stays_short() -> None:
    time = at(0, *range(1_000, 0, -1), *range(1, 2_001))
    assert len(time.ahead) <= AHEAD_KEPT
    time.look(5_000)
    assert time.time_ms == 2_000


def test_a_clock_that_is_set_back_takes_nothing_back() -> None:
    time = at(3_600_000, 3_000_000)
    time.look(0)
    time.advance(100)
    assert time.time_ms == 3_000_000


def test_a_restored_time_is_as_it_was_committed() -> None:
    former = at(100, 50, 400)
    time = StreamTime()
    time.set(former.time_ms, former.ahead)
    time.look(500)
    assert time.time_ms == 400


@pytest.mark.parametrize("seen", [-1, -5_000, EVENT_TIME_END_MS])
def test_a_message_without_a_time_is_refused(seen: int) -> None:
    with pytest.raises(EventTimeInvalid, match="expected 0 to"):
        at(100).check(seen, 10**16)


def test_a_time_far_ahead_is_refused_and_one_within_the_bound_is_not() -> None:
    at(1_000).check(4_600, 3_600)
    with pytest.raises(EventTimeAhead, match="4 s ahead of this worker's clock; `max_ahead` allows 4 s") as raised:
        at(1_000).check(4_601, 3_600)
    assert raised.value.fields["expected"] == 4_600


@pytest.mark.parametrize("made", [None, 1.5, "1", True, -1, EVENT_TIME_END_MS])
def test_a_function_must_return_whole_milliseconds(made: object) -> None:
    def from_the_value() -> None: ...

    with pytest.raises(EventTimeInvalid, match="from_the_value returned the event time"):
        event_time(made, from_the_value)
    assert event_time(0, from_the_value) == 0


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (1_764_000_000_000_000, "in microseconds, so `time // 1_000`"),
        (1_764_000_000_000_000_000, "in nanoseconds, so `time // 1_000_000`"),
        (1_764_000_000.5, "in seconds, so `int(time * 1000)`"),
        (1_764_000_000_000.5, "in milliseconds, so `int(time)`"),
        (datetime(2026, 1, 1, tzinfo=UTC), "`int(time.timestamp() * 1000)`"),
        ("2026-01-01", "where the time is in seconds"),
        (float("nan"), "where the time is in seconds"),
        (-(10**30), "where the time is in seconds"),
    ],
)
def test_a_time_in_another_unit_is_told_how_to_become_milliseconds(made: object, said: str) -> None:
    def from_the_value() -> None: ...

    with pytest.raises(EventTimeInvalid, match=r"expected whole milliseconds since 1970, from 0 to \d+") as raised:
        event_time(made, from_the_value)
    assert said in raised.value.action


def test_a_record_without_a_timestamp_is_told_as_such() -> None:
    with pytest.raises(EventTimeInvalid, match=r"is -1 ms \(-1: the record has no timestamp\), expected 0 to"):
        at(100).check(-1, 10**16)
