"""The processors `rotations` and `delays` on flights whose departures are out of order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.sample_data.flights import Flight, due_ms, left
from holdfast.orchestration.demo.closed_windows import Departures, closed_hours, closed_rotations, departure
from holdfast.processors.definitions import delays, rotations

MINUTE_MS = 60_000
PARTITIONS = 4


def flight(day: int, hour: int, minute: int, delay: int | None, **changes: Any) -> Flight:
    usual = {"tailnum": "N1", "origin": "EWR", "dest": "IAH", "air_time": 227, "distance": 1400}
    time_hour = f"2013-03-{day:02}T{hour:02}:00:00Z"
    return {**usual, "time_hour": time_hour, "minute": minute, "dep_delay": delay, **changes}


def at(day: int, hour: int, minute: int) -> int:
    return due_ms(flight(day, hour, minute, 0))


#: Flights in the order of the timetable. The second one departs 21 hours late, after all other flights of its day.
FLIGHTS = [
    flight(1, 9, 0, 10),
    flight(1, 9, 30, 21 * 60, dest="MIA", air_time=None),
    flight(1, 10, 0, -2, origin="JFK", dest="SFO"),
    flight(1, 10, 5, None, tailnum="N2"),
    flight(1, 10, 10, 0, tailnum="N2", origin="EWR"),
    flight(1, 10, 20, 50, tailnum="N2", origin="EWR"),
    flight(12, 9, 0, 0, tailnum="N3", origin="LGA"),
    flight(30, 9, 0, 0, origin="LGA"),
]


def sent(application: Application, key: str, flights: Sequence[Flight]) -> tuple[list[dict[str, Any]], InMemoryCluster]:
    """What a processor sends for these flights. All are in one partition, so they share one stream time."""
    cluster = InMemoryCluster()
    (source, *_) = (spec.name for spec in application.topology().inputs)
    cluster.create_topic(source, PARTITIONS)
    for each in flights:
        named = None if each[key] is None else each[key].encode()
        cluster.produce(source, json.dumps(each).encode(), named, partition=0, timestamp_ms=due_ms(each))
    cluster.run(application)
    output = application.topology().outputs[0].name
    records = [record for _, record in cluster.read(output)]
    return [{"key": (each.key or b"").decode(), **json.loads(each.value or b"")} for each in records], cluster


def test_a_rotation_has_all_departures_of_an_aircraft_until_it_stays_away_for_two_weeks() -> None:
    windows, _ = sent(rotations.application, "tailnum", FLIGHTS)
    assert sorted(windows, key=itemgetter("key")) == [
        {
            "key": "N1",
            "start": at(1, 9, 10),
            "end": at(2, 6, 30) + 1,
            "flights": 3,
            "miles": 4200,
            "minutes_in_air": 454,
            "first_airport": "EWR",
            "last_destination": "MIA",
        },
        {
            "key": "N2",
            "start": at(1, 10, 10),
            "end": at(1, 11, 10) + 1,
            "flights": 2,
            "miles": 2800,
            "minutes_in_air": 454,
            "first_airport": "EWR",
            "last_destination": "IAH",
        },
        {
            "key": "N3",
            "start": at(12, 9, 0),
            "end": at(12, 9, 0) + 1,
            "flights": 1,
            "miles": 1400,
            "minutes_in_air": 227,
            "first_airport": "LGA",
            "last_destination": "IAH",
        },
    ]


def test_an_hour_has_the_flights_that_left_in_it_whenever_they_were_due() -> None:
    windows, _ = sent(delays.application, "origin", FLIGHTS)
    early = [each for each in windows if each["key"] == "EWR"]
    assert [(each["start"], each["departures"], each["delay"]) for each in early] == [
        (at(1, 9, 0), 1, 10),
        (at(1, 10, 0), 1, 0),
        (at(1, 11, 0), 1, 50),
        (at(2, 6, 0), 1, 1260),
    ]
    both = [flight(1, 9, 0, 10), flight(1, 9, 20, -5), flight(1, 8, 0, 61), flight(3, 9, 0, 0)]
    (window,), _ = sent(delays.application, "origin", both)
    assert window == {
        "key": "EWR",
        "start": at(1, 9, 0),
        "end": at(1, 10, 0),
        "departures": 3,
        "delay": 66,
        "mean_delay": 22.0,
        "worst_delay": 61,
    }


@pytest.mark.parametrize(
    ("application", "key", "closed"),
    [(rotations.application, "tailnum", closed_rotations), (delays.application, "origin", closed_hours)],
)
def test_the_windows_that_the_demo_expects_are_sent(application: Application, key: str, closed: Any) -> None:
    expected = Departures()
    for each in FLIGHTS:
        expected.add(each[key], departure(each))
    windows, _ = sent(application, key, FLIGHTS)
    made: dict[str, list[int]] = {}
    for each in windows:
        made.setdefault(each["key"], []).append(each["start"])
    assert made == {name: starts for name, starts in closed(expected, 1).items() if starts}


def test_a_flight_without_an_aircraft_is_cancelled_and_no_dead_letter() -> None:
    windows, cluster = sent(rotations.application, "tailnum", [flight(1, 9, 0, None, tailnum=None), *FLIGHTS])
    assert len(windows) == 3
    assert cluster.read("rotations-dead-letters") == []
    assert [left(each) for each in FLIGHTS].count(False) == 1


def test_their_topologies() -> None:
    assert [spec.name for spec in rotations.application.topology().topics()] == [
        "flights",
        "rotations-closed",
        "rotations-dead-letters",
        "rotations-sessions-changelog",
    ]
    assert [spec.name for spec in delays.application.topology().topics()] == [
        "origins",
        "delays-closed",
        "delays-dead-letters",
        "delays-hours-changelog",
    ]
