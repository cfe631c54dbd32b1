"""The sample flights: their order, their types, and their missing values."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import pytest

from holdfast.infra.sample_data.flights import BY_MONTH, FLIGHTS, due_ms, flights_of, read_flights, route_of
from holdfast.infra.sample_data.reference import read_weather

HEADER = "year,month,day,dep_time,sched_dep_time,arr_delay,carrier,flight,tailnum,origin,dest,minute,time_hour"


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    rows = [
        "2013,10,1,517,515,11,UA,10,N1,EWR,IAH,15,2013-10-01T09:00:00Z",
        "2013,9,30,517,515,11,UA,10,N1,EWR,IAH,15,2013-09-30T09:00:00Z",
        "2013,9,30,NA,515,NA,UA,9,N1,EWR,IAH,15,2013-09-30T09:00:00Z",
        "2013,9,30,NA,515,NA,AA,11,NA,JFK,IAH,15,2013-09-30T09:00:00Z",
        "2013,9,30,900,515,-3,AA,11,N0,JFK,IAH,15,2013-09-30T09:00:00Z",
    ]
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, *rows]) + "\n")
    return path


def test_flights_come_in_the_order_they_were_due_by_number_not_by_text(small_file: Path) -> None:
    flights = list(read_flights(small_file))
    seen = [(flight["month"], flight["carrier"], flight["flight"], flight["tailnum"]) for flight in flights]
    assert seen == [
        (9, "AA", 11, None),
        (9, "AA", 11, "N0"),
        (9, "UA", 9, "N1"),
        (9, "UA", 10, "N1"),
        (10, "UA", 10, "N1"),
    ]
    assert list(read_flights(small_file, limit=2)) == flights[:2]
    assert list(read_flights(small_file, months=9)) == flights[:4]


def test_numbers_are_int_and_what_is_not_available_is_none(small_file: Path) -> None:
    first, second = list(read_flights(small_file))[:2]
    assert first["dep_time"] is None
    assert first["arr_delay"] is None
    assert (second["dep_time"], second["arr_delay"], second["time_hour"]) == (900, -3, "2013-09-30T09:00:00Z")
    assert route_of(second) == "JFK-IAH-AA"
    assert due_ms(second) == 1380532500000


@pytest.mark.slow
def test_the_packaged_file_has_all_flights_in_time_order() -> None:
    months: Counter[int] = Counter()
    missing = 0
    last = (0, 0, 0, 0)
    for flight in read_flights():
        months[flight["month"]] += 1
        missing += flight["tailnum"] is None
        now = (flight["year"], flight["month"], flight["day"], flight["sched_dep_time"])
        assert last <= now
        last = now
    assert [months[number] for number in range(1, 13)] == list(BY_MONTH)
    assert (sum(BY_MONTH), missing) == (FLIGHTS, 2_512)
    assert flights_of(3) == months[1] + months[2] + months[3]


def test_weather_is_that_of_the_months() -> None:
    assert {row["month"] for row in read_weather(2)} == {1, 2}
    assert {row["month"] for row in read_weather()} == set(range(1, 13))
