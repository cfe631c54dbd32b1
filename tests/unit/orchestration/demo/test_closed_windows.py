"""The windows that the demo expects. Their end plus grace is before the last departure of their partition."""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.topics.partitioners import MURMUR2, PARTITIONERS
from holdfast.infra.sample_data.flights import Flight
from holdfast.orchestration.demo.closed_windows import (
    GAP_MS,
    HOUR_MS,
    Departures,
    closed_hours,
    closed_rotations,
    departure,
    hours,
    numbered,
    sessions,
)
from holdfast.orchestration.demo.lost_or_doubled import check_sequences

START = 1_380_531_600_000  # 2013-09-30T09:00:00Z
DAY_MS = 24 * HOUR_MS


def flight(minutes: int, delay: int | None = 0) -> Flight:
    hour, minute = divmod(minutes, 60)
    return {"time_hour": f"2013-09-30T{9 + hour:02}:00:00Z", "minute": minute, "dep_delay": delay}


def departures(**times: list[int]) -> Departures:
    """Departure times by key, given as milliseconds after ``START``."""
    return Departures({key: [START + time for time in each] for key, each in times.items()})


def test_departures_are_real_ones() -> None:
    found = Departures()
    for each in (flight(5), flight(20, 70), flight(30, None), flight(90, -3)):
        found.add("EWR", departure(each))
    assert found.times == {"EWR": [START + minutes * 60_000 for minutes in (5, 90, 87)]}


def test_hours_begin_with_the_hour_and_sessions_end_after_a_gap() -> None:
    assert hours([START, START + HOUR_MS - 1, START + 3 * HOUR_MS]) == [
        (START, START + HOUR_MS),
        (START + 3 * HOUR_MS, START + 4 * HOUR_MS),
    ]
    times = [START, START + GAP_MS, START + 2 * GAP_MS + 1]
    assert list(sessions(times)) == [(START, START + GAP_MS + 1), (times[2], times[2] + 1)]


def test_a_window_is_sent_when_the_stream_time_of_its_partition_is_there() -> None:
    one, other = PARTITIONERS[MURMUR2](b"EWR", 4), PARTITIONERS[MURMUR2](b"JFK", 4)
    assert one != other, "the keys have to be in two partitions"
    found = departures(EWR=[DAY_MS, 0, DAY_MS + HOUR_MS], JFK=[0])
    assert closed_hours(found, 4) == {"EWR": [START], "JFK": []}
    assert closed_hours(found, 1) == {"EWR": [START], "JFK": [START]}
    late = GAP_MS + DAY_MS + 1
    assert closed_rotations(departures(EWR=[0, late]), 4) == {"EWR": [START]}
    assert closed_rotations(departures(EWR=[0, late - 1]), 4) == {"EWR": []}


@pytest.mark.parametrize(
    ("sent", "lost", "doubled", "disordered", "unexpected"),
    [
        ([("a", 10), ("b", 5), ("a", 20)], 0, 0, 0, 0),
        ([("a", 10), ("b", 5)], 1, 0, 0, 0),
        ([("a", 10), ("b", 5), ("a", 20), ("a", 20)], 0, 1, 0, 0),
        ([("a", 20), ("b", 5), ("a", 10)], 0, 0, 1, 0),
        ([("a", 10), ("b", 5), ("a", 20), ("a", 30)], 0, 0, 1, 1),
        ([("a", 10), ("b", 5), ("a", 20), ("c", 5)], 0, 0, 0, 1),
    ],
)
def test_windows_are_checked_as_updates_are(
    sent: list[tuple[str, int]], lost: int, doubled: int, disordered: int, unexpected: int
) -> None:
    expected = {"a": [10, 20], "b": [5]}
    found = check_sequences(numbered(sent, expected), {"a": 2, "b": 1})
    assert (found.lost, found.doubled, found.disordered, found.unexpected) == (lost, doubled, disordered, unexpected)
