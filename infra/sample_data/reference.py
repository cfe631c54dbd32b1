"""Reads the data to join with flights: hourly weather at the airports of origin, aircraft, and airlines.

Rows are dictionaries with all columns of the file, in the order of the file. ``NA`` becomes None.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from typing import Any

from holdfast.infra.sample_data.flights import NOT_AVAILABLE, hour_ms, sample_file

Row = dict[str, Any]

#: Start of the year 2013 in UTC, which is before the first flight; milliseconds since 1970.
YEAR_MS = 1_356_998_400_000

_WEATHER_TEXT, _WEATHER_WHOLE = ("origin", "time_hour"), ("year", "month", "day", "hour", "wind_dir")
_PLANES_WHOLE = ("year", "engines", "seats", "speed")


def read_weather(months: int = 12) -> Iterator[Row]:
    """Yield the weather of each airport and hour in the first ``months`` of the year. An airport's hours are in order.

    Raises:
        FlightsUnavailable: The package is not installed, or lacks the file.
    """
    for row in _rows("weather.csv"):
        if int(row["month"]) <= months:
            yield {name: _typed(name, cell, _WEATHER_TEXT, _WEATHER_WHOLE) for name, cell in row.items()}


def read_planes() -> Iterator[Row]:
    """Yield the registered aircraft of the year.

    A sixth of the flights used an aircraft that is not registered.

    Raises:
        FlightsUnavailable: The package is not installed, or lacks the file.
    """
    for row in _rows("planes.csv"):
        text = row.keys() - _PLANES_WHOLE
        yield {name: _typed(name, cell, text, _PLANES_WHOLE) for name, cell in row.items()}


def read_airlines() -> Iterator[Row]:
    """Yield the airlines, with the columns ``carrier`` (as in the flights) and ``name``.

    Raises:
        FlightsUnavailable: The package is not installed, or lacks the file.
    """
    yield from _rows("airlines.csv")


def observed_ms(observation: Row) -> int:
    """The hour of a weather observation, milliseconds since 1970 UTC."""
    return hour_ms(observation["time_hour"])


def _rows(name: str) -> Iterator[dict[str, str]]:
    with sample_file(name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _typed(name: str, cell: str, text: Collection[str], whole: Collection[str]) -> Any:
    if cell in ("", NOT_AVAILABLE):
        return None
    if name in text:
        return cell
    return int(cell) if name in whole else float(cell)
