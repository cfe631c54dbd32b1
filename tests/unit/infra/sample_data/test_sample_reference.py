"""The sample tables that flights refer to: their types, their order, and their missing values."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from holdfast.infra.sample_data.flights import hour_ms
from holdfast.infra.sample_data.reference import YEAR_MS, observed_ms, read_airlines, read_planes, read_weather


def test_the_weather_of_an_airport_is_in_order_and_each_hour_is_there_once() -> None:
    found = list(read_weather())
    assert Counter(each["origin"] for each in found) == {"EWR": 8703, "JFK": 8706, "LGA": 8706}
    assert all(
        one["origin"] != next_one["origin"] or observed_ms(one) < observed_ms(next_one)
        for one, next_one in pairwise(found)
    )
    first = found[0]
    assert (first["hour"], first["temp"], first["wind_dir"], first["wind_gust"]) == (1, 39.02, 270, None)
    assert observed_ms(first) == hour_ms("2013-01-01T06:00:00Z")


def test_aircraft_have_whole_numbers_and_none_for_what_is_not_known() -> None:
    found = {each["tailnum"]: each for each in read_planes()}
    assert len(found) == 3322
    assert found["N10156"] == {
        "tailnum": "N10156",
        "year": 2004,
        "type": "Fixed wing multi engine",
        "manufacturer": "EMBRAER",
        "model": "EMB-145XR",
        "engines": 2,
        "seats": 55,
        "speed": None,
        "engine": "Turbo-fan",
    }


def test_airlines_have_names() -> None:
    found = {each["carrier"]: each["name"] for each in read_airlines()}
    assert len(found) == 16
    assert found["UA"] == "United Air Lines Inc."


def test_the_year_begins_before_all_of_them() -> None:
    assert hour_ms("2013-01-01T00:00:00Z") == YEAR_MS < min(map(observed_ms, read_weather()))
